"""What each diagnosis does to the phantom's heart, how severe it is, and how often it occurs.

The constants at the top set the difficulty of the task: narrower severities away from 0 make the classes easier, larger
anatomy and noise spreads make them harder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from safeecgmatch.data.phantom.heart import (
    DOWER,
    QRS,
    REPOLARISATION,
    ST,
    Array,
    Heart,
    Noise,
    P,
    T,
    Wave,
    normal_heart,
)

# Severity of a diagnosis, drawn uniformly: 0 leaves a normal heart, 1 is the textbook picture.
SEVERITY: dict[str, tuple[float, float]] = {
    "MI": (0.25, 1.0),
    "CD": (0.25, 1.0),
    "STTC": (0.4, 1.0),
    "HYP": (0.4, 1.0),
    "RHY": (0.2, 1.0),
    "ST": (0.4, 1.0),
    "OTHER": (0.4, 1.0),
}

# Spread between patients.
AXIS_DEGREES = 14.0  # standard deviation of each of three rotations of the heart
GAIN_SPREAD = 0.20  # standard deviation of the log of the chest's conductivity
CHEST_GAIN_SPREAD = 0.12  # the same for each chest electrode: placement
WAVE_SPREAD = 0.15  # relative, per wave and direction
QRS_SPREAD = 0.06  # relative duration of the QRS
PR_SPREAD = 0.012  # seconds
RATE_MEAN, RATE_SPREAD = 71.0, 10.0  # beats per minute
T_SPREAD = 0.22  # standard deviation of the log of the T wave's height
ST_SPREAD = 0.018  # mV, innocent deviations of the ST segment per direction

# Noise at the electrodes in mV: median of a log-normal level per record, and its spread.
WANDER, MAINS, MUSCLE = 0.035, 0.006, 0.014
NOISE_SPREAD = 0.5

# Share of each class among all records; the rest has several classes or none.
SHARES: dict[str, dict[str, float]] = {
    "ptbxl": {"NORM": 0.38, "MI": 0.17, "CD": 0.15, "STTC": 0.13, "HYP": 0.10, "several": 0.05, "none": 0.02},
    "cinc21": {"NORM": 0.37, "RHY": 0.17, "CD": 0.15, "ST": 0.12, "OTHER": 0.12, "several": 0.05, "none": 0.02},
}

TERRITORIES = {
    "anterior": np.array([0.25, 0.05, -0.95]),
    "inferior": np.array([-0.08, 0.97, 0.20]),
    "lateral": np.array([0.90, -0.38, 0.20]),
}


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
    turn = _rotation(np.deg2rad(AXIS_DEGREES) * rng.standard_normal(3))
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


def _rotation(angles: Array) -> Array:
    """Frontal, horizontal and sagittal turn of the dipole, in radians."""
    turn = np.eye(3)
    for angle, (first, second) in zip(angles, ((0, 1), (0, 2), (1, 2)), strict=True):
        plane = np.eye(3)
        plane[first, first] = plane[second, second] = np.cos(angle)
        plane[first, second], plane[second, first] = -np.sin(angle), np.sin(angle)
        turn = plane @ turn
    return turn


def draw_noise(rng: np.random.Generator) -> Noise:
    wander, mains, muscle = np.array([WANDER, MAINS, MUSCLE]) * np.exp(NOISE_SPREAD * rng.standard_normal(3))
    return Noise(float(wander), float(mains), float(muscle), mains_hertz=int(rng.choice([50, 60], p=[0.8, 0.2])))


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


# ---- what each diagnosis does; `s` is its severity


def _infarct(territory: str) -> Callable[[Heart, float, np.random.Generator], None]:
    towards = TERRITORIES[territory]

    def apply(heart: Heart, s: float, rng: np.random.Generator) -> None:
        fresh = rng.uniform(0.35, 1.0)
        # Dead muscle is a window: the first forces point away from it and R is lost over it.
        heart.vector[Wave.SEPTAL] = (1 - 0.8 * s) * heart.vector[Wave.SEPTAL] - 0.50 * s * towards
        heart.width[Wave.SEPTAL] *= 1 + 0.5 * s
        heart.at[Wave.SEPTAL] -= 0.004 * s
        heart.vector[Wave.APEX] -= 0.45 * s * max(0.0, float(heart.vector[Wave.APEX] @ towards)) * towards
        heart.vector[ST] += 0.20 * s * fresh * towards
        heart.vector[T] += (0.12 * fresh - 0.30 * (1 - fresh)) * s * towards

    return apply


def _later(heart: Heart, seconds: float) -> None:
    """A wider QRS pushes repolarisation back."""
    heart.at[REPOLARISATION] += seconds


def _right_bundle(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.TERMINAL] = s * np.array([-0.60, -0.05, -0.60])
    heart.at[Wave.TERMINAL] = 0.046 + 0.020 * s
    heart.width[Wave.TERMINAL] = 0.013 + 0.009 * s
    heart.vector[T] += s * np.array([0.03, 0.00, 0.12])
    _later(heart, 0.035 * s)


def _left_bundle(heart: Heart, s: float, rng: np.random.Generator) -> None:
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


def _left_anterior(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.SEPTAL] += s * np.array([-0.05, 0.25, 0.05])
    heart.vector[Wave.APEX, 1] -= 0.95 * s
    heart.vector[Wave.FREE_WALL, 1] -= 0.75 * s
    heart.at[QRS] *= 1 + 0.15 * s
    heart.width[QRS] *= 1 + 0.15 * s


def _slow_ventricles(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[QRS] *= 1 + 0.70 * s
    heart.width[QRS] *= 1 + 0.70 * s
    _later(heart, 0.030 * s)


def _slow_av_node(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[P] -= 0.050 + 0.080 * s


def _ischaemia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[ST] -= 0.13 * s * np.array([0.85, 0.55, -0.20])
    heart.vector[T] *= 1 - 1.5 * s


def _inverted_t(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[T] *= 1 - 2.0 * s


def _long_qt(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.at[T] += 0.060 + 0.070 * s
    heart.width[T] *= 1 + 0.25 * s
    heart.vector[T] *= 1 - 0.4 * s


def _left_hypertrophy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.APEX] *= 1 + 0.75 * s
    heart.vector[Wave.FREE_WALL] *= 1 + 1.10 * s
    heart.vector[ST] -= 0.09 * s * np.array([0.90, 0.30, 0.60])
    heart.vector[T] -= 0.32 * s * np.array([0.90, 0.45, 0.30])


def _right_hypertrophy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[Wave.APEX] += s * np.array([-0.90, 0.15, -0.75])
    heart.vector[Wave.BASAL] += s * np.array([-0.55, -0.10, 0.00])
    heart.vector[P] *= 1 + 0.8 * s
    heart.vector[T] += 0.22 * s * np.array([0.20, -0.30, 0.90])


def _fibrillation(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[P] = 0.0
    heart.fibrillation = 0.015 + 0.045 * s
    heart.irregularity = 0.13 + 0.12 * s
    heart.rate = rng.uniform(65.0, 125.0)
    heart.respiratory = 0.0


def _flutter(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[P] = 0.0
    heart.flutter = 0.10 + 0.14 * s
    heart.conduction = int(rng.choice([2, 3, 4], p=[0.25, 0.25, 0.5]))
    heart.rate = 300.0 / heart.conduction
    heart.respiratory = 0.0


def _bradycardia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.rate = 57.0 - 18.0 * s


def _tachycardia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.rate = 98.0 + 45.0 * s


def _sinus_arrhythmia(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.respiratory = 0.10 + 0.14 * s


def _ventricular_ectopy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.ventricular = 0.10 + 0.25 * s


def _atrial_ectopy(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.atrial = 0.10 + 0.25 * s


def _low_voltage(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector *= 1 - 0.70 * s


def _left_axis(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[QRS] = heart.vector[QRS] @ _rotation(np.deg2rad([-95.0 * s, 0.0, 0.0])).T


def _right_axis(heart: Heart, s: float, rng: np.random.Generator) -> None:
    heart.vector[QRS] = heart.vector[QRS] @ _rotation(np.deg2rad([80.0 * s, 0.0, 0.0])).T


@dataclass(frozen=True)
class Diagnosis:
    """A statement as an archive codes it, and what it does to the heart."""

    code: str
    weight: float  # share within its class
    apply: Callable[[Heart, float, np.random.Generator], None]


DIAGNOSES: dict[str, dict[str, tuple[Diagnosis, ...]]] = {
    "ptbxl": {
        "NORM": (),
        "MI": (
            Diagnosis("ASMI", 0.35, _infarct("anterior")),
            Diagnosis("AMI", 0.10, _infarct("anterior")),
            Diagnosis("IMI", 0.40, _infarct("inferior")),
            Diagnosis("LMI", 0.15, _infarct("lateral")),
        ),
        "CD": (
            Diagnosis("CRBBB", 0.22, _right_bundle),
            Diagnosis("IRBBB", 0.12, _right_bundle),
            Diagnosis("CLBBB", 0.24, _left_bundle),
            Diagnosis("LAFB", 0.17, _left_anterior),
            Diagnosis("IVCD", 0.15, _slow_ventricles),
            Diagnosis("1AVB", 0.10, _slow_av_node),
        ),
        "STTC": (
            Diagnosis("ISC_", 0.30, _ischaemia),
            Diagnosis("ISCAL", 0.25, _ischaemia),
            Diagnosis("NDT", 0.30, _inverted_t),
            Diagnosis("LNGQT", 0.15, _long_qt),
        ),
        "HYP": (
            Diagnosis("LVH", 0.85, _left_hypertrophy),
            Diagnosis("RVH", 0.15, _right_hypertrophy),
        ),
    },
    "cinc21": {
        "NORM": (),
        "RHY": (
            Diagnosis("164889003", 0.36, _fibrillation),
            Diagnosis("164890007", 0.14, _flutter),
            Diagnosis("426177001", 0.20, _bradycardia),
            Diagnosis("427084000", 0.20, _tachycardia),
            Diagnosis("427393009", 0.10, _sinus_arrhythmia),
        ),
        "CD": (
            Diagnosis("713427006", 0.12, _right_bundle),
            Diagnosis("59118001", 0.14, _right_bundle),
            Diagnosis("713426002", 0.08, _right_bundle),
            Diagnosis("733534002", 0.12, _left_bundle),
            Diagnosis("164909002", 0.14, _left_bundle),
            Diagnosis("445118002", 0.16, _left_anterior),
            Diagnosis("698252002", 0.14, _slow_ventricles),
            Diagnosis("270492004", 0.10, _slow_av_node),
        ),
        "ST": (
            Diagnosis("429622005", 0.35, _ischaemia),
            Diagnosis("59931005", 0.30, _inverted_t),
            Diagnosis("164934002", 0.15, _inverted_t),
            Diagnosis("111975006", 0.20, _long_qt),
        ),
        "OTHER": (
            Diagnosis("427172004", 0.30, _ventricular_ectopy),
            Diagnosis("284470004", 0.20, _atrial_ectopy),
            Diagnosis("251146004", 0.20, _low_voltage),
            Diagnosis("39732003", 0.15, _left_axis),
            Diagnosis("47665007", 0.15, _right_axis),
        ),
    },
}
