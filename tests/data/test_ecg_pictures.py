from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from safeecgmatch.data import ecg_pictures
from safeecgmatch.data.ecg_pictures import choose_rows, draw_page, draw_strip, strip_curves
from safeecgmatch.engine.signal_store import Entry


def entries(labels: str) -> list[Entry]:
    return [Entry(f"r{row}", "", label, "s", "", 1000) for row, label in enumerate(labels)]


def test_rows_are_spread_over_each_class() -> None:
    assert choose_rows("a" * 9 + "b") == [("a", [3, 6]), ("b", [9])]
    assert choose_rows("ba") == [("a", [1]), ("b", [0])]


@pytest.mark.parametrize("rate", [100, 500])
def test_a_millivolt_is_ten_millimetres_and_a_second_is_25(rate: int) -> None:
    signal = np.zeros((12, 10 * rate), dtype=np.int16)
    signal[1, 5 * rate] = 1000  # lead II, at 5 s
    curve = strip_curves(signal, rate)[0][-1]
    assert (curve.lead, len(curve.x)) == ("II", 10 * rate)
    peak = int(np.argmin(curve.y))
    assert curve.x[peak] == 125
    assert curve.y[0] - curve.y[peak] == 10


def test_the_columns_show_consecutive_quarters() -> None:
    curves, _ = strip_curves(np.ones((12, 1000), dtype=np.int16), 100)
    assert [curve.lead for curve in curves[::4]] == ["I", "II", "III", "II"]
    assert [curve.lead for curve in curves[:4]] == ["I", "aVR", "V1", "V4"]
    assert [float(curve.x[0]) for curve in curves[:4]] == [0, 62.5, 125, 187.5] and curves[-1].x[0] == 0


@pytest.mark.parametrize("millivolt", [0.1, 2.0, 30.0])
def test_no_trace_crosses_a_label_nor_leaves_the_strip(millivolt: float) -> None:
    signal = np.random.default_rng(0).normal(0, 1000 * millivolt / 3, (12, 1000)).clip(-32_768, 32_767)
    signal[:, 40:60] = 32_767  # a stray amplitude stays on its paper
    curves, height = strip_curves(signal.astype(np.int16), 100)
    for label in {curve.label for curve in curves}:
        assert all((curve.y <= label).all() or (curve.y >= label + ecg_pictures.LABEL).all() for curve in curves)
    assert all((curve.y >= 0).all() and (curve.y <= height).all() for curve in curves)
    assert height <= 4 * (2 * ecg_pictures.FARTHEST + ecg_pictures.LABEL)


def test_paper_and_ink() -> None:
    signal = np.zeros((12, 1000), dtype=np.int16)
    image = draw_strip(signal, 100)
    assert image.getpixel((5 * 4, 2)) == (0xEE, 0xA9, 0xA9)  # every fifth millimetre is a coarse line
    assert image.getpixel((6 * 4, 2)) == (0xF9, 0xDC, 0xDC)
    middle = round(strip_curves(signal, 100)[0][-1].zero * 4)
    row = [sum(image.getpixel((600, y))) for y in range(middle - 2, middle + 3)]  # type: ignore[arg-type]
    assert min(row) < 250  # the trace


def test_the_page_holds_every_class_and_has_the_same_bytes_twice(tmp_path: Path) -> None:
    signals = np.random.default_rng(0).integers(-500, 500, (7, 12, 1000)).astype(np.int16)
    for name in ("a.png", "b.png"):
        draw_page(tmp_path / name, signals, entries("aabbbbc"), 100, "test")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        strips = sum(max(draw_strip(signals[row], 100).height for row in rows) for rows in ((0, 1), (3, 4), (6,)))
        assert image.size == ((2 * 8 + 2 * 250 + 10) * 4, (2 * 8 + 3 * 13) * 4 + strips)
