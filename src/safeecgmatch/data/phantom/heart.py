"""The phantom's heart: beats as sums of Gaussians on a moving dipole, seen through nine electrodes.

A beat is a set of waves w, each a Gaussian in time with a direction in space, so the heart's dipole is

    d(t) = sum_beats sum_w v_w exp(-(t - t_beat - o_w)^2 / (2 s_w^2))        (mV, Frank axes: x left, y feet, z back)

(the idea of P. E. McSharry et al., "A dynamical model for generating synthetic electrocardiogram signals", IEEE Trans
Biomed Eng 50(3), 2003, with a dipole as in R. Sameni et al., EURASIP J Adv Signal Process 2007:043407). Leads I, II and
V1-V6 are the dipole times Dower's matrix (G. E. Dower et al., J Electrocardiol 13(1), 1980). Noise is added to the
electrodes and III, aVR, aVL, aVF are computed from I and II, so the limb leads obey Einthoven and Goldberger.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.readers import INVALID

Array = NDArray[np.float64]

DOWER = np.array(
    [
        [0.632, -0.235, 0.059],  # I
        [0.235, 1.066, -0.132],  # II
        [-0.515, 0.157, -0.917],  # V1
        [0.044, 0.164, -1.387],
        [0.882, 0.098, -1.277],
        [1.213, 0.127, -0.601],
        [1.125, 0.127, -0.086],
        [0.831, 0.076, 0.230],  # V6
    ]
)
REFERENCE_RR = 0.85  # seconds; the normal beat below is drawn for this interval


class Wave(IntEnum):
    P_RIGHT = 0
    P_LEFT = 1
    SEPTAL = 2
    APEX = 3
    FREE_WALL = 4
    BASAL = 5
    TERMINAL = 6
    ST_EARLY = 7
    ST_LATE = 8
    T_RISE = 9
    T_PEAK = 10


P = slice(Wave.P_RIGHT, Wave.SEPTAL)
QRS = slice(Wave.SEPTAL, Wave.ST_EARLY)
ST = slice(Wave.ST_EARLY, Wave.T_RISE)
T = slice(Wave.T_RISE, None)
REPOLARISATION = slice(Wave.ST_EARLY, None)

# Seconds after the R peak, width in seconds, then the vector in mV.
NORMAL_BEAT = np.array(
    [
        [-0.165, 0.019, 0.030, 0.075, -0.045],  # right atrium
        [-0.135, 0.020, 0.055, 0.055, 0.035],  # left atrium
        [-0.024, 0.0085, -0.120, 0.020, -0.300],  # septum: r in V1, q in V6
        [0.000, 0.0110, 0.950, 0.850, 0.050],  # apex and both walls: R
        [0.016, 0.0120, 0.350, 0.220, 0.700],  # left free wall: S in V1-V3
        [0.036, 0.0095, -0.140, -0.150, 0.250],  # base: small S in II, V5, V6
        [0.052, 0.0140, 0.000, 0.000, 0.000],  # late activation, only in a bundle-branch block
        [0.085, 0.0220, 0.005, 0.004, -0.005],
        [0.140, 0.0320, 0.015, 0.010, -0.012],
        [0.245, 0.0430, 0.150, 0.110, -0.085],
        [0.285, 0.0300, 0.170, 0.120, -0.090],
    ]
)
# A ventricular premature beat starts in the muscle: no P, slow and wide QRS, T against it.
VENTRICULAR_BEAT = np.array(
    [
        [-0.165, 0.019, 0.0, 0.0, 0.0],
        [-0.135, 0.020, 0.0, 0.0, 0.0],
        [-0.045, 0.022, -0.20, 0.30, -0.25],
        [0.000, 0.030, -0.90, 1.10, -0.70],
        [0.045, 0.028, -0.50, 0.70, -0.90],
        [0.085, 0.020, 0.25, -0.25, 0.15],
        [0.100, 0.014, 0.0, 0.0, 0.0],
        [0.130, 0.030, 0.10, -0.12, 0.12],
        [0.190, 0.040, 0.18, -0.20, 0.20],
        [0.300, 0.055, 0.25, -0.30, 0.28],
        [0.350, 0.040, 0.15, -0.18, 0.18],
    ]
)


@dataclass
class Heart:
    """One record's heart: the waves of a beat and how the beats follow each other."""

    at: Array  # (11,) seconds after the R peak
    width: Array  # (11,) seconds
    vector: Array  # (11, 3) mV
    rate: float  # beats per minute
    respiratory: float  # relative swing of the RR interval with breathing
    jitter: float  # relative beat-to-beat noise of the RR interval
    irregularity: float = 0.0  # relative spread of the RR interval in atrial fibrillation
    fibrillation: float = 0.0  # mV
    flutter: float = 0.0  # mV
    conduction: int = 4  # flutter waves per beat
    ventricular: float = 0.0  # share of premature ventricular beats
    atrial: float = 0.0  # share of premature atrial beats


