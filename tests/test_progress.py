"""Progress: sparse lines with time left where there is no terminal."""

from __future__ import annotations

import io

import pytest

from safeecgmatch import progress
from safeecgmatch.progress import Progress, duration


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (75, "1:15"), (4000, "1:06:40")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_lines_are_sparse_and_tell_the_time_left(monkeypatch):
    clock = iter(float(second) for second in range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress(50, "filter", "records", stream) as bar:
        for _ in range(50):
            bar.advance(note="fine")
    lines = stream.getvalue().splitlines()
    assert 3 < len(lines) < 30
    assert lines[0].startswith("filter: ") and "fine" in lines[0] and lines[0].endswith("left")
    assert lines[-1].startswith("filter: 50/50 records (100 %)") and "done in" in lines[-1]


def test_an_exception_is_not_called_done():
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress(5, "filter", "records", stream):
        raise RuntimeError
    assert "done" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    with Progress(3, "fetch", "bytes", stream) as bar:
        bar.advance(3)
    assert "fetch" in stream.getvalue()
