from __future__ import annotations

from safeecgmatch.cells import cells
from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.rows import ablation_rows, effect_rows, entries, method_rows, methods, sensitivity_rows
from tests.conftest import ROOT
from tests.reporting.conftest import MadeUp
from tests.reporting.synthetic import EVERYTHING, make_params


def test_every_cell_has_a_row_and_a_role(study: MadeUp) -> None:
    frame = study.evaluation.metrics.drop_duplicates("cell").set_index("cell")
    assert frame.loc["ptbxl/safeecgmatch-lambda_0.3333333333333333/60/1", ["row", "role"]].tolist() == [
        "safeecgmatch-lambda_1/3", "sensitivity",
    ]  # fmt: skip
    expected = {
        "calimatch/30": ("calimatch", "main"), "safeecgmatch/30": ("safeecgmatch", "main"),
        "safeecgmatch-learned_t/30": ("safeecgmatch-learned_t", "reading"),
        "safeecgmatch-no_cal/60": ("safeecgmatch-no_cal", "ablation"),
        "safeecgmatch-two_time/60": ("safeecgmatch-two_time", "ablation"),
        "safeecgmatch-lambda_3.0/60": ("safeecgmatch-lambda_3", "sensitivity"),
        "fixmatch-seen_pool/60": ("fixmatch-seen_pool", "arm"),
        "safeecgmatch-val150/60": ("safeecgmatch-val150", "arm"),
    }  # fmt: skip
    for path, names in expected.items():
        assert tuple(frame.loc[f"ptbxl/{path}/2", ["row", "role"]]) == names
    runs = study.evaluation.runs.set_index("cell")
    assert runs.loc[frame.index, "row"].eq(frame["row"]).all() and runs["role"].notna().all()


def test_no_two_cells_of_a_profile_share_row_setting_and_seed() -> None:
    for name in ("demo", "cpu", "long", "paper"):
        found = [
            (cell.dataset, cell.row, cell.ood, cell.seed) for cell in cells(compose_params(name, ROOT / "profiles"))
        ]
        assert len(found) == len(set(found))


def readings(**changes: object) -> list[tuple[str, str]]:
    return [(entry.key, entry.label) for entry in entries(make_params(**{**EVERYTHING, **changes}))[11:]]


def test_readings_are_two_rules_by_two_predictions_and_release_has_one_rule() -> None:
    assert readings() == [
        ("safeecgmatch@fused", "SafeECGMatch (fitted, fused)"), ("safeecgmatch@time", "SafeECGMatch (fitted, time)"),
        ("safeecgmatch-learned_t@fused", "SafeECGMatch (learned, fused)"),
        ("safeecgmatch-learned_t@time", "SafeECGMatch (learned, time)"),
    ]  # fmt: skip
    learned = [
        ("safeecgmatch@fused", "SafeECGMatch (learned, fused)"),
        ("safeecgmatch@time", "SafeECGMatch (learned, time)"),
    ]
    assert readings(protocol="release") == learned
    switched = {"safeecgmatch": {"switches": {"paper": {"temperatures": "gradient_clamped"}}}}
    assert readings(methods=switched) == learned
    assert [key for key, _ in readings(readings=[])] == ["safeecgmatch@fused", "safeecgmatch@time"]
    assert [key for key, _ in readings(readings=[], lambda_sum=0.0)] == ["safeecgmatch@time"]


def test_release_has_no_second_rule_in_the_ablation() -> None:
    params = make_params(**EVERYTHING, protocol="release")
    names = ["no_freq_cal", "no_cal", "two_time", "coupled"]
    assert [row.key for row in ablation_rows(params)] == ["safeecgmatch", *(f"safeecgmatch-{name}" for name in names)]


def test_weights_are_found_by_their_labels() -> None:
    params = make_params(lambda_sum=3.0, sensitivity={"lambda_sums": [0.333]})
    assert {row.published: row.key for row in sensitivity_rows(params)} == {
        "1/3": "safeecgmatch-lambda_1/3", "1": "safeecgmatch-lambda_1", "3": "safeecgmatch",
    }  # fmt: skip
    assert "safeecgmatch-lambda_1" not in {cell.row for cell in cells(params)}  # nobody runs it


def test_methods_that_the_paper_does_not_have_stand_last_and_are_not_ranked() -> None:
    params = make_params(grid={"methods": ["mymethod", "calimatch", "supervised"]})
    rows = method_rows(params, methods(params))
    assert [row.key for row in rows] == [
        "supervised", "calimatch", "safeecgmatch@fused", "safeecgmatch@time", "mymethod",
    ]  # fmt: skip
    assert [row.ranked for row in rows] == [True] * 4 + [False] and rows[-1].section == "not in the paper"
    assert [row.cite for row in rows[2:4]] == ["koh2026safeecgmatch", ""]  # once


def test_a_row_names_the_trainings_behind_it() -> None:
    gain, *_ = effect_rows(make_params(**EVERYTHING))
    assert gain.is_gain and gain.trainings == ["safeecgmatch", "safeecgmatch-learned_t"]
