"""How fast a full-size PTB-XL archive (500 Hz) becomes a signal store, in what memory, against a plain wfdb loop.

The archive is generated. Plain loop and filter are measured in turn, several times; all rounds are printed and the
median counts. Before each round the whole archive is read once, so that both find it in the page cache. What else ran
meanwhile is printed, as the filter wants all processors and the plain loop only one.
    python benchmarks/ingest.py                    # 21,799 records, 2.6 GB of archive in a temporary folder
    python benchmarks/ingest.py --records 3000
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import typer

from safeecgmatch.data.datasets.ptbxl import DATABASE, STATEMENTS
from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.readers import read_record
from safeecgmatch.progress import Progress

RATE, SAMPLES, LEADS = 500, 5000, "I II III AVR AVL AVF V1 V2 V3 V4 V5 V6".split()
CODES = {"NORM": "NORM", "MI": "IMI", "STTC": "NDT", "CD": "CLBBB", "HYP": "LVH"}
SHAPES = 64  # distinct waveforms; every record is one of them, shifted in time
REQUIRED_RATIO = 15.0


def write_tables(folder: Path, records: int) -> list[str]:
    """Tables with as many single-label records as PTB-XL has, about three in four; returns the file names."""
    with (folder / STATEMENTS).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["", "diagnostic", "diagnostic_class"])
        writer.writerows((code, "1.0", name) for name, code in CODES.items())
    names = [f"records500/{number // 1000 * 1000:05d}/{number:05d}_hr" for number in range(1, records + 1)]
    codes = list(CODES.values())
    with (folder / DATABASE).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["ecg_id", "patient_id", "strat_fold", "scp_codes", "filename_hr"])
        for number, name in enumerate(names, 1):
            chosen = codes[:2] if number % 4 == 0 else [codes[number % len(codes)]]
            writer.writerow([number, f"{number}.0", number % 10 + 1, str(dict.fromkeys(chosen, 100.0)), name])
    return names


def write_waveforms(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    seconds = np.arange(SAMPLES) / RATE
    beats = np.exp(-(((seconds * 1.2) % 1 - 0.5) ** 2) / 0.0008)
    shapes = (rng.normal(0, 800, (SHAPES, 1, 12)) * beats[:, None] + rng.normal(0, 30, (SHAPES, SAMPLES, 12))).astype(
        "<i2"
    )
    checksums = shapes.sum(axis=1, dtype=np.int64).astype("<i2")
    with Progress(len(names), "write the archive", "records") as bar:
        for number, name in enumerate(names):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            signal = np.roll(shapes[number % SHAPES], number, axis=0)
            signal.tofile(target.with_suffix(".dat"))
            lines = [f"{target.name} 12 {RATE} {SAMPLES}"]
            lines += [
                f"{target.name}.dat 16 1000.0(0)/mV 16 0 {first} {checksum} 0 {lead}"
                for first, checksum, lead in zip(signal[0], checksums[number % SHAPES], LEADS, strict=True)
            ]
            target.with_suffix(".hea").write_text("\n".join(lines) + "\n")
            bar.advance()


def anonymous_kilobytes(pid: int) -> int:
    """Anonymous memory of a process and its children, in kB; pages of mapped files are the kernel's to drop."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it ended between two looks
        return 0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
    return own + sum(anonymous_kilobytes(int(child)) for child in children)


class PeakMemory(threading.Thread):
    """Looks every 50 ms; `peak` in kB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.stopped = 0, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            self.peak = max(self.peak, anonymous_kilobytes(os.getpid()))


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def busy_seconds() -> float:
    """Of all processors since the start of the machine, whoever kept them busy."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, interrupts, soft, stolen = (int(field) for field in fields)
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """One piece of work: records, seconds by the clock, processor seconds of its own, and of all others meanwhile."""

    records: int
    seconds: float
    cpu: float
    others: float

    @property
    def speed(self) -> float:
        return self.records / self.seconds

    @property
    def speed_per_core(self) -> float:
        return self.records / self.cpu


