"""Training cells anywhere: a launcher leaves finished cells in scratch/, and DVC adopts them through its own stages.

`registry.py` names the launchers, `jobs.py` says what each takes and gives, `scratch.py` what a cell's folder holds,
`train_cell.py` trains one into it, `adoption.py` moves a finished one to runs/ and tracking/.
"""
