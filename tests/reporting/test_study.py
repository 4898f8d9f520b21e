from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from safeecgmatch.reporting.statistics import Difference, Summary, student_interval, summarise
from safeecgmatch.reporting.study import Gain, Printed
from tests.reporting.conftest import MadeUp

LINE = {
    "dataset": "ptbxl", "ood": 60, "metric": "ece", "scaling": "none", "candidate": "a@time", "rival": "b",
    "estimate": 0.02, "se_seeds": 0.01, "se_records": 0.0, "low": -0.01, "high": 0.05, "seeds": 3, "records": 1331,
}  # fmt: skip


def test_a_gain_is_found_whichever_way_round_it_was_written(study: MadeUp) -> None:
    found = replace(study.evaluation, contrasts=pd.DataFrame([LINE]))
    gain = Gain(Difference(0.02, 0.01, 0.0, 3), -0.01, 0.05, 1331)
    assert found.gain("ptbxl", "a@time - b", 60, "ece") == gain
    assert found.gain("ptbxl", "b - a@time", 60, "ece") == Gain(Difference(-0.02, 0.01, 0.0, 3), -0.05, 0.01, 1331)
    assert found.gain("ptbxl", "a@time - b", 30, "ece") is None


def test_a_row_is_its_reported_prediction_and_a_branch_is_named(study: MadeUp) -> None:
    found, metrics = study.evaluation, study.evaluation.metrics
    here = metrics[(metrics["dataset"] == "cinc21") & (metrics["ood"] == 30) & (metrics["row"] == "safeecgmatch")]
    here = here[(here["metric"] == "nll") & (here["scaling"] == "posthoc")]
    for row, chosen in (("safeecgmatch", here["reported"]), ("safeecgmatch@time", here["branch"] == "time")):
        by_seed = here[chosen].set_index("seed")["value"].to_dict()
        assert found.seeds("cinc21", row, 30, "nll", "posthoc") == by_seed and list(by_seed) == [1, 2]
        assert found.value("cinc21", row, 30, "nll", "posthoc") == summarise(list(by_seed.values()))
    assert found.value("cinc21", "nobody", 30, "nll") is None and found.seeds("cinc21", "nobody", 30, "nll") == {}
    assert found.branches["safeecgmatch"] == ["freq", "fused", "time"] and found.branches["fixmatch"] == ["main"]
    assert found.reported == "fused"


def test_what_is_printed_has_an_interval_and_the_seeds_that_were_asked_for(study: MadeUp) -> None:
    """Within [0, 1] but for NLL and the like; a gain has its own; what nobody ran has no seed."""
    gone = study.evaluation.metrics["cell"] != "ptbxl/calimatch-val150/60/2"
    found = replace(study.evaluation, metrics=study.evaluation.metrics[gone], contrasts=pd.DataFrame([LINE]))

    def printed(row: str, metric: str) -> Printed:
        return found.printed("ptbxl", row, 60, metric, "none")

    for metric, bounded in (("acc", True), ("nll", False)):
        line = printed("fixmatch", metric)
        summary = Summary(line.mean, line.std, line.seeds)
        assert (line.interval_low, line.interval_high) == student_interval(summary, bounded)
        assert (line.seeds, line.seeds_asked) == (2, 2)
    gain = printed("a@time - b", "ece")
    assert (gain.mean, gain.interval_low, gain.interval_high, gain.seeds) == (0.02, -0.01, 0.05, 3) and gain[1] != gain[
        1
    ]
    half = printed("calimatch-val150", "auroc")
    assert (half.seeds, half.seeds_asked) == (1, 2) and math.isnan(half.interval_low)
    for line in (printed("nobody", "acc"), printed("safeecgmatch@time - calimatch", "acc")):
        assert (line.seeds, line.seeds_asked) == (0, 0) and math.isnan(line.mean) and math.isnan(line.interval_high)
