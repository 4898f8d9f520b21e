"""MLflow tracking that can neither stop nor change a training: the files on disk are the truth, MLflow is a copy.

`uploader.py` follows a cell's files into MLflow, in a thread while the cell trains, or afterwards. This package is the
only one that imports mlflow: `store.py` for runs, `model.py` and `pyfunc.py` for models.
"""

from __future__ import annotations

import os

from safeecgmatch.tracking.address import QUIET

os.environ.update(QUIET)  # before anything imports mlflow
