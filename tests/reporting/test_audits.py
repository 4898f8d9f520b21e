"""Every number in the audit findings, from the printed tables alone."""

from __future__ import annotations

import pytest

from safeecgmatch.reporting.audits import AUDITS
from safeecgmatch.reporting.published import published

EXPECTED = {
    "gain_over_calimatch": ["in 0 of 16 columns", "the smallest p is 0.12, and 0.07"],
    "ablation_rows": ["in 8 of 8 means", "12 of 12 cells agree"],
    "wrong_marks": ["6 cells"],
    "one_program": ["differ in 16 of 16 columns"],
    "validation_labels": ["9 to 14 times", "1,331 validation labels", "4,277 validation labels"],
    "table3_top_two": ["in 16 of 16 columns", "in 3 of 8 columns"],
    "mixed_baselines": ["ACC upon SCOMatch and ECE upon CaliMatch"],
    "cinc60_best_rival": ["0.7617 is IOMatch", "CompleMatch has 0.786, more than SafeECGMatch's 0.780"],
    "lambda_choice": ["at most 0.009", "best in ECE and SCE only"],
}


@pytest.mark.parametrize("name", AUDITS)
def test_findings(name: str) -> None:
    finding = AUDITS[name]()
    assert finding.evidence and all(part in finding.text for part in EXPECTED[name])


def test_the_six_wrong_marks() -> None:
    places = [line.partition(":")[0] for line in AUDITS["wrong_marks"]().evidence]
    assert places == [
        "Table 1, PTB-XL 60 % ACC, OpenMatch 0.830",
        "Table 1, PTB-XL 60 % ACC, CaliMatch 0.831",
        "Table 1, CinC21 30 % ACC, CompleMatch 0.795",
        "Table 3, CinC21 60 % ACE, CompleMatch 0.094",
        "Table 3, CinC21 60 % ACE, CaliMatch 0.095",
        "Table 3, CinC21 60 % SCE, CompleMatch 0.096",
    ]


def test_gains_and_spreads_are_those_of_the_print() -> None:
    """Means, p values, and the sample standard deviations that Table 2's population values stand for."""
    gains = [line for line in AUDITS["gain_over_calimatch"]().evidence if " ACC: " in line]
    expected = ["+0.007, p = 0.12", "+0.012, p = 0.13", "+0.010, p = 0.27", "+0.022, p = 0.16"]
    assert all(part in line for part, line in zip(expected, gains, strict=True))
    rows = {"full": "safeecgmatch", "no_freq_cal": "calimatch", "no_cal": "openmatch"}
    for (dataset, row, ood, metric), cell in published("ablation").items():
        same = published("benchmark")[dataset, rows[row], ood, metric]
        assert cell.mean == same.mean and cell.summary.std == pytest.approx(same.std, abs=0.0015)


def test_only_claims_about_table_3_itself_are_decided() -> None:
    decided = {name: holds for name, audit in AUDITS.items() if (holds := audit().holds) is not None}
    assert decided == {"table3_top_two": True, "cinc60_best_rival": False}
