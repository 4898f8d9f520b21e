"""Stage `filter`: from one dataset's archive to its signal store, with a report of what was dropped and why.

Example: python stages/filter.py --dataset ptbxl
"""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.manifest import manifest_of, open_archive
from safeecgmatch.errors import one_sentence
from safeecgmatch.protocols import switches


def main(dataset: str = typer.Option(..., help="A section of `data` in params.yaml.")) -> None:
    """Write data/filtered/DATASET."""
    target = Path("data/filtered") / dataset
    with one_sentence():
        params = load_params()
        params.data.source(dataset)  # a dataset without a section is named as such
        archive = open_archive(manifest_of(dataset))
        preprocessing = find_dataset(dataset).preprocessing(switches("data", params.protocol, params.data.switches))
        rate = params.data.sampling_rate
        report = filter_dataset(dataset, archive.folder, target, rate, preprocessing, archive.files)
    for warning in report["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(report["class_counts"].items()))
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(report["dropped_counts"].items()))
    kept = f"{report['kept']:,} of {report['records']:,} records kept ({counts})"
    print(f"{dataset}: {kept}; dropped: {dropped or 'none'}")
    print(f"{target}/page.png shows a few of them, {target}/report.json names every dropped record.")


if __name__ == "__main__":
    typer.run(main)