def rotation(angles: Array) -> Array:
    """Frontal, horizontal and sagittal turn of the dipole, in radians."""
    turn = np.eye(3)
    for angle, (first, second) in zip(angles, ((0, 1), (0, 2), (1, 2)), strict=True):
        plane = np.eye(3)
        plane[first, first] = plane[second, second] = np.cos(angle)
        plane[first, second], plane[second, first] = -np.sin(angle), np.sin(angle)
        turn = plane @ turn
    return turn


def normal_heart() -> Heart:
    beat = NORMAL_BEAT.copy()
    return Heart(beat[:, 0], beat[:, 1], beat[:, 2:], rate=70.0, respiratory=0.03, jitter=0.012)


@dataclass(frozen=True)
class Noise:
    """Root-mean-square levels at each electrode in mV."""

    wander: float
    mains: float
    muscle: float
    mains_hertz: int


def beats(heart: Heart, seconds: float, breathing: float, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """R-peak times from a little before 0 to a little after the end, the RR interval before each, and its kind.

    Kinds: 0 conducted, 1 ventricular premature (with a compensatory pause), 2 atrial premature.
    """
    count = int(seconds * heart.rate / 60 * 1.6) + 12
    mean = 60.0 / heart.rate
    spread = heart.jitter * rng.standard_normal(count)
    rr = mean * (1 + spread)
    if heart.irregularity:
        # Right-skewed, as the filtering of the AV node makes it; never shorter than its refractory time.
        rr = np.maximum(mean * rng.gamma(1 / heart.irregularity**2, heart.irregularity**2, count), 0.30)
    elif heart.flutter:
        rr = 0.2 * rng.choice([heart.conduction, heart.conduction + 1], count, p=[0.85, 0.15])
    rr *= 1 + heart.respiratory * np.sin(2 * np.pi * breathing * np.cumsum(rr) + rng.uniform(0, 2 * np.pi))
    draw = rng.random(count)
    kind = np.where(draw < heart.ventricular, 1, np.where(draw < heart.ventricular + heart.atrial, 2, 0))
    kind[1:][kind[:-1] > 0] = 0
    premature = kind > 0
    early = np.where(premature, rng.uniform(0.58, 0.72, count), 1.0)
    pause = np.ones(count)
    pause[1:][kind[:-1] == 1] = 1.35
    rr = np.maximum(rr * early * pause, 0.28)
    times = np.cumsum(rr) - rr[0] - rng.uniform(0.0, 1.0) * mean - 1.0
    kept = times < seconds + 1.0
    return times[kept], rr[kept], kind[kept]


def dipole(heart: Heart, seconds: float, rate: int, breathing: float, rng: np.random.Generator) -> Array:
    """d(t), shape (3, samples)."""
    times, rr, kind = beats(heart, seconds, breathing, rng)
    own = np.concatenate([heart.at[:, None], heart.width[:, None], heart.vector], axis=1)
    early_atrium = own.copy()
    early_atrium[P, 2:] *= [[0.7, -0.4, 1.6]]  # another focus, another direction
    template = np.stack([own, VENTRICULAR_BEAT, early_atrium])[kind]  # (beats, waves, 5)
    template[:, :, 2:] *= 1 + 0.03 * rng.standard_normal((len(times), 1, 1))
    # Repolarisation follows the interval; the atrium does so a little.
    stretch = np.clip(np.sqrt(rr / REFERENCE_RR), 0.68, 1.25)[:, None]
    template[:, REPOLARISATION, :2] *= stretch[:, :, None]
    template[:, P, 0] *= 0.6 + 0.4 * stretch
    centre = (times[:, None] + template[:, :, 0]).ravel()
    width = template[:, :, 1].ravel()
    vector = template[:, :, 2:].reshape(-1, 3)
    audible = (np.abs(vector).sum(axis=1) > 0) & (centre > -5 * width) & (centre < seconds + 5 * width)
    clock = np.arange(round(seconds * rate)) / rate
    # 32 bits are exact to a hundredth of a microvolt here, and three times faster.
    phase = clock.astype(np.float32)[None, :] - centre[audible].astype(np.float32)[:, None]
    phase *= (np.sqrt(0.5) / width[audible]).astype(np.float32)[:, None]
    np.multiply(phase, -phase, out=phase)
    np.maximum(phase, np.float32(-30.0), out=phase)  # beyond lie denormal numbers, slow and invisible
    shape = np.exp(phase, out=phase)
    moving: Array = (vector[audible].T.astype(np.float32) @ shape).astype(np.float64)
    if heart.fibrillation:
        moving += _fibrillation(heart.fibrillation, clock, rng)
    if heart.flutter:
        saw = np.remainder((clock - times[0]) / 0.2, 1.0)
        wave = np.where(saw < 0.75, saw / 0.75, (1 - saw) / 0.25) - 0.5
        moving += heart.flutter * np.array([[0.2], [-1.0], [-0.5]]) * wave
    return moving


def _fibrillation(level: float, clock: Array, rng: np.random.Generator) -> Array:
    """Three wandering sines between 4 and 9 Hz; largest in V1, which lies over the right atrium."""
    total = np.zeros((3, len(clock)))
    for hertz in rng.uniform(4.2, 8.5, 3):
        drift = 1.2 * np.sin(2 * np.pi * rng.uniform(0.15, 0.6) * clock + rng.uniform(0, 2 * np.pi))
        envelope = 1 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.1, 0.5) * clock + rng.uniform(0, 2 * np.pi))
        direction = np.array([-0.35, 0.45, -0.8]) + 0.2 * rng.standard_normal(3)
        total += direction[:, None] * envelope * np.sin(2 * np.pi * hertz * clock + drift + rng.uniform(0, 2 * np.pi))
    return level * total


