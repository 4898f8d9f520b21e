"""Who is in a phantom archive: classes in fixed proportions, patients with one or more records, their signals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.data.phantom.diseases import Diagnosis, draw_anatomy, draw_noise, draw_severity, healthy_heart
from safeecgmatch.data.phantom.heart import dipole, eight_leads, electrode_noise, twelve_leads

SECOND_RECORD = 0.12  # chance that a record belongs to the patient of an earlier record of its class

# First word of a generator's seed: what it is for.
_ROSTER, _PATIENT, _HEART, _NOISE, _PAPERS = range(5)


@dataclass(frozen=True)
class Subject:
    """One record to be made."""

    number: int  # 1, 2, ... in the archive
    patient: int
    classes: tuple[str, ...]  # none, one or two
    diagnoses: tuple[Diagnosis, ...]  # one for each class but NORM


@dataclass(frozen=True)
class Population:
    """Which classes a dataset's records have, and by which diagnoses."""

    stream: int  # second word of every generator's seed: no other dataset's
    shares: dict[str, float]  # of each class among all records; "several" and "none" are the rest
    diagnoses: dict[str, tuple[Diagnosis, ...]]  # of each class; a class without any is healthy


class Cohort:
    """All randomness of one archive: a generator for each record (or patient) and purpose, from one seed."""

    def __init__(self, population: Population, seed: int) -> None:
        self.population = population
        self._root = (seed, population.stream)

    def _generator(self, purpose: int, number: int = 0) -> np.random.Generator:
        return np.random.default_rng([*self._root, purpose, number])

    def papers(self, number: int) -> np.random.Generator:
        """The generator for the administrative facts (age, sex, ...) of a record or patient."""
        return self._generator(_PAPERS, number)

    def roster(self, records: int) -> list[Subject]:
        """All records in archive order; class counts differ by less than one record from their shares."""
        rng = self._generator(_ROSTER)
        kinds = apportion(self.population.shares, records)
        rng.shuffle(kinds)
        latest: dict[str, int] = {}
        subjects = []
        for number, kind in enumerate(kinds, start=1):
            classes = self._classes(kind, rng)
            diagnoses = tuple(self._diagnosis(name, rng) for name in classes if name != "NORM")
            again = rng.random() < SECOND_RECORD
            latest[kind] = latest[kind] if again and kind in latest else number
            subjects.append(Subject(number, latest[kind], classes, diagnoses))
        return subjects

    def _classes(self, kind: str, rng: np.random.Generator) -> tuple[str, ...]:
        abnormal = [name for name, diagnoses in self.population.diagnoses.items() if diagnoses]
        if kind == "several":
            return tuple(abnormal[index] for index in sorted(rng.choice(len(abnormal), 2, replace=False)))
        return () if kind == "none" else (kind,)

    def _diagnosis(self, name: str, rng: np.random.Generator) -> Diagnosis:
        choices = self.population.diagnoses[name]
        weights = np.array([choice.weight for choice in choices])
        return choices[rng.choice(len(choices), p=weights / weights.sum())]

    def signal(self, subject: Subject, sampling_rate: int, seconds: float = 10.0) -> NDArray[np.int16]:
        """(12, samples) in microvolts; the heart is the same at every sampling rate, the noise is not."""
        rng = self._generator(_HEART, subject.number)
        anatomy = draw_anatomy(self._generator(_PATIENT, subject.patient))
        heart = healthy_heart(anatomy, rng)
        named = [name for name in subject.classes if name != "NORM"]
        for name, diagnosis in zip(named, subject.diagnoses, strict=True):
            diagnosis.apply(heart, draw_severity(name, rng), rng)
        breathing = rng.uniform(0.18, 0.33)
        noise = draw_noise(rng)
        moving = dipole(heart, seconds, sampling_rate, breathing, rng)
        electrodes = electrode_noise(noise, seconds, sampling_rate, breathing, self._generator(_NOISE, subject.number))
        return twelve_leads(eight_leads(moving, anatomy.matrix, electrodes))


def apportion(shares: dict[str, float], records: int) -> list[str]:
    """Each name in its share of `records`, by largest remainder."""
    exact = {name: share / sum(shares.values()) * records for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: records - sum(counts.values())]:
        counts[name] += 1
    return [name for name, count in counts.items() for _ in range(count)]
