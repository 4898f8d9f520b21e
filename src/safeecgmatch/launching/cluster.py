"""cluster.yaml: where cells are trained besides this machine. Nothing depends on it, for it changes no number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from safeecgmatch.config import Positive, Strict, validate
from safeecgmatch.files import read_yaml

FILE = Path("cluster.yaml")


class Slurm(Strict):
    partition: str | None = None
    account: str | None = None
    gpus: Annotated[int, Field(ge=0)] = 0  # of each cell
    cpus: Positive = 1
    memory: str = "8GB"
    minutes: Positive = 24 * 60  # time limit of one cell; what is not done by then goes on from its checkpoint
    warning_seconds: Positive = 120  # before the time limit, for the checkpoint
    options: dict[str, str | int | bool] = Field(default_factory=dict)  # further options of sbatch, by their long names


class Dask(Strict):
    scheduler: str | None = None  # such as tcp://127.0.0.1:8786


class Cluster(Strict):
    cells_at_once: Annotated[int, Field(ge=0)] = 0  # 0: as many as the machine or the cluster takes
    slurm: Slurm = Slurm()
    dask: Dask = Dask()


def load_cluster(path: Path = FILE) -> Cluster:
    """The settings of `path`; without the file, those that suit a cluster with defaults of its own."""
    return validate(Cluster, read_yaml(path) or {}, str(path)) if path.exists() else Cluster()
