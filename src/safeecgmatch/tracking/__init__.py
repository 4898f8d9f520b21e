"""MLflow tracking that can neither stop nor change a training: the files on disk are the truth, MLflow is a copy.

A cell talks to MLflow through a second process (`recorder.py`), so importing MLflow overlaps with the training and a
server that hangs or dies hangs or dies there. This package is the only one that imports mlflow: `store.py` for runs,
`model.py` and `served.py` for models.

    tracking.warm_up()                                  # optional: start that process before importing torch
    record = tracking.run_record(config, path="ptbxl/fixmatch/30/1", data_hash=..., device="cpu", uid=None)
    logger = tracking.start(record, config)             # returns at once
    logger.evaluation(50, {"val_accuracy": 0.7})        # queued, never blocks; logger.uid goes into the checkpoint
    result = logger.finish(folder, metrics, wall_seconds=12.0, iterations_per_second=12.5)
    files.write_json(Path("tracking", path, "run.json"), result.record)
"""

from __future__ import annotations

import os

from safeecgmatch.tracking.address import QUIET, ensure_store, tracking_uri
from safeecgmatch.tracking.logger import Logger, RunResult, shared_recorder, start, warm_up
from safeecgmatch.tracking.record import RECORD_FILE, run_record

os.environ.update(QUIET)  # before anything imports mlflow

__all__ = [
    "RECORD_FILE",
    "Logger",
    "RunResult",
    "ensure_store",
    "run_record",
    "shared_recorder",
    "start",
    "tracking_uri",
    "warm_up",
]
