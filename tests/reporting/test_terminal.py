"""What `safeecgmatch claims` prints, and of which study."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from safeecgmatch.cli import app
from safeecgmatch.errors import UserError
from safeecgmatch.reporting.contrasts import placebo
from safeecgmatch.reporting.evaluate import write_evaluation
from safeecgmatch.reporting.study import choose
from safeecgmatch.reporting.terminal import HEADS, claim_text, claims_text
from safeecgmatch.reporting.verdicts import Judgement, judge
from tests.conftest import ROOT
from tests.reporting.conftest import MadeUp
from tests.reporting.planted import OTHERS, ROWS, SETTINGS, planted_study
from tests.reporting.synthetic import make_params, paper_params

WIDTH = 100


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    """Every comparison of every claim; the fused prediction with fitted temperatures is better than all rivals."""
    purity = {setting: [0.1, 0.12, 0.11] for setting in SETTINGS}
    params = paper_params(model={"width": 16})
    gains = {"safeecgmatch@fused": 0.03, "safeecgmatch@time": -0.2}
    rows = [*ROWS, *OTHERS, *placebo("")]
    study = planted_study(np.random.default_rng(5), gains, rows, params=params, purity=purity)
    floors = study.metrics.assign(metric="ece_floor", branch="fused", scaling="none", value=0.02)
    study = replace(study, metrics=pd.concat([study.metrics, floors]))
    return {judgement.id: judgement for judgement in judge(study)}


def test_one_sentence_about_each_claim_and_its_size_once(judged: dict[str, Judgement]) -> None:
    text = claims_text(list(judged.values()), ["a note"], WIDTH)
    blocks = {block.split()[0]: " ".join(block.split()) for block in text.split("\n\n")}
    for name, judgement in judged.items():
        said, _, finding = blocks[name].partition(" -> ")
        assert said == f"{name} {judgement.verdict} {' '.join(judgement.claim.plain.split())}"
        assert finding.endswith(".")
    assert blocks["C1"].endswith(
        "Holds at this size under fitted temperatures, fused prediction: of 12 comparisons 12 hold (3 seeds); refuted "
        "under 1 other; inconclusive under 2 others."
    )
    assert "power 0." in blocks["C12"] and "By the paper's own numbers" in blocks["C3"]
    assert text.count("PTB-XL: width 16; CinC21: width 16") == 1
    assert "At this size (C2, C7, C8, C9, C10): PTB-XL: width 16." in text
    assert text.endswith("a note") and max(map(len, text.splitlines())) <= WIDTH


def test_what_was_not_tested_says_why_in_one_sentence() -> None:
    study = planted_study(np.random.default_rng(5), {}, ["supervised", "calimatch"], [("ptbxl", 60)])
    text = " ".join(claims_text(judge(study), [], WIDTH).split())
    assert "-> Only 1 of 12 methods have 2 common seeds." in text
    assert "-> Fewer than 2 common seeds of SafeECGMatch (fused) and SCOMatch, and so on for 7 other" in text


def test_every_comparison_is_a_line_of_a_table_that_fits(judged: dict[str, Judgement]) -> None:
    for judgement in judged.values():
        text = claim_text(judgement, ["a note"], WIDTH)
        assert max(map(len, text.splitlines())) <= WIDTH, judgement.id
        for verdict in judgement.readings:
            table = text.partition(f"Reading: {verdict.reading.text or 'none is open'} - {verdict.verdict}")[2]
            lines = table.partition("\n\n")[0]
            for result in verdict.results:
                sign = "" if result.check.kind == "purity" else "+"
                for part in result.parts:
                    numbers = f"{part.estimate:{sign}.3f}  [{part.low:{sign}.3f}, {part.high:{sign}.3f}]"
                    assert numbers in lines, judgement.id
    heads = [line for line in claim_text(judged["C1"], [], WIDTH).splitlines() if line.startswith("  setting")]
    assert re.split(" {2,}", max(heads, key=len).strip()) == list(HEADS)
    text = claim_text(judged["C5"], [], WIDTH)
    assert "\nSafeECGMatch (fused) over CaliMatch\n  PTB-XL 30 %  ACC" in text and "  rival" not in text
    assert "over its strongest rival but one of Table 3\n" in claim_text(judged["C1"], [], WIDTH)
    described = "SafeECGMatch (fused) over SafeECGMatch (time) (described)"
    assert described in claim_text(judged["C7"], [], WIDTH)
    assert "Audit: The gain over CaliMatch" in text and "Holm over the primary claims" in text


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(project: Path, name: str, done: int) -> None:
    folder = project / "reports" / name / "paper"
    folder.mkdir(parents=True)
    (folder / "headline.json").write_text(json.dumps({"cells": {"asked": 9, "done": done}}))


def test_the_largest_study_on_real_data_speaks_unless_params_has_one(project: Path) -> None:
    demo, real = make_params(), paper_params()
    report(project, "demo", 9)
    assert choose(demo) is demo
    report(project, "long", 3)
    report(project, "cpu", 5)
    assert choose(demo).profile == "cpu" and choose(demo, "long").profile == "long"
    assert choose(demo, "demo") is demo and choose(real) is real
    assert choose(real, "demo").data.source("ptbxl").source == "phantom"
    with pytest.raises(UserError, match="no report of a study 'paper'; those that exist are cpu, demo, long"):
        choose(demo, "paper")


def test_claims_in_the_terminal(study: MadeUp, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safeecgmatch.config.load_params", lambda: study.params)
    with pytest.raises(UserError, match="safeecgmatch report"):
        CliRunner().invoke(app, ["claims"], catch_exceptions=False)
    write_evaluation(study.evaluation, project / "reports" / "demo" / "paper")
    everything = CliRunner().invoke(app, ["claims"], catch_exceptions=False).stdout
    done = f"{len(study.cells)} of {len(study.cells)} cells"
    assert everything.startswith(f"Study demo, protocol paper: {done} (reports/demo/paper/README.md)\n\nC1 ")
    assert (
        "The rules that judge (claims.yaml)" in everything
        and "C3   refuted" in everything
        and "C13  not tested" in everything
    )
    assert CliRunner().invoke(app, ["claims", "--study", "demo"], catch_exceptions=False).stdout == everything
    one = CliRunner().invoke(app, ["claims", "c5"], catch_exceptions=False).stdout
    assert "Criterion" in one and "Reading: learned temperatures, time branch - not tested" in one
    with pytest.raises(UserError, match="There is no claim 'C99'; those that exist are C1, C2"):
        CliRunner().invoke(app, ["claims", "C99"], catch_exceptions=False)
