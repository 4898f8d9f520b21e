"""What tracking adds to a cell's critical path, against a bare import of mlflow plus opening the store.

Both are timed in turns in the same run, on a store that exists. The cell is a stand-in that computes for some seconds
on one core, as a training does, with three evaluations. The bound is 1.5.

Example: python benchmarks/tracking_cost.py --repeats 5
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import typer

from safeecgmatch import tracking

BOUND = 1.5
BARE = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments(max_results=1)"
CELL = """
import sys, time
from pathlib import Path
import numpy as np, yaml
from safeecgmatch import tracking

tracked = sys.argv[1] == "tracked"
folder = Path("runs/ptbxl/fixmatch/30/1")
folder.mkdir(parents=True, exist_ok=True)
cell = dict(dataset="ptbxl", method="fixmatch", ood=30, seed=1, variant="full", lambda_sum=None)
config = dict(cell=cell, protocol="paper", profile="benchmark", config_hash="0")
rng = np.random.default_rng(1)
arrays = {"test.log_probs.main": np.log(rng.dirichlet([1, 1, 1], 500)).astype("f4"), "branch": np.array("main")}
np.savez(folder / "predictions.npz", **arrays, **{"test.label": rng.integers(0, 3, 500)})
(folder / "config.yaml").write_text(yaml.safe_dump(config))
(folder / "model.safetensors").write_bytes(bytes(200_000))
if tracked:
    record = tracking.run_record(config, path="ptbxl/fixmatch/30/1", data_hash="0", device="cpu")
    logger = tracking.start(record, config)
matrix = np.ones((200, 200), dtype=np.float32)
for evaluation in range(3):
    for _ in range(int(sys.argv[2])):
        matrix = np.tanh(matrix @ matrix / 200)
    if tracked:
        logger.evaluation(evaluation, {"val_accuracy": 0.5, "loss": 1.0})
if tracked:
    result = logger.finish(folder, {"acc": 0.5}, wall_seconds=1.0, iterations_per_second=1.0)
    sys.exit(not result.logged)
"""


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", *arguments], check=True)
    return time.perf_counter() - began


def main(
    repeats: int = typer.Option(5, help="How often each is timed; the medians count."),
    work: int = typer.Option(4000, help="Matrix products between two evaluations: how long the cell computes."),
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ.update(DVC_ROOT=folder, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        tracking.ensure_store()
        bare, plain, tracked = [], [], []
        for _ in range(repeats):
            bare.append(seconds(BARE, tracking.tracking_uri()))
            plain.append(seconds(CELL, "plain", str(work)))
            tracked.append(seconds(CELL, "tracked", str(work)))
        os.chdir(Path(folder).parent)
    cost = median(tracked) - median(plain)
    print(f"import mlflow and open the store   {median(bare):6.2f} s")
    print(f"cell without tracking              {median(plain):6.2f} s")
    print(f"cell with tracking                 {median(tracked):6.2f} s")
    print(f"cost on the critical path          {cost:6.2f} s = {cost / median(bare):.2f} x (at most {BOUND})")
    sys.exit(cost > BOUND * median(bare))


if __name__ == "__main__":
    typer.run(main)
