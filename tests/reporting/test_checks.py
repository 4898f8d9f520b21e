"""Every rule kind exactly: p values by scipy's own distributions, at effects near the border."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from safeecgmatch.reporting.checks import CheckResult, check_in, row_label
from safeecgmatch.reporting.claims import Check
from safeecgmatch.reporting.contrasts import CONTRAST_COLUMNS, placebo
from safeecgmatch.reporting.evaluate import METRIC_COLUMNS
from safeecgmatch.reporting.study import Study
from safeecgmatch.reporting.verdicts import judge
from tests.reporting.planted import CLAIMS, only, purity_metrics
from tests.reporting.synthetic import BASELINES, paper_params

FITTED, LEARNED = (CLAIMS.readings["paper"][name] for name in ("fitted_fused", "learned_fused"))
SE, SEEDS, M = 0.004, 3, 0.01
ME = "safeecgmatch@fused"
STUDIES = 300
BY_CHANCE = STUDIES * (0.05 + 3 * math.sqrt(0.05 * 0.95 / STUDIES))
NEAR = [-0.03, -0.017, -0.01, -0.004, 0.0, 0.004, 0.0095, 0.012, 0.0172, 0.028, 0.05]


def above(estimate: float, value: float) -> float:
    """One-sided p of "more than `value`" with two degrees of freedom."""
    return float(stats.t.sf((estimate - value) / SE, SEEDS - 1))


def below(estimate: float, value: float) -> float:
    return float(stats.t.cdf((estimate - value) / SE, SEEDS - 1))


def line(estimate: float, rival: str, metric: str = "acc", scaling: str = "none", **changes: object) -> dict:
    known = {
        "dataset": "ptbxl", "ood": 60, "metric": metric, "scaling": scaling, "candidate": ME, "rival": rival,
        "seeds": SEEDS, "records": 1331, "estimate": estimate, "se_seeds": SE, "se_records": 0.0,
    }  # fmt: skip
    return known | changes


def study_of(*lines: dict, metrics: pd.DataFrame | None = None) -> Study:
    contrasts = pd.DataFrame(lines, columns=CONTRAST_COLUMNS)
    return Study(paper_params(), purity_metrics({}) if metrics is None else metrics, pd.DataFrame(), contrasts)


def checked(study: Study, kind: str, metric: str = "acc", **options: object) -> CheckResult:
    check = Check.model_validate(
        {"kind": kind, "metric": metric, "settings": ["ptbxl_60"], "scaling": "none", **options}
    )
    return check_in(study, CLAIMS, check, CLAIMS.settings["ptbxl_60"], FITTED)


def test_the_border_lies_within_the_tried_effects() -> None:
    """Otherwise a wrong factor would change no outcome."""
    for kind, margin in (("superior", 0.0), ("noninferior", -M)):
        outcomes = [checked(study_of(line(d, "calimatch")), kind, rival="calimatch").outcome(0.05) for d in NEAR]
        assert set(outcomes) == {"holds", "open", "fails"}, margin


@pytest.mark.parametrize("estimate", NEAR)
def test_one_difference(estimate: float) -> None:
    study = study_of(line(estimate, "calimatch"))
    expected = {
        "superior": (2 * above(estimate, 0), 2 * below(estimate, M)),
        "noninferior": (2 * above(estimate, -M), 2 * below(estimate, -M)),
        "equivalent": (
            max(above(estimate, -M), below(estimate, M)),
            2 * min(above(estimate, M), below(estimate, -M)),
        ),
    }
    for kind, (hold, fail) in expected.items():
        found = checked(study, kind, rival="calimatch")
        assert (found.p_hold, found.p_fail) == pytest.approx((min(1, hold), min(1, fail))), kind
        assert (found.seeds, found.records, found.parts[0].estimate) == (SEEDS, 1331, estimate)
    own = checked(study, "superior", rival="calimatch", margin=0.0073)
    assert own.p_fail == pytest.approx(min(1, 2 * below(estimate, 0.0073)))
    half = stats.t.ppf(0.975, SEEDS - 1) * SE
    assert (own.parts[0].low, own.parts[0].high) == pytest.approx((estimate - half, estimate + half))
    turned = study_of(line(estimate, ME, candidate="calimatch"))
    assert checked(turned, "superior", rival="calimatch").p_hold == pytest.approx(min(1, 2 * above(-estimate, 0)))


def test_both_parts_of_the_spread_count_with_their_own_quantile() -> None:
    found = checked(study_of(line(0.02, "calimatch", se_records=0.003)), "superior", rival="calimatch")
    p = found.p_hold / 2
    assert math.hypot(stats.t.isf(p, SEEDS - 1) * SE, stats.norm.isf(p) * 0.003) == pytest.approx(0.02)


@pytest.mark.parametrize("estimate", NEAR)
def test_score_is_superior_in_auroc_to_the_maximum_probability(estimate: float) -> None:
    found = checked(study_of(line(estimate, f"{ME}#msp", "auroc")), "score", "auroc")
    assert found.p_hold == pytest.approx(min(1, 2 * above(estimate, 0)))
    assert found.p_fail == pytest.approx(min(1, 2 * below(estimate, M)))
    assert found.rival == f"{ME}#msp"


@pytest.mark.parametrize("acc", NEAR[::2])
@pytest.mark.parametrize("ece", NEAR)
def test_tradeoff(acc: float, ece: float) -> None:
    found = checked(study_of(line(acc, "calimatch"), line(ece, "calimatch", "ece")), "tradeoff", "", rival="calimatch")
    ways = [max(above(acc, 0), above(ece, -M)), max(above(ece, 0), above(acc, -M))]
    losses = [below(acc, -M), below(ece, -M), max(below(acc, M), below(ece, M))]
    assert found.p_hold == pytest.approx(min(1, 2 * 2 * min(ways)))
    assert found.p_fail == pytest.approx(min(1, 2 * 3 * min(losses)))


@pytest.mark.parametrize("but", [0, 1])
@pytest.mark.parametrize(("first", "second"), [(-0.045, -0.042), (-0.045, 0.02), (0.011, 0.004), (0.02, 0.03)])
def test_best_and_top_two(but: int, first: float, second: float) -> None:
    """CompleMatch and Adello are ahead or nearest; a method that the paper does not have is no rival."""
    gains = dict.fromkeys(BASELINES, 0.08) | {"complematch": first, "adello": second}
    lines = [line(gain, rival) for rival, gain in gains.items()]
    study = study_of(*lines, line(-0.5, "thirteenth"))
    found = checked(study, "best", but=but)
    hold, fail = (sorted(2 * side(gain, -M) for gain in gains.values()) for side in (above, below))
    assert found.p_hold == pytest.approx(min(1, hold[-1 - but]))
    assert found.p_fail == pytest.approx(min(1, (11 - but) * fail[but]))
    assert found.rival == sorted(("complematch", "adello"), key=gains.__getitem__)[but]
    missing = study_of(*lines[1:], line(0.5, "thirteenth"))
    assert checked(missing, "best", but=but).absent == "only 11 of 12 methods have 2 common seeds"
    one_seed = study_of(*lines[1:], lines[0] | {"seeds": 1})
    assert checked(one_seed, "best", but=but).absent == "only 11 of 12 methods have 2 common seeds"


@pytest.mark.parametrize("but", [0, 1])
def test_who_is_behind_by_the_margin_is_seldom_called_best(but: int) -> None:
    """At the border: one more method than allowed is better by exactly the margin, all others are far behind."""
    rng, found = np.random.default_rng(but), []
    far = [line(0.3, rival) for rival in BASELINES[but + 1 :]]
    for _ in range(STUDIES):
        seeds = rng.normal(-M, SE * math.sqrt(SEEDS), (but + 1, SEEDS))
        spreads = seeds.std(axis=1, ddof=1) / math.sqrt(SEEDS)
        near = [
            line(float(values.mean()), rival, se_seeds=float(spread))
            for values, spread, rival in zip(seeds, spreads, BASELINES, strict=False)
        ]
        found.append(checked(study_of(*near, *far), "best", but=but).outcome(0.05))
    assert found.count("holds") <= BY_CHANCE and found.count("fails") <= BY_CHANCE


def test_a_selection_just_at_the_least_effect_is_seldom_called_pure_or_impure() -> None:
    rng, found = np.random.default_rng(11), []
    for _ in range(STUDIES):
        metrics = purity_metrics({("ptbxl", 60): list(rng.normal(0.55, 0.02, 3))})
        found.append(checked(study_of(metrics=metrics), "purity", "accepted_unseen", margin=0.05).outcome(0.05))
    assert found.count("holds") <= BY_CHANCE and found.count("fails") <= BY_CHANCE


@pytest.mark.parametrize("shares", [[0.46, 0.47, 0.48], [0.5, 0.52, 0.54], [0.54, 0.55, 0.565], [0.56, 0.57, 0.575]])
def test_purity_is_five_points_below_the_pool(shares: list[float]) -> None:
    study = study_of(metrics=purity_metrics({("ptbxl", 60): shares}))
    found = checked(study, "purity", "accepted_unseen", margin=0.05)
    mean, spread = np.mean(shares), np.std(shares, ddof=1) / math.sqrt(3)
    score = (math.log(mean / (1 - mean)) - math.log(0.55 / 0.45)) / (spread / (mean * (1 - mean)))
    assert found.p_hold == pytest.approx(min(1, 2 * stats.t.cdf(score, 2)))
    assert found.p_fail == pytest.approx(min(1, 2 * stats.t.sf(score, 2)))
    assert max(found.p_hold, found.p_fail) == 1  # neither is more than certain
    assert found.seeds == 3


def test_other_weights_variants_and_arms_are_no_seeds_of_the_main_run() -> None:
    frame = purity_metrics({("ptbxl", 60): [0.40, 0.41, 0.42]})
    main = frame[frame["row"] == "safeecgmatch"]
    tags = ("lambda_1/3", "lambda_3", "no_cal", "val150", "two_time")
    others = [main.assign(row=f"safeecgmatch-{tag}", value=0.9) for tag in tags]
    elsewhere = [main.assign(dataset="cinc21", value=0.9), main.assign(ood=30, value=0.9), main.assign(counted=False)]
    calimatch = main.assign(row="calimatch", method="calimatch", value=0.9)
    study = study_of(metrics=pd.concat([frame, *others, *elsewhere, calimatch], ignore_index=True))
    found = checked(study, "purity", "accepted_unseen", margin=0.05)
    assert found.seeds == 3 and found.parts[0].estimate == pytest.approx(0.41)


def test_placebo_and_floor_are_printed_beside_a_difference() -> None:
    noise = [line(0.0035, placebo(rule)[1], "ece", candidate=placebo(rule)[0]) for rule in ("", "learned_")]
    noise[1]["estimate"] = -0.0055
    known = {"dataset": "ptbxl", "ood": 60, "scaling": "none", "metric": "ece_floor", "counted": True}
    floors = [
        {**known, "branch": branch, "value": value, "row": method, "seed": seed, "reported": branch != "time"}
        for method, branch, seed, value in (
            ("safeecgmatch", "fused", 1, 0.02), ("safeecgmatch", "fused", 2, 0.03), ("safeecgmatch", "time", 1, 0.5),
            ("calimatch", "main", 1, 0.7),
        )
    ]  # fmt: skip
    learned = line(0.01, "calimatch", "ece", candidate="safeecgmatch-learned_t@fused")
    lines = [line(0.01, "calimatch", "ece"), learned, *noise]
    study = study_of(*lines, metrics=pd.DataFrame(floors, columns=METRIC_COLUMNS))
    found = checked(study, "superior", "ece", rival="calimatch")
    assert found.parts[0].placebo == 0.0035 and found.parts[0].floor == pytest.approx(0.025)
    assert "(placebo +0.004, floor 0.025) over CaliMatch" in found.sentence
    check = Check(kind="superior", metric="ece", rival="calimatch", scaling="none", settings=["ptbxl_60"])
    other = check_in(study, CLAIMS, check, CLAIMS.settings["ptbxl_60"], LEARNED)
    assert other.parts[0].placebo == -0.0055 and math.isnan(other.parts[0].floor)


def four(gains: list[float]) -> Study:
    """FixMatch's losses against the pool without unseen records and against Supervised, on both datasets."""
    rivals = ("fixmatch-seen_pool", "fixmatch", 1), ("fixmatch", "supervised", -1)
    places = [(dataset, pair) for pair in rivals for dataset in ("ptbxl", "cinc21")]
    return study_of(
        *(
            line(sign * gain, rival, dataset=dataset, candidate=candidate)
            for gain, (dataset, (candidate, rival, sign)) in zip(gains, places, strict=True)
        )
    )


