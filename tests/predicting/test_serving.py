"""Requests that carry signals: the same numbers as from files, one sentence for a bad one."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from typing import Any

import numpy as np
import pytest

from safeecgmatch.data.readers import read_record
from safeecgmatch.metrics import probabilities_of
from safeecgmatch.predicting.conforming import Refused
from safeecgmatch.predicting.running import Question, read_portions
from safeecgmatch.predicting.serving import example, respond
from safeecgmatch.predicting.trained import NO_DEVICE, Trained
from tests.predicting.conftest import Made


def test_a_request_gets_the_numbers_that_its_file_gets(made: Made, trained: Trained) -> None:
    headers = made.headers("test")[:6]
    [portion] = read_portions([Question("", header) for header in headers], trained)
    expected = probabilities_of(trained.scores(portion.records).log_probs)
    requests = []
    for number, header in enumerate(headers):
        record = read_record(header)
        microvolts = record.values.T[::-1]
        signals = microvolts.tolist() if number % 2 else (microvolts / 1000).tolist()
        units = {"units": "uV"} if number % 2 else {"units": None} if number == 0 else {}
        requests.append({"signals": signals, "sampling_rate": 100, "leads": list(record.names[::-1])} | units)
    answers = respond(trained, requests)
    assert answers[["p_NORM", "p_MI", "p_CD"]].to_numpy().tolist() == expected.tolist()
    assert set(answers["verdict"]) <= {"seen", "unseen"} and answers["notice"].str.contains(NO_DEVICE).all()
    np.testing.assert_array_equal(answers["predicted"], np.array(trained.classes)[expected.argmax(axis=1)])


def changed(trained: Trained, **changes: Any) -> dict[str, Any]:
    return example(trained)[0] | changes


BAD: dict[str, dict[str, Any]] = {
    "one list of numbers per lead": {"signals": [[0.1] * 1000] * 11 + [[0.1] * 999]},
    "signals must hold": {"signals": None},
    "numbers per lead, all of one length": {"signals": [["a"] * 1000] * 12},
    "must hold one list": {"signals": [0.1] * 1000},
    "leads has 11 names for 12 signals": {"leads": list("abcdefghijk")},
    "leads must be a list of names": {"leads": "I II III"},
    "lacks lead V6": {"leads": "I II III aVR aVL aVF V1 V2 V3 V4 V5 V7".split()},
    "sampling rate is -100 Hz": {"sampling_rate": -100.0},
    "sampling_rate must be a number": {"sampling_rate": "fast"},
    "too short: 1000 samples at 2000 Hz": {"sampling_rate": 2000.0},
    "unit 'furlong'": {"units": "furlong"},
    "flat lead: lead I, II": {"signals": [[0.1] * 1000] * 12},
    "12000 missing samples": {"signals": [[None] * 1000] * 12},
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_request_is_refused_with_its_sentence(trained: Trained, sentence: str) -> None:
    with pytest.raises(Refused, match=rf"^Record 1 of the request cannot be used: .*{sentence}.*\.$"):
        respond(trained, [changed(trained), changed(trained, **BAD[sentence])])


def test_a_request_without_records_is_refused(trained: Trained) -> None:
    with pytest.raises(Refused, match="holds no record"):
        respond(trained, [])


@pytest.mark.slow
def test_the_pinned_requirements_are_all_that_serving_imports() -> None:
    from safeecgmatch.tracking.model import REQUIREMENTS

    lister = """
import pkgutil, sys, safeecgmatch.methods, safeecgmatch.predicting.serving
for found in pkgutil.walk_packages(safeecgmatch.methods.__path__, "safeecgmatch.methods."): __import__(found.name)
print(*{name.partition(".")[0] for name in sys.modules})"""
    imported = subprocess.run([sys.executable, "-c", lister], capture_output=True, text=True, check=True).stdout.split()
    owners = packages_distributions()
    ours = {"numpy", "pandas", "pydantic", "PyYAML", "safetensors", "torch", "scikit-learn", "matplotlib", "rich"}
    ours |= {"typer", "wfdb", "pillow", "dvc", "jinja2", "scipy"}  # what pyproject.toml lists
    found = {owner.lower() for name in imported for owner in owners.get(name, []) if owner in ours}
    assert found <= set(REQUIREMENTS)
