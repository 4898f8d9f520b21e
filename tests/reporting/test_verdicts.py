from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from safeecgmatch.reporting.claims import Claims
from safeecgmatch.reporting.contrasts import contrast_frame
from safeecgmatch.reporting.figures.gains import RELATIONS, forest_marks
from safeecgmatch.reporting.study import Study
from safeecgmatch.reporting.verdicts import Judgement, claims_frame, evidence_frame, judge
from tests.reporting.planted import (
    BASELINES,
    CLAIMS,
    OTHERS,
    ROWS,
    SETTINGS,
    only,
    planted_study,
    printed_rows,
    purity_metrics,
)
from tests.reporting.synthetic import make_params, paper_params

OWN = [row for row in ROWS if "@" in row]
WEIGHTS = [row for row in OTHERS if "lambda" in row]
TIES, FEW = 100, 20  # studies: with nothing to be found, and with something
MOST = 0.9 * FEW
BY_CHANCE = (0.05 + 3 * np.sqrt(0.05 * 0.95 / TIES)) * TIES


def first_reading(*names: str) -> Claims:
    first = {"fitted_fused": CLAIMS.readings["paper"]["fitted_fused"]}
    return only(*names).model_copy(update={"readings": {"paper": first}})


def verdicts(name: str, rows: list[str], gains: dict, studies: int = FEW, **options: object) -> Counter[str]:
    """How often a claim gets which verdict under its first reading, over studies with the same planted truth."""
    rng = np.random.default_rng(list(f"{name} {sorted(gains)} {sorted(options)}".encode()))
    claims = first_reading(name)
    settings = {
        (s.dataset, s.ood) for c in claims.claims[name].tests for s in map(claims.settings.get, c.settings) if s
    }
    return Counter(
        judge(planted_study(rng, gains, rows, sorted(settings), **options), claims)[0].readings[0].verdict  # type: ignore[arg-type]
        for _ in range(studies)
    )


def own(**gains: float) -> dict[str, dict[str, float]]:
    return dict.fromkeys(OWN, gains)


@pytest.mark.parametrize("name", ["C2", "C5", "C8"])
def test_planted_gains_are_found_and_none_is_found_where_there_is_none(name: str) -> None:
    rows = ["safeecgmatch@fused", "calimatch", "scomatch"]
    assert verdicts(name, rows, own(acc=0.06, ece=0.06))["supported"] >= MOST
    tie = verdicts(name, rows, {}, TIES)
    assert tie["supported"] <= BY_CHANCE
    loss = verdicts(name, rows, own(acc=-0.06, ece=-0.06))
    assert loss["refuted"] >= MOST and loss["supported"] == 0


def test_a_gain_in_accuracy_that_costs_calibration_is_no_better_tradeoff() -> None:
    rows = ["safeecgmatch@fused", "calimatch"]
    traded = verdicts("C5", rows, own(acc=0.06, ece=-0.06))
    assert traded["refuted"] >= MOST and traded["supported"] == 0


def test_no_verdict_where_the_spread_is_large() -> None:
    rows = ["safeecgmatch@fused", "calimatch", "scomatch"]
    unclear = verdicts("C2", rows, own(acc=0.01, ece=0.01), of_seeds=0.03)
    assert unclear["inconclusive"] >= MOST


def test_equivalence_is_found_for_ties_and_not_at_the_margin() -> None:
    rows = ["safeecgmatch@fused", *WEIGHTS]
    assert verdicts("C9", rows, {}, of_seeds=0.001, of_records=0.001)["supported"] >= MOST
    at_margin = dict.fromkeys(WEIGHTS, 0.01)
    assert verdicts("C9", rows, at_margin, TIES, of_seeds=0.001, of_records=0.001)["supported"] <= BY_CHANCE
    beyond = dict.fromkeys(WEIGHTS, 0.05)
    assert verdicts("C9", rows, beyond, of_seeds=0.001, of_records=0.001)["refuted"] >= MOST


def test_best_and_second_best() -> None:
    rows, studies, gains = [*BASELINES, "safeecgmatch@fused"], 8, own(acc=0.06, ece=0.06)
    assert verdicts("C11", rows, gains, studies)["supported"] >= studies - 1
    assert verdicts("C1", rows, own(acc=-0.1, ece=-0.1), studies)["refuted"] >= studies - 1
    ahead = {"adello": 0.5, **gains}
    assert verdicts("C1", rows, ahead, studies)["supported"] >= studies - 1
    assert verdicts("C11", rows, ahead, studies)["refuted"] >= studies - 1