def electrode_noise(noise: Noise, seconds: float, rate: int, breathing: float, rng: np.random.Generator) -> Array:
    """(9, samples): RA, LA, LL, V1..V6; breathing and slow drift, mains hum, muscle."""
    samples = round(seconds * rate)
    clock = np.arange(samples) / rate
    hertz = np.array([breathing, *rng.uniform(0.05, 0.5, 3)])
    swing = rng.standard_normal((9, 4)) * [0.7, 0.9, 0.5, 0.4] * noise.wander
    hum = rng.uniform(0.3, 1.0, (9, 1)) * noise.mains * np.sqrt(2)
    wander = swing @ np.sin(2 * np.pi * hertz[:, None] * clock + rng.uniform(0, 2 * np.pi, (4, 1)))
    total: Array = wander
    if noise.mains_hertz < rate / 2:  # a recorder's anti-alias filter removes what it cannot represent
        total = total + hum * np.sin(2 * np.pi * noise.mains_hertz * clock + rng.uniform(0, 2 * np.pi))
    muscle = rng.standard_normal((9, samples), dtype=np.float32)
    if rate >= 250:
        muscle[:, 1:] -= 0.5 * muscle[:, :-1]  # muscle has little below 20 Hz
    return total + noise.muscle * muscle


def eight_leads(moving: Array, anatomy_matrix: Array, noise_at_electrodes: Array) -> Array:
    """I, II, V1..V6 in mV; the chest leads are measured against Wilson's central terminal."""
    leads: Array = anatomy_matrix @ moving
    right_arm, left_arm, left_leg = noise_at_electrodes[:3]
    leads[0] += left_arm - right_arm
    leads[1] += left_leg - right_arm
    leads[2:] += noise_at_electrodes[3:] - (right_arm + left_arm + left_leg) / 3
    return leads


def twelve_leads(leads: Array) -> NDArray[np.int16]:
    """Microvolts as stored: I + III = II exactly, the augmented leads to half a microvolt."""
    whole = np.rint(leads * 1000.0)
    one, two = whole[0], whole[1]
    limb = np.stack([one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2])
    full = np.concatenate([np.rint(limb), whole[2:]])
    return np.clip(full, INVALID + 1, 32767).astype(np.int16)
