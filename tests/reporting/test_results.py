from __future__ import annotations

import math

import pandas as pd

from safeecgmatch.reporting.render import number
from safeecgmatch.reporting.results import Results
from tests.reporting.conftest import Study


def test_a_gain_is_found_whichever_way_round_it_was_written(study: Study) -> None:
    line = {
        "dataset": "ptbxl", "ood": 60, "metric": "ece", "scaling": "none", "candidate": "a@time", "rival": "b",
        "estimate": 0.02, "low": -0.01, "high": 0.05, "seeds": 3,
    }  # fmt: skip
    results = Results(study.evaluation.metrics, study.evaluation.runs, pd.DataFrame([line]))
    found, turned = (results.gain("ptbxl", 60, pair, "ece") for pair in (("a@time", "b"), ("b", "a@time")))
    assert found.summary and found.summary.mean == 0.02 and found.interval == (-0.01, 0.05)
    assert turned.summary and turned.summary.mean == -0.02 and turned.interval == (-0.05, 0.01)
    assert [number(value, "md") for value in (found, turned)] == ["+0.020 [-0.010, +0.050]", "-0.020 [-0.050, +0.010]"]
    assert number(turned, "tex") == "$-$0.020 [$-$0.050, +0.010]"
    missing = results.gain("ptbxl", 30, ("a@time", "b"), "ece")
    assert missing.summary is None and all(math.isnan(end) for end in missing.interval)
    assert number(missing, "md") == "–"
