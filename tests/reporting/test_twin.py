from __future__ import annotations

from pathlib import Path

import numpy as np

from safeecgmatch.predictions import own_best, predictions_at, read_arrays
from safeecgmatch.profiles import compose_params
from safeecgmatch.reporting.catalogue import build_tables
from safeecgmatch.reporting.evaluate import evaluate
from safeecgmatch.reporting.rows import effect_rows, methods
from safeecgmatch.reporting.tables import DERIVED_NOTE
from safeecgmatch.reporting.twin import is_derived
from tests.conftest import ROOT
from tests.reporting.synthetic import make_params, write_study


def test_long_has_calimatch_by_its_twin_and_cpu_by_itself() -> None:
    long, cpu = compose_params("long", ROOT / "profiles"), compose_params("cpu", ROOT / "profiles")
    assert is_derived(long) and not is_derived(cpu)
    assert methods(long) == ["fixmatch", "scomatch", "calimatch", "safeecgmatch"]
    assert not is_derived(long.model_copy(update={"protocol": "release"}))
    assert "safeecgmatch@time - calimatch" in [row.key for row in effect_rows(long)]


def test_calimatch_is_the_time_branch_of_learned_t_at_its_own_best_epoch(tmp_path: Path) -> None:
    params = make_params(
        grid={"datasets": ["ptbxl"], "methods": ["fixmatch"], "ood_levels": [60]},
        readings=["learned_t"], ablation={"datasets": []}, sensitivity={"datasets": []},
    )  # fmt: skip
    write_study(params, tmp_path, records=60)
    result = evaluate(params, tmp_path / "runs", tmp_path / "tracking")
    lines = result.metrics[result.metrics["row"] == "calimatch"]
    assert set(lines["role"]) == {"main"} and set(lines["branch"]) == {"main", "all"} and lines["counted"].all()
    folder = tmp_path / "runs" / "ptbxl" / "safeecgmatch-learned_t" / "60"
    for seed in (1, 2):
        predictions = read_arrays(folder / str(seed) / "predictions.npz")
        trajectory = read_arrays(folder / str(seed) / "trajectory.npz")
        then = predictions_at(predictions, trajectory, own_best(predictions, trajectory, "time"))
        right = then["test.log_probs.time"].argmax(axis=1) == then["test.label"]
        here = lines[(lines["seed"] == seed) & (lines["metric"] == "acc") & (lines["scaling"] == "none")]
        assert here["value"].tolist() == [right.mean()] and here["reported"].all()
    assert "calimatch" not in set(result.runs["row"])  # nobody trained it
    contrasts = result.contrasts
    assert "safeecgmatch@fused" in set(contrasts.loc[contrasts["rival"] == "calimatch", "candidate"])
    budget = result.plots["budget"]
    time = budget[(budget["row"] == "safeecgmatch-learned_t") & (budget["branch"] == "time")]
    assert budget.loc[budget["row"] == "calimatch", "acc"].tolist() == time["acc"].tolist()
    facts = lines[(lines["scaling"] == "training") & (lines["seed"] == 1)].set_index("metric")["value"]
    assert "t_class" in facts and "accepted_second" not in facts and not np.isnan(facts["accepted"])
    table = {table.name: table for table in build_tables(result)}
    assert DERIVED_NOTE in table["table3_benchmark"].notes
    frame = table["table3_benchmark"].frame().set_index(["row", "metric"])
    assert frame.loc[("calimatch", "acc"), "seeds"] == frame.loc[("calimatch", "acc"), "seeds_asked"] == 2
