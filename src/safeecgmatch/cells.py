"""The trainings that params.yaml asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError


@dataclass(frozen=True)
class Cell:
    """One training: one process, one folder, one MLflow run."""

    dataset: str
    method: str
    ood: int
    seed: int
    variant: str = "full"
    lambda_sum: float | None = None
    stage_name: str = "train"
    tag: str = ""  # what tells ablation and sensitivity cells from the main run, in paths and stage names

    @property
    def path(self) -> str:
        prefix = "lambda_" if self.stage_name == "train_sensitivity" else ""
        method = f"{self.method}-{prefix}{self.tag}" if self.tag else self.method
        return f"{self.dataset}/{method}/{self.ood}/{self.seed}"

    @property
    def stage(self) -> str:
        middle = self.method if self.stage_name == "train" else self.tag
        parts = [self.dataset, middle, str(self.ood), str(self.seed)]
        return f"{self.stage_name}@{'-'.join(part for part in parts if part)}"

    def describe(self) -> dict[str, Any]:
        names = ("dataset", "method", "ood", "seed", "variant", "lambda_sum")
        return {name: getattr(self, name) for name in names}


def cells(params: Params) -> list[Cell]:
    """Every cell that params.yaml asks for, in the order of the paper's tables."""
    grid, ablation, sensitivity = params.grid, params.ablation, params.sensitivity
    seeds = grid.seeds
    baselines = [
        Cell(dataset, method, ood, seed)
        for dataset in grid.datasets
        for method in grid.methods
        for ood in grid.ood_levels
        for seed in seeds
    ]
    proposed = [
        Cell(dataset, PROPOSED, ood, seed, "full", params.lambda_sum, "train_safeecgmatch")
        for dataset in grid.datasets
        for ood in grid.ood_levels
        for seed in seeds
    ]
    ablated = [
        Cell(dataset, PROPOSED, ood, seed, variant, ablation.lambda_sum, "train_ablation", variant)
        for dataset in ablation.datasets
        for variant in ablation.variants
        for ood in ablation.ood_levels
        for seed in seeds
    ]
    weighted = [
        Cell(dataset, PROPOSED, ood, seed, "full", float(lambda_sum), "train_sensitivity", str(lambda_sum))
        for dataset in sensitivity.datasets
        for lambda_sum in sensitivity.lambda_sums
        for ood in sensitivity.ood_levels
        for seed in seeds
    ]
    return [*baselines, *proposed, *ablated, *weighted]


def find_cell(params: Params, path: str) -> Cell:
    """The cell whose folder below runs/ is `path`."""
    asked = {cell.path: cell for cell in cells(params)}
    if path not in asked:
        raise UserError(f"params.yaml asks for no cell '{path}'; `safeecgmatch cells` lists those that it asks for.")
    return asked[path]
