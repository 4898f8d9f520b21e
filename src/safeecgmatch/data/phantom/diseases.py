"""How severe diagnoses are, and how healthy hearts differ.

The constants at the top set the difficulty of the task: narrower severities away from 0 make the classes easier, larger
anatomy and noise spreads make them harder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safeecgmatch.data.phantom import effects
from safeecgmatch.data.phantom.heart import DOWER, QRS, ST, Array, Heart, Noise, P, T, Wave, normal_heart, rotation

# Severity of a diagnosis, drawn uniformly: 0 leaves a normal heart, 1 is the textbook picture.
SEVERITY: dict[str, tuple[float, float]] = {
    "MI": (0.5, 1.1),
    "CD": (0.85, 1.15),
    "STTC": (0.6, 1.1),
    "HYP": (0.6, 1.1),
    "RHY": (0.8, 1.2),
    "ST": (0.6, 1.1),
    "OTHER": (0.6, 1.1),
}
# Some records carry a diagnosis that hardly shows: they keep the task from being solved completely.
EQUIVOCAL_SHARE = 0.11
EQUIVOCAL_SEVERITY = (0.05, 0.40)

# Spread between patients.
AXIS_DEGREES = 8.0  # standard deviation of each of three rotations of the heart
GAIN_SPREAD = 0.10  # standard deviation of the log of the chest's conductivity
CHEST_GAIN_SPREAD = 0.06  # the same for each chest electrode: placement
WAVE_SPREAD = 0.08  # relative, per wave and direction
QRS_SPREAD = 0.06  # relative duration of the QRS
PR_SPREAD = 0.012  # seconds
RATE_MEAN, RATE_SPREAD = 71.0, 10.0  # beats per minute
T_SPREAD = 0.15  # standard deviation of the log of the T wave's height
ST_SPREAD = 0.012  # mV, innocent deviations of the ST segment per direction

# Noise at the electrodes in mV: median of a log-normal level per record, and its spread.
WANDER, MAINS, MUSCLE = 0.025, 0.006, 0.010
NOISE_SPREAD = 0.5


@dataclass(frozen=True)
class Anatomy:
    """What stays the same in all records of one patient."""

    matrix: Array  # (8, 3): dipole to leads I, II, V1..V6
    wave: Array  # (11, 3) factors
    qrs: float
    pr: float
    rate: float
    respiratory: float
    t_height: float
    st_offset: Array  # (3,) mV


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    gain = np.exp(GAIN_SPREAD * rng.standard_normal())
    placement = np.concatenate([np.ones(2), np.exp(CHEST_GAIN_SPREAD * rng.standard_normal(6))])
    turn = rotation(np.deg2rad(AXIS_DEGREES) * rng.standard_normal(3))
    return Anatomy(
        matrix=gain * placement[:, None] * (DOWER @ turn),
        wave=1 + WAVE_SPREAD * rng.standard_normal((len(Wave), 3)),
        qrs=1 + QRS_SPREAD * float(rng.standard_normal()),
        pr=PR_SPREAD * float(rng.standard_normal()),
        rate=float(np.clip(RATE_MEAN + RATE_SPREAD * rng.standard_normal(), 53.0, 96.0)),
        respiratory=float(rng.uniform(0.01, 0.05)),
        t_height=float(np.exp(T_SPREAD * rng.standard_normal())),
        st_offset=ST_SPREAD * rng.standard_normal(3),
    )


def draw_noise(rng: np.random.Generator) -> Noise:
    wander, mains, muscle = np.array([WANDER, MAINS, MUSCLE]) * np.exp(NOISE_SPREAD * rng.standard_normal(3))
    return Noise(float(wander), float(mains), float(muscle), mains_hertz=int(rng.choice([50, 60], p=[0.8, 0.2])))


def draw_severity(name: str, rng: np.random.Generator) -> float:
    clear = rng.random() >= EQUIVOCAL_SHARE
    return float(rng.uniform(*(SEVERITY[name] if clear else EQUIVOCAL_SEVERITY)))


def healthy_heart(anatomy: Anatomy, rng: np.random.Generator) -> Heart:
    heart = normal_heart()
    heart.vector *= anatomy.wave
    heart.vector[T] *= anatomy.t_height
    heart.vector[ST] += anatomy.st_offset
    heart.at[QRS] *= anatomy.qrs
    heart.width[QRS] *= anatomy.qrs
    heart.at[P] += anatomy.pr
    heart.rate = float(np.clip(anatomy.rate + 4.0 * rng.standard_normal(), 51.0, 99.0))
    heart.respiratory = anatomy.respiratory
    return heart


@dataclass(frozen=True)
class Diagnosis:
    """A statement as an archive codes it, and what it does to the heart."""

    code: str
    weight: float  # share within its class
    apply: effects.Effect
