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
    lead, place, x, y = strip_curves(signal, rate)[-1]
    assert (lead, place, len(x)) == ("II", 3, 10 * rate)
    peak = int(np.argmin(y))
    assert x[peak] == 125
    assert y[0] - y[peak] == 10


def test_the_columns_show_consecutive_quarters() -> None:
    curves = strip_curves(np.ones((12, 1000), dtype=np.int16), 100)
    assert [curve[0] for curve in curves[:4]] == ["I", "II", "III", "aVR"]
    assert [float(curve[2][0]) for curve in curves[::3]] == [0, 62.5, 125, 187.5, 0]


def test_a_stray_amplitude_stays_on_its_paper() -> None:
    signal = np.zeros((12, 1000), dtype=np.int16)
    signal[:, 40:60] = 32_767
    assert all(
        (curve[3] >= 0).all() and (curve[3] <= ecg_pictures.STRIP_HEIGHT).all() for curve in strip_curves(signal, 100)
    )


def test_paper_and_ink() -> None:
    image = draw_strip(np.zeros((12, 1000), dtype=np.int16), 100)
    assert image.getpixel((5 * 4, 2)) == (0xEE, 0xA9, 0xA9)  # every fifth millimetre is a coarse line
    assert image.getpixel((6 * 4, 2)) == (0xF9, 0xDC, 0xDC)
    middle = round(ecg_pictures.base_line(3) * 4)
    row = [sum(image.getpixel((600, y))) for y in range(middle - 2, middle + 3)]  # type: ignore[arg-type]
    assert min(row) < 250  # the trace


def test_the_page_holds_every_class_and_has_the_same_bytes_twice(tmp_path: Path) -> None:
    signals = np.random.default_rng(0).integers(-500, 500, (7, 12, 1000)).astype(np.int16)
    for name in ("a.png", "b.png"):
        draw_page(tmp_path / name, signals, entries("aabbbbc"), 100, "test")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == ((2 * 8 + 2 * 250 + 10) * 4, (2 * 8 + 3 * (105 + 13)) * 4)
