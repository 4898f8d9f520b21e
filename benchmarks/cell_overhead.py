"""The fixed cost of a training cell, against a script that imports torch and mlflow, opens the store and logs one run.

The fixed cost is everything but iterations and DVC: imports, data, model, tracking, testing, writing. The same cell is
timed with N and 2 N iterations, and its time at none is 2 T(N) - T(2 N). Times are processor seconds, which other work
on the machine changes little. Reference and cells are timed in turns in the same run; the bound is 1.3. Needs the
splits of the installed params (`dvc repro split`).

Example: python benchmarks/cell_overhead.py ptbxl/supervised/30/1
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import typer
import yaml

from safeecgmatch.tracking.address import ensure_store, tracking_uri

BOUND = 1.3
REFERENCE = """
import sys, torch, mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("reference")
with mlflow.start_run():
    mlflow.log_params({"a": 1, "b": 2})
    mlflow.log_metric("accuracy", 0.5)
"""


def seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def workspace(folder: Path, project: Path) -> None:
    """A folder in which a cell can run beside the project's own outputs."""
    for name in ("src", "stages", "data"):
        (folder / name).symlink_to(project / name)


def set_iterations(folder: Path, project: Path, iterations: int) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    params["train"] |= {"iterations": iterations, "epoch": iterations, "warm_up": iterations // 2}
    params["checkpoint_every"] = iterations
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def main(
    cell: str = typer.Argument("ptbxl/supervised/30/1", help="The cell's folder below runs/."),
    iterations: int = typer.Option(30, help="N."),
    repeats: int = typer.Option(5, help="How often each is timed; the medians count."),
) -> None:
    project = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workspace(folder, project)
        os.chdir(folder)
        os.environ.update(DVC_ROOT=name, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        ensure_store()
        times: dict[int, list[float]] = {iterations: [], 2 * iterations: []}
        reference = []
        for _ in range(repeats):
            reference.append(seconds("-c", REFERENCE, tracking_uri()))
            for count, measured in times.items():
                set_iterations(folder, project, count)
                measured.append(seconds("stages/train.py", cell))
                for made in ("runs", "scratch"):  # a finished result in scratch/ would be taken over, not trained again
                    shutil.rmtree(folder / made)
        os.chdir(project)
    short, long = (median(measured) for measured in times.values())
    fixed = 2 * short - long
    print(f"reference script                {median(reference):6.2f} s")
    print(f"cell with {iterations} iterations         {short:6.2f} s")
    print(f"cell with {2 * iterations} iterations         {long:6.2f} s")
    print(f"fixed cost of the cell          {fixed:6.2f} s = {fixed / median(reference):.2f} x (at most {BOUND})")
    sys.exit(fixed > BOUND * median(reference))


if __name__ == "__main__":
    typer.run(main)
