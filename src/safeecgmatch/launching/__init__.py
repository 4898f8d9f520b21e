"""The same graph as `dvc repro`, with training cells side by side.

A launcher is a function of a list of jobs: `local.py` is the one for this machine; another (SLURM, Ray) is another
function of the type `jobs.Launcher` and needs no change elsewhere.
"""
