"""The trainings that params.yaml asks for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError

ARM_OOD = 60  # arms are rows of the setting with the most unseen records
ROLES = {
    "train": "main", "train_safeecgmatch": "main", "train_reading": "reading", "train_ablation": "ablation",
    "train_variant": "ablation", "train_sensitivity": "sensitivity", "train_seen_pool": "arm", "train_val150": "arm",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One training: one process, one folder, one MLflow run."""

    dataset: str
    method: str
    ood: int
    seed: int
    variant: str = "full"
    lambda_sum: float | None = None
    arm: str = ""  # another pool or validation set: seen_pool, val150
    stage_name: str = "train"
    tag: str = ""  # how the cell differs from its method's main run, in paths

    @property
    def path(self) -> str:
        method = f"{self.method}-{self.tag}" if self.tag else self.method
        return f"{self.dataset}/{method}/{self.ood}/{self.seed}"

    @property
    def row(self) -> str:
        """What tables call its runs: `calimatch`, `safeecgmatch-lambda_1/3`, `fixmatch-seen_pool`."""
        if self.stage_name == "train_sensitivity":
            return lambda_row(self.lambda_sum or 0.0)
        return f"{self.method}-{self.tag}" if self.tag else self.method

    @property
    def role(self) -> str:
        """main, reading, ablation, sensitivity or arm."""
        return ROLES[self.stage_name]

    @property
    def stage(self) -> str:
        """As DVC names it: by what varies within the stage."""
        middle = {"train": self.method, "train_safeecgmatch": ""}.get(self.stage_name, self.tag.removeprefix("lambda_"))
        parts = [self.dataset, self.method] if self.arm else [self.dataset, middle, str(self.ood)]
        return f"{self.stage_name}@{'-'.join([*filter(None, parts), str(self.seed)])}"

    @property
    def split_path(self) -> str:
        """Of its split below data/splits."""
        return f"{self.dataset}/{self.ood}{f'-{self.arm}' if self.arm else ''}/{self.seed}"

    @property
    def split_stage(self) -> str:
        if self.arm:
            return f"split_{self.arm}@{self.dataset}-{self.seed}"
        return f"split@{self.dataset}-{self.ood}-{self.seed}"

    def describe(self) -> dict[str, Any]:
        names = ("dataset", "method", "ood", "seed", "variant", "lambda_sum", "arm")
        return {name: getattr(self, name) for name in names}


def weight_label(value: float) -> str:
    """A third may be written with three digits."""
    return "1/3" if abs(value - 1 / 3) < 1e-3 else f"{value:g}"


def lambda_row(weight: float) -> str:
    return f"{PROPOSED}-lambda_{weight_label(weight)}"


def cells(params: Params) -> list[Cell]:
    """Every cell that params.yaml asks for, in the order of the paper's tables."""
    grid, ablation, variants, sensitivity = params.grid, params.ablation, params.variants, params.sensitivity
    seeds, weight = grid.seeds, ablation.lambda_sum
    found = [
        Cell(dataset, method, ood, seed)
        for dataset, method, ood, seed in product(grid.datasets, grid.methods, grid.ood_levels, seeds)
    ]
    found += [
        Cell(dataset, PROPOSED, ood, seed, "full", params.lambda_sum, stage_name="train_safeecgmatch")
        for dataset, ood, seed in product(grid.datasets, grid.ood_levels, seeds)
    ]
    for stage, datasets, names, levels in (
        ("train_reading", grid.datasets, params.readings, grid.ood_levels),
        ("train_ablation", ablation.datasets, ablation.variants, ablation.ood_levels),
        ("train_variant", variants.datasets, variants.names, variants.ood_levels),
    ):
        found += [
            Cell(dataset, PROPOSED, ood, seed, variant, weight, stage_name=stage, tag=variant)
            for dataset, variant, ood, seed in product(datasets, names, levels, seeds)
        ]
    found += [
        Cell(dataset, PROPOSED, ood, seed, "full", float(text), stage_name="train_sensitivity", tag=f"lambda_{text}")
        for dataset, text, ood, seed in product(
            sensitivity.datasets, sensitivity.lambda_sums, sensitivity.ood_levels, seeds
        )
    ]
    for arm, section in (("seen_pool", params.arms.seen_pool), ("val150", params.arms.val150)):
        found += [
            Cell(dataset, method, ARM_OOD, seed, "full", weight if method == PROPOSED else None, arm,
                 f"train_{arm}", arm)
            for dataset, method, seed in product(section.datasets, section.methods, seeds)
        ]  # fmt: skip
    return found


def find_cell(params: Params, path: str) -> Cell:
    """The cell whose folder below runs/ is `path`."""
    asked = {cell.path: cell for cell in cells(params)}
    if path not in asked:
        raise UserError(f"params.yaml asks for no cell '{path}'; `safeecgmatch cells` lists those that it asks for.")
    return asked[path]
