"""What it costs at home to have DVC adopt cells that were trained elsewhere.

Makes a synthetic study in a temporary folder: this project's graph with as many cells as asked, on generated ECGs, and
finished results of invented bytes, sealed as a launcher leaves them. `dvc repro` adopts the first few, then the last
few, when dvc.lock knows all the others (their entries are copies): DVC reads and writes that file for every stage.
Processor seconds of DVC and of the stage commands are counted.
The cells are those of the sensitivity stage, each with a weight of its own, so that they share one split.

Example: python benchmarks/adoption.py 162
         python benchmarks/adoption.py 2000 --few 5
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer
import yaml

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import load_params
from safeecgmatch.engine.fingerprint import resolve
from safeecgmatch.files import read_yaml, write_json
from safeecgmatch.launching.scratch import Scratch

ROOT = Path(__file__).resolve().parents[1]
LOCK = Path("dvc.lock")
COPIED = ("dvc.yaml", ".dvc/config", ".dvcignore", ".gitignore", "src", "stages")
OTHERS = 3  # cells that the graph cannot be without: supervised, SafeECGMatch and one of its ablation


def make_study(root: Path, wanted: int) -> list[Cell]:
    """A project with `wanted` cells, its shared stages run."""
    (root / ".dvc").mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    content = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"profile": "synthetic"}
    content["grid"] |= {"datasets": ["ptbxl"], "methods": ["supervised"], "ood_levels": [60], "seeds": [1]}
    content["ablation"] |= {"datasets": ["ptbxl"], "variants": ["no_cal"], "ood_levels": [60]}
    content["data"] |= {"phantom": {"records": 300, "seed": 7}}
    content["data"]["ptbxl"] |= {"labels_per_class": 8, "pool_size": 80}
    content["readings"], content["variants"]["names"] = [], []
    content["arms"] = {arm: {"datasets": [], "methods": []} for arm in content["arms"]}
    content["sensitivity"] |= {"ood_levels": [60], "lambda_sums": [(n + 1) / 1024 for n in range(wanted - OTHERS)]}
    (root / "params.yaml").write_text(yaml.safe_dump(content))
    run("git", "init", "--quiet")
    run(sys.executable, "-m", "dvc", "repro", "--quiet", "code", "split")
    return cells(load_params())


def leave_finished(cell: Cell, megabytes: float) -> None:
    """What a launcher would leave of `cell`, with bytes that nobody has trained."""
    config = resolve(load_params(), cell)
    scratch = Scratch.of(cell.path, config["fingerprint"])
    scratch.folder.mkdir(parents=True)
    with scratch.sealing(config["fingerprint"]) as folder:
        (folder / "run").mkdir()
        for name in ("config.yaml", "history.csv", "summary.json"):
            (folder / "run" / name).write_text(f"{cell.path}\n" * 20)
        for name in ("model.safetensors", "predictions.npz"):
            (folder / "run" / name).write_bytes(os.urandom(round(megabytes * 2**19)))
        write_json(folder / "run.json", {"cell": cell.describe(), "path": cell.path})
    write_json(scratch.mlflow, {"run_id": "0", "logged": True})


def fill_lock(known: Cell, others: list[Cell]) -> None:
    """Entries for `others` like that of `known`, as if they had been adopted."""
    lock = read_yaml(LOCK)
    entry = json.dumps(lock["stages"][known.stage])
    for cell in others:
        lock["stages"][cell.stage] = json.loads(entry.replace(known.path, cell.path))
    LOCK.write_text(yaml.safe_dump(lock, sort_keys=False))


def run(*command: str) -> tuple[float, float]:
    """Processor and wall seconds of a command and of all that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command[:6])} failed with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - began


def main(
    wanted: int = typer.Argument(162, min=OTHERS + 2, help="Cells of the study."),
    few: int = typer.Option(10, help="How many are adopted first, and how many last."),
    megabytes: float = typer.Option(1.0, help="Of one cell's result."),
) -> None:
    """Print the processor seconds of adopting cells, of a status and of a repro that finds nothing to do."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    dvc = (sys.executable, "-m", "dvc")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(Path(folder) / "src")
        study = make_study(Path(folder), wanted)
        chosen = [cell for cell in study if cell.stage_name == "train_sensitivity"]
        first, last = chosen[:few], chosen[-few:]
        others = [cell for cell in chosen if cell not in (*first, *last)]
        for cell in (*first, *last):
            leave_finished(cell, megabytes)
        command, _ = run(sys.executable, "stages/train.py", "--help")
        empty, _ = run(*dvc, "repro", "--single-item", *(cell.stage for cell in first))
        fill_lock(first[0], others)
        full, wall = run(*dvc, "repro", "--single-item", *(cell.stage for cell in last))
        nothing, _ = run(*dvc, "repro", "--single-item", *(cell.stage for cell in last))
        status, _ = run(*dvc, "status")
        os.chdir(ROOT)
    early, late = empty / few, (full - nothing) / few
    print(f"a study of {len(study)} cells, {megabytes} MB each; processor seconds")
    print(f"  a start of stages/train.py                    {command:8.2f}")
    print(f"  dvc status                                    {status:8.2f}")
    print(f"  dvc repro: each of the first {few:3} cells         {early:8.2f}")
    print(f"             each of the last {few:3} cells          {late:8.2f}  (wall time of all of them {wall:.0f} s)")
    print(f"             all cells, by the mean of both     {len(study) * (early + late) / 2:8.0f}")
    print(f"             once more, nothing to do           {nothing:8.2f}")


if __name__ == "__main__":
    typer.run(main)
