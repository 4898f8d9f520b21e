from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.reporting import claims as module
from safeecgmatch.reporting.audits import AUDITS
from safeecgmatch.reporting.checks import row_label
from safeecgmatch.reporting.claims import FILE, fixation_notes, load_claims
from safeecgmatch.reporting.contrasts import MEASURES, wanted_pairs
from tests.reporting.planted import ROWS

CLAIMS = load_claims()
EARLY, LATE = "2026-01-01T10:00:00+00:00", "2026-03-01T10:00:00+00:00"


@pytest.mark.real
def test_every_sentence_is_the_papers(material: Path) -> None:
    source = " ".join((material / "paper" / "safeecgmatch.tex").read_text(encoding="utf-8").split())
    for name, claim in CLAIMS.claims.items():
        assert " ".join(claim.sentence.split()) in source, name


def test_every_claim_is_decided_by_something_that_exists() -> None:
    assert list(CLAIMS.claims) == [f"C{number}" for number in range(1, 14)]
    others = ("no_freq_cal", "no_cal", "two_time", "lambda_1/3", "lambda_3")
    variants = [f"safeecgmatch-{name}@{branch}" for name in others for branch in ("fused", "time")]
    scored = [f"{row}#msp" for row in ROWS if "@" in row]
    pairs = {frozenset(pair) for pair in wanted_pairs([*ROWS, *variants, *scored, "safeecgmatch@freq"])}
    for name, claim in CLAIMS.claims.items():
        assert claim.tests or claim.audit or claim.untested, name
        assert not claim.audit or claim.audit in AUDITS, name
        for check in claim.tests:
            assert set(check.settings) <= set(CLAIMS.settings), name
            if check.kind in ("rank", "purity", "score"):
                continue
            metrics = ("acc", "ece") if check.kind == "tradeoff" else (check.metric,)
            assert {(metric, "none" if metric == "acc" else check.scaling) for metric in metrics} <= set(MEASURES)
            for reading in CLAIMS.readings_of(claim, "paper"):
                pair = frozenset((reading.row(check.candidate), reading.row(check.rival)))
                assert pair in pairs, (name, pair)


def test_readings_name_rows() -> None:
    readings = CLAIMS.readings["paper"]
    assert readings["learned_time"].row("safeecgmatch") == "safeecgmatch-learned_t@time"
    assert readings["v_time"].row("safeecgmatch-no_cal") == "safeecgmatch-no_cal@time"
    assert readings["v_time"].row("safeecgmatch@freq") == "safeecgmatch@freq"
    assert readings["v_fused"].row("calimatch") == "calimatch"
    assert len(CLAIMS.readings_of(CLAIMS.claims["C5"], "paper")) == 4
    assert [reading.branch for reading in CLAIMS.readings_of(CLAIMS.claims["C7"], "paper")] == ["fused"]
    assert row_label("safeecgmatch-lambda_1/3@fused") == "lambda_sum = 1/3 (fused)"


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "claims.yaml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("kind: rank", "kind: rnak", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"claims\.yaml.*kind"):
        load_claims(broken)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that holds claims.yaml and nothing else, where the package looks for it."""
    file = Path(shutil.copy(FILE, tmp_path))
    monkeypatch.setattr(module, "FILE", file)
    git(tmp_path, "init", "-q")
    return file


def git(folder: Path, *arguments: str, date: str = EARLY) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True,
        env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "PATH": "/usr/bin:/bin:/usr/local/bin"},
    )  # fmt: skip
    return done.stdout.strip()


def commit(file: Path, date: str = EARLY) -> str:
    git(file.parent, "add", file.name)
    git(file.parent, "commit", "-qm", "claims", date=date)
    return git(file.parent, "rev-parse", "HEAD")


def runs_at(commit: str, started: str) -> pd.DataFrame:
    return pd.DataFrame({"commit": [commit, None], "started": [started, None]})


def test_rules_fixed_before_the_runs_need_no_warning(repository: Path) -> None:
    first = commit(repository)
    notes = fixation_notes(runs_at(first, LATE))
    assert notes == [f"The rules (claims.yaml) were fixed at commit {first[:10]} on 2026-01-01 10:00."]
    repository.write_text(f"# a remark\n{repository.read_text(encoding='utf-8')}", encoding="utf-8")
    commit(repository, LATE)
    assert len(fixation_notes(runs_at(first, EARLY))) == 1  # a comment changes no rule


def test_a_criterion_changed_after_the_runs_is_said(repository: Path) -> None:
    first = commit(repository)
    text = repository.read_text(encoding="utf-8")
    repository.write_text(text.replace("margin: 0.0073", "margin: 0.001", 1), encoding="utf-8")
    edited = fixation_notes(runs_at(first, EARLY))
    assert "not committed" in edited[1] and "the rules of C2 changed" in edited[2]
    commit(repository, LATE)
    committed = fixation_notes(runs_at(first, EARLY))
    assert len(committed) == 2 and re.search(
        rf"rules of C2 changed after cells were trained at commit {first[:10]}", committed[1]
    )
    repository.write_text(text.replace("margin: 0.01 #", "margin: 0.05 #", 1), encoding="utf-8")
    assert "C1, C2, C3" in fixation_notes(runs_at(first, EARLY))[2]  # what all claims share concerns all


def test_runs_of_an_unknown_commit_are_judged_by_their_date(repository: Path) -> None:
    assert "not under version control" in fixation_notes(runs_at("0" * 40, EARLY))[0]
    commit(repository, "2026-02-01T10:00:00+00:00")
    assert "before the rules were fixed" in fixation_notes(runs_at("0" * 40, EARLY))[1]
    assert len(fixation_notes(runs_at("0" * 40, LATE))) == 1
    assert "not recorded" in fixation_notes(runs_at("0" * 40, LATE)[["commit"]])[1]
    assert len(fixation_notes(pd.DataFrame())) == 1
