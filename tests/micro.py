"""A small study in a project of its own, trained once for all tests that look at the whole graph, and its copies."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]

REPORTS = Path("reports/micro/paper")


def micro_params() -> dict:
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["profile"] = "micro"
    content["grid"] = {"datasets": ["ptbxl"], "methods": ["supervised", "fixmatch"], "ood_levels": [60], "seeds": [1]}
    content["ablation"] |= {"datasets": ["ptbxl"], "variants": ["no_cal"]}
    content["variants"]["names"] = []
    content["arms"] = {
        "seen_pool": {"datasets": ["ptbxl"], "methods": ["fixmatch"]}, "val150": {"datasets": [], "methods": []}
    }  # fmt: skip
    content["sensitivity"] |= {"lambda_sums": [3.0]}
    content["data"]["phantom"] = {"records": 300, "seed": 7}
    content["data"]["ptbxl"] |= {"labels_per_class": 8, "pool_size": 80}
    content["model"]["width"] = 4
    content["train"] |= {"iterations": 6, "epoch": 2, "warm_up": 2, "batch": 8}
    content["checkpoint_every"] = 4
    return content


class Project:
    """A copy of this project under its own Git and DVC, with the tools of this Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        foreign = ("DVC_", "MLFLOW_", "SAFEECGMATCH_", "GIT_")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root / "src")}
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "test", f"GIT_{role}_EMAIL": "test@example.org"}

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def safeecgmatch(self, *arguments: str, check: bool = True) -> str:
        return self.run(sys.executable, "-m", "safeecgmatch.cli", *arguments, check=check)

    def stale(self) -> set[str]:
        """The training cells that `dvc status` names, once the fingerprints of the present code are written."""
        self.run(sys.executable, "stages/code.py")
        return {name for name in json.loads(self.run("dvc", "status", "--json")) if name.startswith("train")}

    def edit(self, *changes: tuple[str, str, str]) -> None:
        """Replace `old` by `new` in files of the project, for every (file, old, new); "" means its end."""
        for file, old, new in changes:
            text = (self.root / file).read_text()
            assert old in text, f"{file} no longer holds {old!r}"
            (self.root / file).write_text(text.replace(old, new, 1) if old else text + new)

    def commit(self, message: str) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", message)

    def params(self, **changes: object) -> None:
        (self.root / "params.yaml").write_text(yaml.safe_dump(micro_params() | changes, sort_keys=False))

    def read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.root / REPORTS / name)

    def mlflow_runs(self) -> pd.DataFrame:
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.root}/mlflow.db")
        runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        return pd.DataFrame(
            {"status": run.info.status}
            | {f"params.{name}": value for name, value in run.data.params.items()}
            | {f"metrics.{name}": value for name, value in run.data.metrics.items()}
            | {f"tags.{name}": value or None for name, value in run.data.tags.items()}
            for run in runs
        )

    def copy(self, root: Path) -> Project:
        """What is read-only (objects of Git and DVC) is linked; nobody writes to it in place."""

        def duplicate(source: str, target: str) -> None:
            (shutil.copy2 if Path(source).stat().st_mode & stat.S_IWUSR else os.link)(source, target)

        shutil.copytree(self.root, root, symlinks=True, copy_function=duplicate)
        with closing(sqlite3.connect(root / "mlflow.db")) as store, store:
            change = "update experiments set artifact_location = replace(artifact_location, ?, ?)"
            store.execute(change, (str(self.root), str(root)))
        return Project(root)


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")]


def make_project(root: Path) -> Project:
    """This working tree without tests, reports and lock, with the micro study's params, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("tests/", "reports/", "docs/")) and name != "dvc.lock" and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    project = Project(root)
    (root / ".dvc" / "config.local").write_text(f"[core]\n    site_cache_dir = {root.parent / 'dvc'}\n")
    project.params()
    project.run("git", "init", "-q", "-b", "main")
    project.commit("micro")
    return project


def micro_study(shared: Path, store: Path) -> tuple[Project, str]:
    """The study in `shared`, trained by the first process of a test run that asks, and what its launcher printed.

    It begins with a copy of the MLflow store in the folder `store`.
    """
    shared.mkdir(exist_ok=True)
    root, printed = shared / "project", shared / "printed.txt"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            shutil.rmtree(root, ignore_errors=True)
            project = make_project(root)
            shutil.copytree(store, root, dirs_exist_ok=True)
            output = project.safeecgmatch("run", "--jobs", "2")
            project.commit("reproduced")
            printed.write_text(output)
    return Project(root), printed.read_text()
