"""What it costs at home to have DVC adopt cells that were trained elsewhere.

Makes a synthetic study in a temporary folder: this project's graph with as many cells as asked, on generated ECGs, and
a finished result of invented bytes for each, sealed as a launcher leaves it. Then DVC adopts a few of them, in one
`dvc repro`, and the processor seconds that it and the stage commands take are counted; the rest follows from them. The
cells are those of the sensitivity stage, each with a weight of its own, so that they share one split.

Example: python benchmarks/adoption.py 162 --adopt 162
         python benchmarks/adoption.py 2000 --adopt 20
"""

from __future__ import annotations

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
from safeecgmatch.files import write_json
from safeecgmatch.launching.scratch import Scratch

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("dvc.yaml", ".dvcignore", ".gitignore", "src", "stages")


def make_study(root: Path, wanted: int) -> list[Cell]:
    """A project with `wanted` cells, its shared stages run."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, root / name)
    content = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"profile": "synthetic"}
    content["grid"] |= {"datasets": ["ptbxl"], "methods": ["supervised"], "ood_levels": [60], "seeds": [1]}
    content["ablation"] |= {"datasets": ["ptbxl"], "variants": ["no_cal"], "ood_levels": [60]}
    content["sensitivity"] |= {"ood_levels": [60], "lambda_sums": [(n + 1) / 1024 for n in range(wanted - 3)]}
    (root / "params.yaml").write_text(yaml.safe_dump(content))
    run("git", "init", "--quiet")
    run(sys.executable, "-m", "dvc", "init", "--quiet")
    run(sys.executable, "-m", "dvc", "config", "cache.type", "reflink,hardlink,symlink")
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


def run(*command: str) -> tuple[float, float]:
    """Processor and wall seconds of a command and of all that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - began


def main(
    wanted: int = typer.Argument(162, help="Cells of the study."),
    adopt: int = typer.Option(0, help="Cells to adopt; 0 for all of them."),
    megabytes: float = typer.Option(1.0, help="Of one cell's result."),
) -> None:
    """Print the processor seconds of a status, of a repro that does nothing new, and of adopting cells."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(Path(folder) / "src")
        study = make_study(Path(folder), wanted)
        chosen = [cell for cell in study if cell.stage_name == "train_sensitivity"]
        chosen = chosen[:adopt] if adopt else study
        for cell in chosen:
            leave_finished(cell, megabytes)
        alone, _ = run(sys.executable, "stages/train.py", "--help")
        repro = (sys.executable, "-m", "dvc", "repro", "--single-item")
        first, _ = run(*repro, chosen[0].stage)
        rest, wall = run(*repro, *(cell.stage for cell in chosen[1:]))
        status, _ = run(sys.executable, "-m", "dvc", "status", chosen[0].stage)
        again, _ = run(*repro, *(cell.stage for cell in chosen))
        os.chdir(ROOT)
    count = len(chosen) - 1
    print(f"a study of {len(study)} cells, {megabytes} MB each; processor seconds")
    print(f"  a start of stages/train.py          {alone:8.2f}")
    print(f"  dvc status of one cell              {status:8.2f}")
    print(f"  dvc repro that adopts one cell      {first:8.2f}")
    print(
        f"  dvc repro that adopts {count:4} cells    {rest:8.2f}  ({rest / count:.2f} each, {wall:.0f} s of wall time)"
    )
    print(f"  dvc repro of the same, nothing new  {again:8.2f}")


if __name__ == "__main__":
    typer.run(main)
