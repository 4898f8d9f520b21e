"""Very small archives in the layouts of PhysioNet, and stores without an archive."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safeecgmatch.engine.signal_store import Entry, SignalStore, write_table
from safeecgmatch.files import write_json

LEADS = "I II III aVR aVL aVF V1 V2 V3 V4 V5 V6".split()
SUPERCLASS = {"NORM": "NORM", "IMI": "MI", "NDT": "STTC", "CLBBB": "CD", "LVH": "HYP"}


def waves(seed: int, samples: int, leads: int = 12) -> NDArray[np.int16]:
    """(time, leads), never flat."""
    rng = np.random.default_rng(seed)
    return rng.integers(-2000, 2000, (samples, leads)).astype("<i2")


def write_record(
    header: Path,
    values: NDArray[np.int16],
    rate: str = "100",
    *,
    form: str = "16",
    gain: str = "1000.0(0)/mV",
    zero: int = 0,
    line: str | None = None,
    file: str | None = None,
    comments: Sequence[str] = (),
) -> Path:
    """A WFDB pair; `line` replaces the record line, `file` the name of the signal file that the header states."""
    header.parent.mkdir(parents=True, exist_ok=True)
    suffix = ".mat" if "+" in form else ".dat"
    offset = int(form.partition("+")[2] or 0)
    signal_file = header.with_suffix(suffix)
    signal_file.write_bytes(b"\0" * offset + values.astype("<i2").tobytes())
    lines = [line or f"{header.stem} {values.shape[1]} {rate} {len(values)}"]
    names = [*LEADS, *(f"X{number}" for number in range(values.shape[1]))][: values.shape[1]]
    lines += [
        f"{file or signal_file.name} {form} {gain} 16 {zero} {values[0, n]} {values[:, n].sum()} 0 {name}"
        for n, name in enumerate(names)
    ]
    header.write_text("\n".join([*lines, *comments]) + "\n")
    return header


def write_csv(target: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def write_ptbxl(folder: Path, rows: Sequence[tuple[object, ...]], samples: int = 1000) -> None:
    """Rows of (ecg_id, scp_codes, filename_lr, filename_hr or the same); a harmless name gets its record."""
    write_csv(folder / "scp_statements.csv", ["", "diagnostic", "diagnostic_class"], [
        *((code, "1.0", name) for code, name in SUPERCLASS.items()), ("SR", "", "")
    ])  # fmt: skip
    columns = ["ecg_id", "patient_id", "strat_fold", "scp_codes", "filename_lr", "filename_hr"]
    write_csv(folder / "ptbxl_database.csv", columns, [
        (number, f"{number}.0", "1", codes, names[0], names[-1]) for number, codes, *names in rows
    ])  # fmt: skip
    for seed, (_, _, name, *_) in enumerate(rows):
        if str(name).startswith("records"):
            write_record(folder / f"{name}.hea", waves(seed, samples))


def write_cinc(
    folder: Path, record: str, dx: str, seed: int = 0, *, source: str = "georgia", **options: object
) -> Path:
    """One Challenge record of 10 s at 500 Hz; `dx` is the text behind `#Dx: `."""
    values = options.pop("values", None)
    header = folder / "training" / source / "g1" / f"{record}.hea"
    signal = waves(seed, 5000) if values is None else values
    settings = {"rate": "500", "form": "16+24", "gain": "1000/mV", "comments": ["#Age: 60", f"#Dx: {dx}"], **options}
    return write_record(header, signal, **settings)  # type: ignore[arg-type]


def make_store(folder: Path, dataset: str, labels: Sequence[str], patients: Sequence[str] | None = None,
               folds: Sequence[str] | None = None) -> SignalStore:  # fmt: skip
    """A store of short signals in which every row holds its own number."""
    folder.mkdir(parents=True)
    signals = np.arange(len(labels))[:, None, None] * np.ones((1, 12, 2))
    np.save(folder / "signals.npy", signals.astype(np.int16))
    entries = [
        Entry(f"r{row}", patients[row] if patients else "", label, "s", folds[row] if folds else "", 2)
        for row, label in enumerate(labels)
    ]
    write_table(folder / "records.csv", entries)
    form = {"dataset": dataset, "sampling_rate": 1, "samples": 2, "standardise": False, "preprocessing": "none"}
    write_json(folder / "store.json", form)
    return SignalStore.open(folder)
