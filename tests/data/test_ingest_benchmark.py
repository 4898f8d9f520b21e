from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_the_benchmark_prints_what_it_measured() -> None:
    """At this size starting the processes takes most of the time, so only the lines are looked at, not the ratio."""
    command = [sys.executable, str(ROOT / "benchmarks" / "ingest.py"), "--records", "200", "--sample", "10"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "generated, 200 records, 150 kept and read" in done.stdout, done.stderr
    for line in ("filter, whole", "plain wfdb.rdsamp", "ratio", "others used", "GB anonymous", "GB store"):
        assert line in done.stdout
