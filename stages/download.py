"""Stage `download`: bring one dataset's archive to its place, verify it, and write its manifest."""

from __future__ import annotations

import sys
from pathlib import Path

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import load_params
from safeecgmatch.data.download import Request, obtain
from safeecgmatch.data.manifest import manifest_of
from safeecgmatch.errors import one_sentence


def main(dataset: str = typer.Option(..., help="A section of `data` in params.yaml.")) -> None:
    with one_sentence():
        found = obtain(Request.of(dataset, load_params().data), manifest_of(dataset))
    size = sum(file.size for file in found.files) / 1e6
    print(f"{dataset}: {len(found.files)} files, {size:.1f} MB verified in {found.place}")


if __name__ == "__main__":
    typer.run(main)
