from __future__ import annotations

import pandas as pd

from safeecgmatch.reporting.results import Gain, Results
from safeecgmatch.reporting.statistics import Summary, student_interval, summarise
from tests.reporting.conftest import Study

LINE = {
    "dataset": "ptbxl", "ood": 60, "metric": "ece", "scaling": "none", "candidate": "a@time", "rival": "b",
    "estimate": 0.02, "low": -0.01, "high": 0.05, "seeds": 3,
}  # fmt: skip


def test_a_gain_is_found_whichever_way_round_it_was_written(study: Study) -> None:
    results = Results(study.evaluation.metrics, study.evaluation.runs, pd.DataFrame([LINE]))
    assert results.gain("ptbxl", "a@time - b", 60, "ece") == Gain(0.02, -0.01, 0.05)
    assert results.gain("ptbxl", "b - a@time", 60, "ece") == Gain(-0.02, -0.05, 0.01)
    assert results.gain("ptbxl", "a@time - b", 30, "ece") is None


def test_a_row_is_its_reported_prediction_and_a_branch_is_named(study: Study) -> None:
    metrics = study.evaluation.metrics
    results = Results(metrics, study.evaluation.runs, study.evaluation.contrasts)
    here = metrics[(metrics["dataset"] == "cinc21") & (metrics["ood"] == 30) & (metrics["row"] == "safeecgmatch")]
    here = here[(here["metric"] == "nll") & (here["scaling"] == "posthoc")]
    for row, chosen in (("safeecgmatch", here["reported"]), ("safeecgmatch@time", here["branch"] == "time")):
        by_seed = here[chosen].set_index("seed")["value"].to_dict()
        assert results.by_seed("cinc21", row, 30, "nll", "posthoc") == by_seed and list(by_seed) == [1, 2]
        assert results.value("cinc21", row, 30, "nll", "posthoc") == summarise(list(by_seed.values()))
    assert results.value("cinc21", "nobody", 30, "nll") is None and results.by_seed("cinc21", "nobody", 30, "nll") == {}
    assert results.branches["safeecgmatch"] == ["freq", "fused", "time"] and results.branches["fixmatch"] == ["main"]


def test_values_have_intervals_and_the_seeds_that_were_asked_for(study: Study) -> None:
    """Within [0, 1] but for NLL and the like; a gain has its own; what nobody ran has no seed."""
    wanted = pd.DataFrame(
        [
            ("ptbxl", "fixmatch", 60, "acc", "none"),
            ("ptbxl", "fixmatch", 60, "nll", "none"),
            ("ptbxl", "a@time - b", 60, "ece", "none"),
            ("ptbxl", "nobody", 60, "acc", "none"),
            ("ptbxl", "calimatch-val150", 60, "auroc", "none"),
            ("ptbxl", "safeecgmatch@time - calimatch", 60, "acc", "none"),
        ],
        columns=["dataset", "row", "ood", "metric", "scaling"],
    )
    runs, gone = study.evaluation.runs, study.evaluation.metrics["cell"] != "ptbxl/calimatch-val150/60/2"
    found = Results(study.evaluation.metrics[gone], runs, pd.DataFrame([LINE])).values_of(wanted)
    assert found["seeds"].tolist() == [2, 2, 3, 0, 1, 0] and found["seeds_asked"].tolist() == [2, 2, 3, 0, 2, 0]
    intervals = list(zip(found["interval_low"], found["interval_high"], strict=True))
    for line, bounded in ((0, True), (1, False)):
        summary = Summary(*found.loc[line, ["mean", "std", "seeds"]])
        assert intervals[line] == student_interval(summary, bounded)
    assert intervals[2] == (-0.01, 0.05) and found.loc[3:, ["interval_low", "interval_high"]].isna().all(axis=None)
