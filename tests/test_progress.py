"""Progress: sparse lines with time left where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.progress import Task, TaskID

from safeecgmatch import progress
from safeecgmatch.progress import Progress, TimeLeft, duration


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


@pytest.mark.parametrize("step", [0, 1])
def test_an_absurd_estimate_is_not_printed(monkeypatch, step):
    """10 MB of which next to nothing has come in 20 s would be 55,000 hours."""
    clock = iter(float(second) for second in range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress(10_000_000, "fetch", "bytes", stream) as bar:
        bar.advance(step, note="0.0 MB/s")
        raise RuntimeError
    assert stream.getvalue() == f"fetch: {step}/10000000 bytes (0 %), 0.0 MB/s\n"


@pytest.mark.parametrize(("left", "text"), [(75.0, "0:01:15"), (2e8, "-:--:--")])
def test_nor_is_it_on_a_terminal(left, text):
    task = Task(TaskID(1), "fetch", total=100, completed=0, _get_time=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "time_remaining", left)
        assert TimeLeft().render(task).plain == text


def test_a_label_is_not_read_as_markup():
    stream = Terminal()
    with Progress(3, "unpack a[/b].zip", "bytes", stream) as bar:
        bar.advance(3)
    assert "a[/b].zip" in stream.getvalue()
