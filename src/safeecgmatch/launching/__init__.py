"""Training cells anywhere: a launcher leaves finished cells in scratch/, and DVC adopts them through its own stages.

The launchers are `local.py`, `slurm.py` and `dask.py`; `jobs.py` says what each takes and gives, `scratch.py` what a
cell's folder holds, `train_cell.py` trains one into it, `adoption.py` moves a finished one to runs/ and tracking/.
"""
