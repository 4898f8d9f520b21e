"""Where the MLflow store is, and how a fresh one comes to be exactly once. Imports no mlflow."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, project_root, write_text

DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
QUIET = {  # no network but the store's own, no bars between our lines
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
SQLITE = "sqlite:///"
# Opening a store through the client creates the tables, migrates them and adds the default experiment.
OPEN = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments(max_results=1)"


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, else one sqlite file under the project root.

    The root comes from DVC_ROOT, so that queued experiments, which run in folders of their own, share the store.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{project_root() / DATABASE}"


def sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix(SQLITE).partition("?")[0]).absolute() if uri.startswith(SQLITE) else None


def is_remote(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def artifact_location(uri: str, experiment: str) -> str | None:
    """Where a new experiment keeps its artifacts; a server decides that itself."""
    if is_remote(uri):
        return None
    database = sqlite_file(uri)
    return ((database.parent if database else project_root()) / ARTIFACTS / experiment).as_uri()


def patience(seconds: int, retries: int) -> None:
    """How long MLflow's client tries to reach a server, which it would do for minutes; what the user has set counts."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(seconds))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(retries))


def brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """One process at a time; the operating system frees it when its holder dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ensure_store() -> None:
    """Create or migrate an sqlite store, once, however many processes ask at the same time; cheap when it is there.

    Several processes that open a fresh database at once make most of them fail, so it is made under another name,
    under a lock, and then renamed: whoever sees the file sees a complete one.
    """
    database = sqlite_file(tracking_uri())
    if database is None:
        return
    stamp = database.parent / ARTIFACTS / ".mlflow-version"
    current = version("mlflow")

    def is_ready() -> bool:
        return database.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == current

    if is_ready():
        return
    with lock(database.parent / ARTIFACTS / ".store.lock"):
        if is_ready():
            return
        if database.exists():
            _python(["-m", "mlflow", "db", "upgrade", f"{SQLITE}{database}"], database)
        else:
            with atomic_path(database) as partial:
                _python(["-c", OPEN, f"{SQLITE}{partial}"], database)
        write_text(stamp, current)


def _python(arguments: list[str], database: Path) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{database}: the MLflow store cannot be made or migrated ({reason}); move the file away.")
