from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_yaml
from safeecgmatch.reporting.audits import AUDITS
from safeecgmatch.reporting.claims import FILE, load_claims, rule_note, seed_note
from safeecgmatch.reporting.contrasts import MEASURES, wanted_pairs
from safeecgmatch.reporting.names import FILE as NAMES
from safeecgmatch.reporting.published import benchmark_methods
from safeecgmatch.reporting.study import FRAMES, Study
from safeecgmatch.reporting.verdicts import notes
from tests.reporting.planted import BASELINES, CLAIMS, OTHERS, ROWS
from tests.reporting.synthetic import make_params


@pytest.mark.real
def test_every_sentence_is_the_papers(material: Path) -> None:
    source = " ".join((material / "paper" / "safeecgmatch.tex").read_text(encoding="utf-8").split())
    for name, claim in CLAIMS.claims.items():
        assert " ".join(claim.sentence.split()) in source, name


def test_every_claim_is_decided_by_something_that_exists() -> None:
    assert list(CLAIMS.claims) == [f"C{number}" for number in range(1, 14)]
    pairs = {frozenset(pair) for pair in wanted_pairs([*ROWS, *OTHERS])}
    for name, claim in CLAIMS.claims.items():
        assert claim.tests or claim.audit or claim.untested, name
        assert not claim.audit or claim.audit in AUDITS, name
        for test in claim.tests:
            assert set(test.settings) <= set(CLAIMS.settings), name
            for check in test.scaled if test.kind != "purity" else ():
                for metric in check.metrics:
                    assert (metric, "none" if metric == "acc" else check.scaling) in MEASURES
                for reading in CLAIMS.readings_of(claim, "paper"):
                    candidate, rivals = reading.row(check.candidate), [reading.row(check.rival)]
                    if check.kind in ("best", "score"):
                        rivals = BASELINES if check.kind == "best" else [f"{candidate}#msp"]
                    assert {frozenset((candidate, rival)) for rival in rivals} <= pairs, (name, candidate, rivals)


def test_readings_name_rows() -> None:
    readings = CLAIMS.readings["paper"]
    fitted, learned = readings["fitted_time"], readings["learned_time"]
    assert (fitted.row("safeecgmatch"), learned.row("safeecgmatch")) == (
        "safeecgmatch@time",
        "safeecgmatch-learned_t@time",
    )
    assert learned.row("safeecgmatch@freq") == "safeecgmatch-learned_t@freq"
    assert fitted.row("safeecgmatch-{rule}two_time") == "safeecgmatch-two_time@time"
    assert learned.row("safeecgmatch-{rule}two_time") == "safeecgmatch-learned_two_time@time"
    assert learned.row("safeecgmatch-no_cal") == "safeecgmatch-no_cal@time"  # has no temperatures, so no rule
    assert learned.row("calimatch-val150") == "calimatch-val150"
    known = {name: [r.text for r in CLAIMS.readings_of(claim, "paper")] for name, claim in CLAIMS.claims.items()}
    assert {len(known[name]) for name in ("C1", "C2", "C4", "C5", "C6", "C8", "C11")} == {4}
    assert known["C7"] == [readings["fitted_fused"].text, readings["learned_fused"].text]
    assert known["C9"] == known["C10"] == [readings["fitted_fused"].text, readings["fitted_time"].text]
    released = CLAIMS.readings_of(CLAIMS.claims["C6"], "release")
    assert [reading.row("safeecgmatch-{rule}no_freq_cal") for reading in released] == [
        "safeecgmatch-no_freq_cal@fused",
        "safeecgmatch-no_freq_cal@time",
    ]


def test_the_numbers_of_the_rules() -> None:
    """An edit of one is an edit of what was fixed before the study, so it has to be made twice."""
    assert (CLAIMS.level, CLAIMS.margin, CLAIMS.minimum_seeds, CLAIMS.developed_on) == (0.05, 0.01, 2, [1, 2, 3])
    own = {name: [test.margin for test in claim.tests if test.margin] for name, claim in CLAIMS.claims.items()}
    assert {name: margins for name, margins in own.items() if margins} == {
        "C2": [0.0073, 0.007, 0.007, 0.0073, 0.007],
        "C4": [0.05],
        "C8": [0.007],
    }
    best = {name: [test.but for test in claim.tests if test.kind == "best"] for name, claim in CLAIMS.claims.items()}
    assert {name: allowed for name, allowed in best.items() if allowed} == {"C1": [1, 1, 1, 1], "C11": [0, 0]}
    assert [name for name, claim in CLAIMS.claims.items() if claim.primary] == ["C2", "C4", "C5", "C6", "C7"]
    assert [name for name, claim in CLAIMS.claims.items() if claim.combine == "any"] == ["C12"]


def test_places_are_counted_among_the_papers_methods() -> None:
    assert sorted(benchmark_methods()) == sorted([*BASELINES, "safeecgmatch"])
    named = read_yaml(NAMES)
    assert sorted(named["methods"]) == sorted(benchmark_methods()), "others belong under further_methods"
    assert not set(named["further_methods"] or {}) & set(benchmark_methods())


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "claims.yaml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("kind: best", "kind: bset", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"claims\.yaml.*kind"):
        load_claims(broken)


def runs(seeds: list[int], commit: str | None = "0123456789abcdef") -> pd.DataFrame:
    states = ["done", *["missing"] * (len(seeds) - 1)]
    return pd.DataFrame({"commit": commit, "seed": seeds, "state": states})


def test_a_note_names_the_rules_and_the_runs_and_needs_no_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    note = rule_note(runs([4, 1]))
    assert sha256(FILE.read_bytes()).hexdigest()[:10] in note and "trained at commit 0123456789." in note
    assert "trained at" not in rule_note(pd.DataFrame()) + rule_note(runs([4], None))


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([4, 5, 6], "Seeds 1, 2, 3 developed the rules that judge the claims; 4, 5, 6 test them."),
        ([3, 4], "Seeds 1, 2, 3 developed the rules that judge the claims, so 3 of 3, 4 here cannot test them."),
    ],
)
def test_every_report_says_whether_its_seeds_test_the_rules(seeds: list[int], said: str) -> None:
    params = make_params(grid={"seeds": seeds})
    assert seed_note(params) == said
    study = Study(params, *(pd.DataFrame(columns=columns) for columns in FRAMES.values()))
    assert said in notes(study)