def test_if_table_3_were_the_truth() -> None:
    """Three seeds with its means and spreads: hardly a claim could be supported, and none is refuted beyond chance."""
    names = ("C1", "C2", "C5", "C8", "C11")
    rng, claims, studies = np.random.default_rng(0), first_reading(*names), 30
    found, holds = Counter(), Counter()
    for _ in range(studies):
        drawn = {setting: printed_rows(rng, *setting) for setting in SETTINGS}
        study = Study(paper_params(), purity_metrics({}), pd.DataFrame(), contrast_frame(drawn))
        for judged in judge(study, claims):
            found[judged.id, judged.readings[0].verdict] += 1
            for one in judged.readings[0].results:
                key = (judged.id, one.check.metric, one.setting.dataset, one.setting.ood)
                holds[key] += one.check.scaling == "none" and one.outcome(0.05) == "holds"
    chance = studies * (0.05 + 3 * np.sqrt(0.05 * 0.95 / studies))
    assert all(found[name, "refuted"] <= chance for name in names)
    assert all(found[name, "supported"] <= 1 for name in ("C1", "C11"))
    assert holds["C1", "ece", "ptbxl", 60] > 0.3 * studies > holds["C11", "ece", "ptbxl", 60]


def test_harm_of_unseen_records_on_one_dataset_is_enough() -> None:
    rows = ["supervised", "fixmatch", "fixmatch-seen_pool"]
    assert verdicts("C12", rows, {"fixmatch": -0.06})["supported"] >= MOST
    assert verdicts("C12", rows, {"fixmatch-seen_pool": 0.06})["supported"] >= MOST
    assert verdicts("C12", rows, {"fixmatch": 0.06})["refuted"] >= MOST
    assert verdicts("C12", rows, {}, TIES)["supported"] <= BY_CHANCE


def test_fewer_validation_labels() -> None:
    arms = ["fixmatch-val150", "calimatch-val150", "safeecgmatch-val150@fused"]
    rows = ["fixmatch", "calimatch", "safeecgmatch@fused", *arms]
    tight = {"of_seeds": 0.0008, "of_records": 0.0004}
    assert verdicts("C10", rows, {}, **tight)["supported"] >= MOST
    assert verdicts("C10", rows, {arms[1]: -0.05}, **tight)["refuted"] >= MOST
    assert verdicts("C10", rows, {arms[1]: {"ece": -0.01}}, TIES, **tight)["supported"] <= BY_CHANCE


def test_an_ablation_is_judged_under_both_temperature_rules() -> None:
    rows = [*OWN, *OTHERS]
    gains = own(acc=0.06, ece=0.06) | {f"safeecgmatch-learned_no_freq_cal@{b}": 0.12 for b in ("fused", "time")}
    gains |= {f"safeecgmatch-learned_two_time@{b}": 0.12 for b in ("fused", "time")}
    found = judged(planted_study(np.random.default_rng(5), gains, rows), "C6", "C7")
    words = {name: [(v.reading.text, v.verdict) for v in one.readings] for name, one in found.items()}
    assert [word for _, word in words["C6"]] == ["supported", "supported", "refuted", "refuted"]
    assert words["C7"] == [
        ("fitted temperatures, fused prediction", "supported"),
        ("learned temperatures, fused prediction", "refuted"),
    ]
    assert found["C7"].reading == "fitted temperatures, fused prediction"


def test_a_claim_that_needs_one_setting_fails_on_the_datasets_of_the_study() -> None:
    small = paper_params(grid={"datasets": ["ptbxl"]})
    settings = [("ptbxl", 60)]
    rows = ["supervised", "fixmatch", "fixmatch-seen_pool"]
    study = planted_study(np.random.default_rng(0), {"fixmatch": 0.1}, rows, settings, params=small)
    found = judged(study, "C12")["C12"]
    assert found.verdict == "refuted" and found.size == "PTB-XL alone"
    half = planted_study(np.random.default_rng(0), {"fixmatch": 0.1}, rows[:2], settings, params=small)
    assert judged(half, "C12")["C12"].verdict == "inconclusive"


def judged(study: Study, *names: str) -> dict[str, Judgement]:
    return {judgement.id: judgement for judgement in judge(study, only(*names) if names else None)}


def pure(shares: list[float]) -> dict[tuple[str, int], list[float]]:
    return {
        (dataset, ood): [share * ood / 100 for share in shares] for dataset in ("ptbxl", "cinc21") for ood in (30, 60)
    }


@pytest.mark.parametrize(
    ("shares", "gain", "verdict"),
    [([0.5, 0.52, 0.48], 0.1, "supported"), ([1.2, 1.22, 1.18], 0.1, "refuted"), ([0.5, 0.5, 0.51], -0.1, "refuted"),
     ([0.98, 0.985, 0.99], 0.1, "refuted"), ([0.6, 1.0, 1.4], 0.1, "inconclusive"), ([], 0.1, "inconclusive")],
)  # fmt: skip
def test_filtering_needs_pure_selection_and_a_better_score(shares: list[float], gain: float, verdict: str) -> None:
    rows = [*OWN, *(f"{row}#msp" for row in OWN)]
    study = planted_study(np.random.default_rng(3), own(auroc=gain), rows, purity=pure(shares))
    assert judged(study, "C4")["C4"].verdict == verdict


