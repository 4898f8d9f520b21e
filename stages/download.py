"""Stage `download`: bring one dataset's archive to its place, verify it, and write its manifest."""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.data.archive import Request, dataset_folder, obtain
from safeecgmatch.data.classes import DATASETS
from safeecgmatch.errors import UserError


def main(dataset: str = typer.Option(..., help="ptbxl or cinc21")) -> None:
    try:
        if dataset not in DATASETS:
            raise UserError(f"there is no dataset {dataset!r}: use one of {', '.join(DATASETS)}.")
        data = load_params().data
        source = data.source(dataset)
        request = Request(
            dataset, source.source, source.path, data.sampling_rate, data.phantom.records, data.phantom.seed
        )
        entries = obtain(request, Path("data/manifests") / f"{dataset}.csv")
    except UserError as error:
        sys.exit(str(error))
    print(
        f"{dataset}: {len(entries)} files, {sum(entry.size for entry in entries) / 1e6:.1f} MB verified in "
        f"{dataset_folder(dataset)}"
    )


if __name__ == "__main__":
    typer.run(main)