def measure(work: Callable[[], int]) -> Measured:
    """`work` returns how many records it read."""
    busy, spent, started = busy_seconds(), cpu_seconds(), time.perf_counter()
    records = work()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - spent
    return Measured(records, seconds, cpu, max(busy_seconds() - busy - cpu, 0.0))


def read_every_file(folder: Path) -> None:
    for file in folder.rglob("*.*"):
        file.read_bytes()


def read_with_plain_wfdb(headers: list[Path]) -> int:
    import wfdb

    for header in headers:
        wfdb.rdsamp(str(header.with_suffix("")))
    return len(headers)


def check_equal(header: Path) -> None:
    import wfdb

    signal, _ = wfdb.rdsamp(str(header.with_suffix("")))
    np.testing.assert_array_equal(signal, read_record(header).physical())


def filter_once(folder: Path, target: Path) -> int:
    return int(filter_dataset("ptbxl", folder, target, RATE, "none", workers=os.cpu_count())["kept"])


def summary(name: str, runs: list[Measured]) -> str:
    """Medians, and how many processors others kept busy in each run."""
    others = ", ".join(f"{run.others / run.seconds:.1f}" for run in runs)
    return (
        f"{name:<20} {median(run.speed for run in runs):,.0f} records/s, {median(run.seconds for run in runs):.1f} s; "
        f"{median(run.speed_per_core for run in runs):,.0f} per second of one core; others used {others} cores"
    )


def main(
    records: int = typer.Option(21_799, min=100, help="Size of the archive."),
    sample: int = typer.Option(200, min=10, help="Records for the plain wfdb loop."),
    repeats: int = typer.Option(3, min=1, help="Rounds of plain loop and filter."),
    scratch: Path = typer.Option(None, help="Where to put the archive; default: the system's temporary folder."),
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder, target = Path(place) / "ptbxl", Path(place) / "filtered"
        folder.mkdir()
        names = write_tables(folder, records)
        write_waveforms(folder, names)
        headers = [folder / f"{name}.hea" for name in names[:: max(len(names) // sample, 1)]]
        for header in headers:
            check_equal(header)  # and wfdb is imported
        plain, ours, peaks = [], [], []
        for _ in range(repeats):
            os.sync()  # an archive lies on the disk; writing it back meanwhile would slow the filter
            read_every_file(folder)
            plain.append(measure(lambda: read_with_plain_wfdb(headers)))
            shutil.rmtree(target, ignore_errors=True)
            memory = PeakMemory()
            memory.start()
            ours.append(measure(lambda: filter_once(folder, target)))
            memory.stopped.set()
            peaks.append(memory.peak)
        disk = sum(file.stat().st_size for file in target.iterdir())
    ratios = [run.speed / loop.speed for run, loop in zip(ours, plain, strict=True)]
    per_core = median(run.speed_per_core / loop.speed_per_core for run, loop in zip(ours, plain, strict=True))
    ratio = median(ratios)
    kept = ours[0].records
    print(f"archive              {len(names):,} records, {kept:,} kept and read")
    print(summary("filter, whole", ours))
    print(summary("plain wfdb.rdsamp", plain) + f"; {len(headers)} of the same files")
    rounds = ", ".join(f"{each:.1f}" for each in ratios)
    print(f"ratio                {ratio:.1f} (required: {REQUIRED_RATIO:g}), median of the rounds {rounds}")
    spent = ", ".join(f"{run.cpu:.1f}" for run in ours)
    print(
        f"ratio for one core   {per_core:.1f}, by processor time (filter: {spent} s); there are {os.cpu_count()} cores"
    )
    print(f"peak memory          {max(peaks) / 1e6:.2f} GB anonymous, all processes (required: under 1)")
    print(f"disk                 {disk / 1e9:.2f} GB store, from {len(names) * SAMPLES * 24 / 1e9:.2f} GB of signals")
    sys.exit(0 if ratio >= REQUIRED_RATIO and max(peaks) < 1e6 else 1)


if __name__ == "__main__":
    typer.run(main)
