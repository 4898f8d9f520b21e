"""What each diagnosis does to a heart; `s` is its severity, 0 none and 1 the textbook picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from safeecgmatch.data.phantom.heart import QRS, REPOLARISATION, ST, Heart, P, T, Wave, rotation

Effect = Callable[[Heart, float, np.random.Generator], None]

TERRITORIES = {
    "anterior": np.array([0.25, 0.05, -0.95]),
    "inferior": np.array([-0.08, 0.97, 0.20]),
    "lateral": np.array([0.90, -0.38, 0.20]),
}


def infarct(territory: str) -> Effect:
    towards = TERRITORIES[territory]

    def apply(heart: Heart, s: float, rng: np.random.Generator) -> None:
        fresh = rng.uniform(0.55, 1.0)
        # Dead muscle is a window: the first forces point away from it and R is lost over it.
        heart.vector[Wave.SEPTAL] = (1 - 0.8 * s) * heart.vector[Wave.SEPTAL] - 0.65 * s * towards
        heart.width[Wave.SEPTAL] *= 1 + 0.5 * s
        heart.at[Wave.SEPTAL] -= 0.004 * s
        heart.vector[Wave.APEX] -= 0.45 * s * max(0.0, float(heart.vector[Wave.APEX] @ towards)) * towards
        heart.vector[ST] += 0.45 * s * fresh * towards
        heart.vector[T] += (0.25 * fresh - 0.15 * (1 - fresh)) * s * towards

    return apply


def _later(heart: Heart, seconds: float) -> None:
    """A wider QRS pushes repolarisation back."""
    heart.at[REPOLARISATION] += seconds


def right_bundle(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.TERMINAL] = s * np.array([-0.70, -0.05, -0.75])
    heart.at[Wave.TERMINAL] = 0.046 + 0.020 * s
    heart.width[Wave.TERMINAL] = 0.013 + 0.009 * s
    heart.vector[T] += s * np.array([0.03, 0.00, 0.12])
    _later(heart, 0.035 * s)


def left_bundle(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.SEPTAL] *= 1 - s
    heart.vector[Wave.BASAL] *= 1 - s
    heart.vector[Wave.APEX] *= 1 - 0.25 * s
    heart.width[Wave.APEX] += 0.011 * s
    heart.vector[Wave.FREE_WALL] += s * (np.array([0.80, 0.25, 0.85]) - heart.vector[Wave.FREE_WALL])
    heart.at[Wave.FREE_WALL] += 0.036 * s
    heart.width[Wave.FREE_WALL] += 0.011 * s
    heart.vector[ST] += s * np.array([-0.07, -0.03, -0.10])
    heart.vector[T] -= s * np.array([0.28, 0.16, 0.14])
    _later(heart, 0.050 * s)


def left_anterior(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.SEPTAL] += s * np.array([-0.05, 0.25, 0.05])
    heart.vector[Wave.APEX, 1] -= 0.95 * s
    heart.vector[Wave.FREE_WALL, 1] -= 0.75 * s
    heart.at[QRS] *= 1 + 0.15 * s
    heart.width[QRS] *= 1 + 0.15 * s


def slow_ventricles(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[QRS] *= 1 + 0.70 * s
    heart.width[QRS] *= 1 + 0.70 * s
    _later(heart, 0.030 * s)


def slow_av_node(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[P] -= 0.050 + 0.080 * s


def ischaemia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[ST] -= 0.13 * s * np.array([0.85, 0.55, -0.20])
    heart.vector[T] *= 1 - 1.5 * s


def inverted_t(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[T] *= 1 - 2.0 * s


def long_qt(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[T] += 0.060 + 0.070 * s
    heart.width[T] *= 1 + 0.25 * s
    heart.vector[T] *= 1 - 0.4 * s


def left_hypertrophy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.APEX] *= 1 + 0.75 * s
    heart.vector[Wave.FREE_WALL] *= 1 + 1.10 * s
    heart.vector[ST] -= 0.09 * s * np.array([0.90, 0.30, 0.60])
    heart.vector[T] -= 0.32 * s * np.array([0.90, 0.45, 0.30])


def right_hypertrophy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.APEX] += s * np.array([-0.90, 0.15, -0.75])
    heart.vector[Wave.BASAL] += s * np.array([-0.55, -0.10, 0.00])
    heart.vector[P] *= 1 + 0.8 * s
    heart.vector[T] += 0.22 * s * np.array([0.20, -0.30, 0.90])


def fibrillation(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[P] = 0.0
    heart.fibrillation = 0.015 + 0.055 * s
    heart.irregularity = 0.13 + 0.12 * s
    heart.rate = rng.uniform(65.0, 125.0)
    heart.respiratory = 0.0


def flutter(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[P] = 0.0
    heart.flutter = 0.10 + 0.14 * s
    heart.conduction = int(rng.choice([2, 3, 4], p=[0.25, 0.25, 0.5]))
    heart.rate = 300.0 / heart.conduction
    heart.respiratory = 0.0


def bradycardia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.rate = 57.0 - 18.0 * s


def tachycardia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.rate = 98.0 + 45.0 * s


def sinus_arrhythmia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.respiratory = 0.10 + 0.14 * s


def ventricular_ectopy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.ventricular = 0.10 + 0.25 * s


def atrial_ectopy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.atrial = 0.10 + 0.25 * s


def low_voltage(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector *= 1 - 0.70 * s


def left_axis(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[QRS] = heart.vector[QRS] @ rotation(np.deg2rad([-95.0 * s, 0.0, 0.0])).T


def right_axis(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[QRS] = heart.vector[QRS] @ rotation(np.deg2rad([80.0 * s, 0.0, 0.0])).T
