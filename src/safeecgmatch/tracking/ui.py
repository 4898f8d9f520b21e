"""The MLflow UI on the right store, with links to comparisons that answer the study's questions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError
from safeecgmatch.tracking.address import ARTIFACTS, child_environment, ensure_store, is_remote, tracking_uri
from safeecgmatch.tracking.record import experiment_name
from safeecgmatch.tracking.store import SUPERSEDED, Store

SECONDS_TO_START = 180.0


def comparison_links(store: Store, address: str, params: Params) -> dict[str, str]:
    """The experiment itself, all methods on one setting, and SafeECGMatch over its lambda_sum; newest runs count."""
    name = experiment_name(params.profile, params.protocol)
    runs = [
        run
        for run in store.runs(name, "attributes.status = 'FINISHED' and tags.variant = 'full'")
        if SUPERSEDED not in run.data.tags
    ]
    dataset, ood, seed = params.grid.datasets[0], params.grid.ood_levels[-1], params.grid.seeds[0]
    setting = {"dataset": dataset, "ood": str(ood), "seed": str(seed)}
    here = [run for run in runs if all(run.data.tags.get(key) == value for key, value in setting.items())]
    usual = {"", str(params.lambda_sum)}
    methods = {run.data.tags["method"]: run for run in reversed(here) if run.data.tags["lambda_sum"] in usual}
    weights = {run.data.tags["lambda_sum"]: run for run in reversed(here) if run.data.tags["method"] == PROPOSED}
    where = f"{dataset}, {ood} % OOD, seed {seed}"
    links = {
        f"{len(methods)} methods on {where}": list(methods.values()),
        f"{len(weights)} values of lambda_sum on {where}": list(weights.values()),
    }
    return {
        f"experiment {name}": f"{address}/#/experiments/{store.experiment_id(name)}/runs",
        **{title: compare(address, chosen) for title, chosen in links.items()},
    }


def compare(address: str, runs: list) -> str:
    if not runs:
        return "no finished run yet"
    ids = json.dumps([run.info.run_id for run in runs], separators=(",", ":"))
    experiments = json.dumps(sorted({run.info.experiment_id for run in runs}), separators=(",", ":"))
    return f"{address}/#/compare-runs?runs={quote(ids)}&experiments={quote(experiments)}"


@contextmanager
def ui(port: int) -> Iterator[tuple[str, subprocess.Popen[bytes] | None]]:
    """The UI's address and its process; a tracking server has its own UI, so there nothing is started."""
    uri = tracking_uri()
    if is_remote(uri):
        yield uri.rstrip("/"), None
        return
    ensure_store()
    command = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", uri]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command, "--artifacts-destination", ARTIFACTS],
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_up(address, process)
        yield address, process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_until_up(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                break
        except OSError:
            time.sleep(0.3)
    # Another program may own the port and answer there, while our process has ended.
    time.sleep(0.3)
    if process.poll() is not None:
        raise UserError(f"The MLflow UI did not start at {address}; is the port taken? Choose another with --port.")
