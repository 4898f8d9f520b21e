"""A study whose cells were trained on two machines: the report is that of one machine with all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from safeecgmatch.cells import Cell, cells
from safeecgmatch.config import Params
from safeecgmatch.errors import DamagedFile, UserError
from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
from safeecgmatch.reporting.stored import read_earlier
from safeecgmatch.reporting.study import read_study
from tests.reporting.synthetic import make_params, write_cell

SMALL = {
    "grid": {"methods": ["supervised", "fixmatch"], "ood_levels": [60], "seeds": [1, 2]},
    "ablation": {"datasets": []}, "sensitivity": {"datasets": []},
    "readings": ["learned_t"],
    "variants": {"datasets": ["ptbxl"], "ood_levels": [60], "names": ["two_time"]},
}  # fmt: skip
DIVERGED = "ptbxl/fixmatch/60/1"


def hash_of(cell: Cell) -> str:
    return f"hash of {cell.path}"


def write(wanted: list[Cell], params: Params, root: Path) -> None:
    """As `write_cell`, with a hash that belongs to the cell."""
    for cell in wanted:
        write_cell(cell, params, root, 30, **({"diverged": "NaN at 7"} if cell.path == DIVERGED else {}))
        file = root / "runs" / cell.path / "config.yaml"
        file.write_text(file.read_text().replace("'0000000000000000'", hash_of(cell)), encoding="utf-8")


def report(params: Params, root: Path, folder: Path) -> None:
    earlier = read_earlier(folder, cells(params), hash_of)
    write_evaluation(evaluate(params, root / "runs", root / "tracking", earlier=earlier), folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("derived", [False, True], ids=["", "CaliMatch by its twin"])
def test_cells_of_two_machines_give_the_report_of_one(tmp_path: Path, derived: bool) -> None:
    params = make_params(**SMALL | ({} if derived else {"readings": []}))
    wanted = cells(params)
    write(wanted, params, tmp_path / "whole")
    report(params, tmp_path / "whole", tmp_path / "whole" / "report")
    for machine, share in (("first", wanted[::2]), ("second", wanted[1::2])):
        write(share, params, tmp_path / machine)
        report(params, tmp_path / machine, tmp_path / "shared")
        if machine == "first":
            states = pd.read_csv(tmp_path / "shared" / "runs.csv")["state"]
            assert (states == "missing").sum() == len(wanted[1::2])
    one, two = files(tmp_path / "whole" / "report"), files(tmp_path / "shared")
    assert set(one) == set(two) and "draws.csv.gz" in one
    assert [name for name in one if one[name] != two[name]] == []
    contrasts = pd.read_csv(tmp_path / "shared" / "contrasts.csv")
    assert (contrasts["seeds"] == 2).all() and len(contrasts) > 20


def test_a_cell_that_is_here_counts_and_not_what_was_reported_of_it(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    write(cells(params), params, tmp_path)
    report(params, tmp_path, tmp_path / "report")
    whole = files(tmp_path / "report")
    metrics = tmp_path / "report" / "metrics.csv"
    pd.read_csv(metrics).assign(value=0.123).to_csv(metrics, index=False)
    report(params, tmp_path, tmp_path / "report")
    assert files(tmp_path / "report") == whole


def test_lines_of_other_params_or_data_are_not_kept(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    wanted = cells(params)
    write(wanted, params, tmp_path)
    report(params, tmp_path, tmp_path / "report")
    gone = {"ptbxl/supervised/60/2", "cinc21/safeecgmatch/60/1"}
    for path in gone:
        shutil.rmtree(tmp_path / "runs" / path)
    earlier = read_earlier(tmp_path / "report", wanted, lambda cell: "other" if cell.path in gone else hash_of(cell))
    result = evaluate(params, tmp_path / "runs", tmp_path / "tracking", earlier=earlier)
    runs = result.runs.set_index("cell")["state"]
    assert set(runs.index[runs == "missing"]) == gone
    assert not gone & set(result.metrics["cell"])


def test_a_damaged_report_and_a_study_that_diverged_are_one_sentence(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    write(cells(params), params, tmp_path)
    report(params, tmp_path, tmp_path / "report")
    whole = files(tmp_path / "report")
    for name in ("runs.csv", "metrics.csv", "plots/roc.csv", "contrasts.csv"):
        for content, reason in ((b"", "No columns"), (b"a,b\n1,2\n", "no column"), (b"\xff\n", "decode")):
            (tmp_path / "report" / name).write_bytes(content)
            if name != "contrasts.csv":
                with pytest.raises(DamagedFile, match=f"{name} is damaged .*{reason}"):
                    read_earlier(tmp_path / "report", cells(params), hash_of)
            with pytest.raises(DamagedFile, match=f"{name} is damaged .*{reason}"):
                read_study(params, tmp_path / "report")
        (tmp_path / "report" / name).write_bytes(whole[name])
    only = [cell for cell in cells(params) if cell.path == DIVERGED]
    write(only, params, tmp_path / "diverged")
    with pytest.raises(UserError, match="Every cell that has been trained diverged"):
        report(params, tmp_path / "diverged", tmp_path / "diverged" / "report")


def test_no_report_or_one_of_another_format_gives_nothing(tmp_path: Path) -> None:
    params = make_params(**SMALL)
    assert read_earlier(tmp_path / "report", cells(params), hash_of) == {}
    write(cells(params), params, tmp_path)
    report(params, tmp_path, tmp_path / "report")
    (tmp_path / "report" / "draws.csv.gz").unlink()
    assert read_earlier(tmp_path / "report", cells(params), hash_of) == {}
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(UserError, match=r"No cell of params\.yaml has been trained"):
        report(params, tmp_path, tmp_path / "report")