def test_any_of_four_counts_the_smallest_p_four_times() -> None:
    gains = [0.004, 0.031, -0.02, 0.0]
    found = judge(four(gains), only("C12"))[0].readings[0]
    assert found.p_support == pytest.approx(4 * 2 * above(0.031, 0)) and 0.05 < found.p_support < 0.2
    assert found.p_refute == pytest.approx(min(1, max(2 * below(gain, M) for gain in gains)))
    lost = judge(four([-0.03, -0.02, -0.04, -0.009]), only("C12"))[0]
    assert lost.readings[0].p_refute == pytest.approx(2 * below(-0.009, M)) and lost.verdict == "refuted"
    assert "pool without unseen records" in judge(four([0.1, 0, 0, 0]), only("C12"))[0].evidence


def test_all_takes_the_largest_p_and_refutes_by_bonferroni() -> None:
    lines = [line(0.02, "scomatch"), line(0.03, "calimatch", "ece"), line(-0.2, "calimatch", "ece", "posthoc")]
    found = judge(study_of(*lines), only("C2"))[0].readings[0]
    assert found.p_support == pytest.approx(2 * above(0.02, 0))  # what is described decides nothing
    assert found.p_refute == pytest.approx(1)
    lines[0]["estimate"] = -0.004
    refuted = judge(study_of(*lines), only("C2"))[0].readings[0]
    assert refuted.p_refute == pytest.approx(min(1, 2 * 2 * below(-0.004, 0.0073))) and refuted.p_refute < 1