def test_a_claim_that_holds_under_one_reading_says_which_and_is_not_refuted() -> None:
    rows = [*OWN, "calimatch", "scomatch"]
    gains = {**own(acc=-0.06, ece=-0.06), "safeecgmatch@time": {"acc": 0.1, "ece": 0.1}}
    found = judged(planted_study(np.random.default_rng(1), gains, rows), "C2")["C2"]
    assert found.verdict == "supported" and found.reading == "fitted temperatures, time branch"
    refuted = "Fitted temperatures, fused prediction: refuted. PTB-XL 60 %: gain in ACC"
    assert refuted in found.evidence and "Learned temperatures, time branch: refuted." in found.evidence
    everywhere = judged(planted_study(np.random.default_rng(1), own(acc=-0.1, ece=-0.1), rows), "C2")["C2"]
    assert everywhere.verdict == "refuted" and everywhere.reading == "all readings"
    without = [row for row in rows if "learned_t" not in row]
    partly = judged(planted_study(np.random.default_rng(1), own(acc=-0.1, ece=-0.1), without), "C2")["C2"]
    assert partly.verdict == "inconclusive" and "time branch: not tested. PTB-XL 60 %" in partly.evidence


def test_one_seed_no_rival_or_no_run_is_no_verdict() -> None:
    rng = np.random.default_rng(2)
    one = judged(planted_study(rng, own(acc=0.3, ece=0.3), seeds=1))
    assert {one[name].verdict for name in ("C1", "C2", "C5", "C8", "C11", "C12")} == {"not tested"}
    assert "Fewer than 2 common seeds" in one["C2"].evidence
    alone = judged(planted_study(rng, own(acc=0.3, ece=0.3), OWN))
    assert {alone[name].verdict for name in ("C1", "C2", "C5", "C6", "C7", "C11")} == {"not tested"}
    fewer = judged(planted_study(rng, own(acc=0.3, ece=0.3), [row for row in ROWS if row != "adello"]), "C1")["C1"]
    assert fewer.verdict == "not tested" and "Only 11 of 12 methods" in fewer.evidence


def test_generated_data_get_audits_and_no_verdict() -> None:
    generated = judged(planted_study(np.random.default_rng(4), own(acc=0.3, ece=0.3), params=make_params()))
    assert {name for name, found in generated.items() if found.verdict != "not tested"} == {"C3"}
    assert generated["C3"].verdict == "refuted" and "CompleMatch has 0.786" in generated["C3"].evidence
    assert "Generated data, no verdict" in generated["C5"].evidence and "0 of 16 columns" in generated["C5"].evidence
    assert all(not found.size for found in generated.values())


def test_a_smaller_study_on_real_data_is_marked_with_its_size_and_power() -> None:
    shorter = {**paper_params().train.model_dump(), "iterations": 2000}
    small = paper_params(grid={"datasets": ["ptbxl"], "seeds": [1, 2, 3]}, model={"width": 16}, train=shorter)
    settings = [("ptbxl", 30), ("ptbxl", 60)]
    study = planted_study(np.random.default_rng(6), own(acc=0.01), settings=settings, params=small, of_seeds=0.02)
    found = judged(study)
    assert found["C2"].verdict == "inconclusive" and "power 0." in found["C2"].evidence
    assert found["C2"].size == "PTB-XL: width 16, 2,000 iterations" and found["C3"].size == ""
    assert found["C5"].size == "PTB-XL alone: width 16, 2,000 iterations"
    better = judged(planted_study(np.random.default_rng(6), own(acc=0.2, ece=0.2), settings=settings, params=small))
    assert better["C8"].verdict == "supported"
    assert better["C1"].verdict == "inconclusive"  # two of four settings cannot support a claim about four
    full = judged(planted_study(np.random.default_rng(6), own(acc=0.2, ece=0.2)))
    assert full["C1"].verdict == "supported" and full["C1"].size == ""


def test_primary_claims_are_corrected_for_each_other() -> None:
    rng = np.random.default_rng(8)
    study = planted_study(rng, own(acc=0.03, ece=0.03), [*OWN, *OTHERS, "calimatch", "scomatch"])
    alone, together = judged(study, "C2")["C2"], judged(study)["C2"]
    for single, family in zip(alone.readings, together.readings, strict=True):
        assert family.p_support >= single.p_support
    assert any(f.p_support > s.p_support for s, f in zip(alone.readings, together.readings, strict=True))


def test_frames_hold_every_claim_and_comparison() -> None:
    study = planted_study(np.random.default_rng(9), {})
    found = judge(study)
    frame = claims_frame(found)
    assert frame["id"].tolist() == [f"C{number}" for number in range(1, 14)]
    assert frame["evidence"].str.len().min() > 20 and not frame["claim"].str.contains(r"[\\$]").any()
    evidence = evidence_frame(found)
    assert set(evidence["outcome"]) <= {"holds", "fails", "open", "absent"}
    assert evidence.loc[evidence["outcome"] == "absent", "absent"].str.len().min() > 0
    forest = forest_marks(study)
    assert len(forest) == 4 * 4 * 11 * 2 and (forest["low"] <= forest["estimate"]).all()
    assert set(forest["colour"]) <= set(RELATIONS.values())
