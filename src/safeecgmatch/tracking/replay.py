"""Backfill: bring MLflow up to date with the files, which hold everything."""

from __future__ import annotations

import os
from pathlib import Path

from safeecgmatch.errors import UserError
from safeecgmatch.files import project_root, read_json
from safeecgmatch.progress import Progress
from safeecgmatch.tracking.address import ARTIFACTS, ensure_store, lock, tracking_uri
from safeecgmatch.tracking.record import RECORD_FILE
from safeecgmatch.tracking.store import MlflowException, Store

PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


def backfill(root: Path) -> tuple[int, int]:
    """Upload what the store lacks of the finished cells under `root`; the numbers of uploaded and of complete runs.

    run.json is left as it is, although it may say `logged: false`: it is an output that DVC tracks, and a changed
    output would make DVC run the cell again. Whether a run is complete is asked of the store itself, by the uid.
    """
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    records = sorted((root / "tracking").rglob(RECORD_FILE))
    ensure_store()
    uploaded = 0
    # Two backfills at once would both miss, and both create, the same run.
    with lock(project_root() / ARTIFACTS / ".backfill.lock"), Progress(len(records), "backfill", "runs") as bar:
        store = Store()
        for file in records:
            record = read_json(file)
            folder = root / "runs" / record["path"]
            if not folder.is_dir():
                raise UserError(f"{folder} is missing although {file} exists; `dvc checkout` brings it back.")
            try:
                uploaded += store.complete_from_disk(record, folder)
            except MlflowException as error:
                reason = " ".join(str(error).split())[:300]
                raise UserError(f"The MLflow store {tracking_uri()} did not take {record['path']}: {reason}") from None
            bar.advance(1, note=record["path"])
    return uploaded, len(records) - uploaded
