"""Which study a command speaks of: that of params.yaml, or one whose report is in the repository."""

from __future__ import annotations

from pathlib import Path

from safeecgmatch.config import Params
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json
from safeecgmatch.profiles import compose_params, profile_names
from safeecgmatch.reporting.evaluate import report_folder
from safeecgmatch.reporting.names import is_generated


def is_real(params: Params) -> bool:
    return not all(is_generated(params, dataset) for dataset in params.grid.datasets)


def cells_done(params: Params) -> int:
    """How many cells a study's report rests on; none where it has no report."""
    file = report_folder(params) / "headline.json"
    return read_json(file)["cells"]["done"] if file.is_file() else 0


def reported() -> dict[str, Params]:
    """The studies of profiles/ that have a report, by name."""
    studies = {name: compose_params(name) for name in profile_names() if Path("reports", name).is_dir()}
    return {name: params for name, params in studies.items() if cells_done(params)}


def choose(current: Params, name: str | None = None) -> Params:
    """The params of the study called `name`. Without a name those of params.yaml, `current`; but if its data are
    generated, those of the largest report on real data, if there is one."""
    if name == current.profile or (name is None and is_real(current)):
        return current
    others = reported()
    if name is None:
        return max(filter(is_real, others.values()), key=cells_done, default=current)
    if name not in others:
        raise UserError(f"There is no report of a study '{name}'; those that exist are {', '.join(others) or 'none'}.")
    return others[name]