def test_ece_is_judged_as_trained_and_after_scaling() -> None:
    ece = Check(kind="best", metric="ece", settings=["ptbxl_60"])
    assert [check.scaling for check in ece.scaled] == ["none", "posthoc"]
    assert [check.scaling for check in Check(kind="tradeoff", settings=[]).scaled] == ["none", "posthoc"]
    assert [check.scaling for check in Check(kind="superior", metric="acc", settings=[]).scaled] == ["none"]
    assert [c.scaling for c in Check(kind="superior", metric="ece", scaling="posthoc", settings=[]).scaled] == [
        "posthoc"
    ]
    lines = [line(0.05, "calimatch", ood=30), line(0.0, "calimatch", "ece", ood=30)]
    half = judge(study_of(*lines), only("C8"))[0].readings[0]
    assert math.isnan(half.p_support)
    lines.append(line(-0.05, "calimatch", "ece", "posthoc", ood=30))
    whole = judge(study_of(*lines), only("C8"))[0].readings[0]
    assert whole.p_refute == pytest.approx(3 * 2 * below(-0.05, -M)) and whole.verdict == "refuted"


def test_rows_in_words() -> None:
    assert row_label("safeecgmatch-lambda_1/3@fused") == "lambda_sum = 1/3 (fused)"
    assert row_label("fixmatch-seen_pool") == "FixMatch with a pool without unseen records"
    assert row_label("safeecgmatch-val150@time") == "SafeECGMatch with 150 validation labels (time)"
    assert row_label("safeecgmatch-learned_two_time@freq#own").startswith("two time branches, temperatures learned")
