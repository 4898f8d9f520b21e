"""How long the reports of the paper's 162 cells take: `evaluate` and `tables`, figures included.

Run: python benchmarks/report.py [--records 4300]. The limit is 90 s on 2 cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
from safeecgmatch.reporting.report import write_report
from tests.reporting.synthetic import paper_params, write_study

LIMIT = 90.0
SMALL = {
    "grid": {"datasets": ["ptbxl"], "methods": ["supervised"], "ood_levels": [60], "seeds": [1]},
    "ablation": {"datasets": ["ptbxl"]},
}


def main(
    records: int = typer.Option(4300, help="Records per evaluation set; CinC 2021 has about 4,300."),
    small: bool = typer.Option(False, help="Six of its cells, to try the script."),
) -> None:
    params = paper_params(**SMALL) if small else paper_params()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        cells = write_study(params, root, records)
        started, cpu = time.perf_counter(), time.process_time()
        write_evaluation(
            evaluate(params, root / "runs", root / "tracking", judge=lambda cell, config: ""), root / "out"
        )
        evaluated = time.perf_counter()
        write_report(params, root / "out")
        finished = time.perf_counter()
        print(
            f"{len(cells)} cells of {records} records: evaluate {evaluated - started:.1f} s, "
            f"tables {finished - evaluated:.1f} s, together {finished - started:.1f} s "
            f"({time.process_time() - cpu:.1f} s of CPU)"
        )
    if finished - started > LIMIT:
        sys.exit(f"slower than the limit of {LIMIT:.0f} s")


if __name__ == "__main__":
    typer.run(main)
