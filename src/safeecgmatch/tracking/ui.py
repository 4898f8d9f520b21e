"""The MLflow UI on the right store, with links to views that answer the study's questions."""

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
from itertools import product
from typing import Any

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.errors import UserError
from safeecgmatch.tracking.address import ARTIFACTS, brief, ensure_store, is_remote, tracking_uri
from safeecgmatch.tracking.record import experiment_name
from safeecgmatch.tracking.store import Store

SECONDS_TO_START = 180.0
SECONDS_TO_ANSWER = 5.0
# What the button "Share" of the UI stores on an experiment to make a link that opens with columns, groups and charts.
# MLflow documents the button, not the content; a UI that does not know it opens the plain table.
SHARED_VIEW = "mlflow.sharedViewState."
HEADLINE = ("test/acc", "test/ece")
COLUMNS = [f"metrics.`{name}`" for name in HEADLINE] + [
    f"tags.`{name}`" for name in ("dataset", "method", "ood", "seed", "role", "dvc_exp_name")
]
MOST_BARS = 20


def run_table(condition: str) -> dict[str, Any]:
    return {"searchFilter": condition, "selectedColumns": COLUMNS, "runsHiddenMode": "SHOW_ALL"}


def comparison(condition: str, group: str) -> dict[str, Any]:
    """Bars of the headline metrics, one for each value of the tag `group`: the mean over its runs."""
    own = {"isGenerated": False, "deleted": False}
    section = own | {"uuid": "headline", "name": "test", "display": True, "isReordered": False, "columns": 2}
    chart = own | {"type": "BAR", "metricSectionId": section["uuid"], "runsCountToCompare": MOST_BARS}
    return run_table(condition) | {
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": group}]},
        "compareRunSections": [section],
        "compareRunCharts": [chart | {"uuid": name, "metricKey": name, "displayName": name} for name in HEADLINE],
        "chartsSearchFilter": f"^({'|'.join(HEADLINE)})$",  # without it the UI adds a chart for every metric
    }


def links(store: Store, address: str, params: Params) -> dict[str, str]:
    """Titles and addresses; the views behind them are stored with the experiment."""
    name, done = experiment_name(params.profile, params.protocol), "attributes.status = 'FINISHED'"
    views = [("all runs, with test ACC and ECE", "runs", run_table(""))]
    for dataset, ood in product(params.grid.datasets, params.grid.ood_levels):
        condition = f"{done} and {of(dataset, ood)} and tags.role = 'main' and tags.dvc_exp_name = ''"
        title = f"test ACC and ECE by method, {dataset} with {ood} % unseen"
        views.append((title, f"methods-{dataset}-{ood}", comparison(condition, "method")))
    for dataset, ood in product(params.sensitivity.datasets, params.sensitivity.ood_levels):
        cells = f"tags.method = '{PROPOSED}' and tags.variant = 'full' and tags.arm = ''"
        title = f"{PROPOSED} by lambda_sum, sweeps included, {dataset} with {ood} % unseen"
        view = comparison(f"{done} and {of(dataset, ood)} and {cells}", "lambda_sum")
        views.append((title, f"weights-{dataset}-{ood}", view))
    experiment = store.experiment(name).experiment_id
    page = f"{address}/#/experiments/{experiment}/runs?workflowType=machine_learning"
    found = {}
    for title, key, view in views:
        store.client.set_experiment_tag(experiment, SHARED_VIEW + key, json.dumps(view))
        mode = "CHART" if "groupBy" in view else "TABLE"
        found[title] = f"{page}&compareRunsMode={mode}&viewStateShareKey={key}"
    return found


def of(dataset: str, ood: int) -> str:
    return f"tags.dataset = '{dataset}' and tags.ood = '{ood}'"


@contextmanager
def ui(port: int) -> Iterator[tuple[str, subprocess.Popen[bytes] | None]]:
    """The UI's address and its process; a tracking server has its own UI, so there nothing is started."""
    uri = tracking_uri()
    if is_remote(uri):
        address = uri.rstrip("/")
        check_server(address)
        yield address, None
        return
    ensure_store()
    Store()  # an address that MLflow cannot use: one sentence here, a traceback from its server
    command = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--backend-store-uri", uri]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command, "--artifacts-destination", ARTIFACTS],
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


def check_server(address: str) -> None:
    try:
        urllib.request.urlopen(f"{address}/health", timeout=SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:
        pass  # whoever refuses to answer is there
    except (OSError, ValueError) as error:
        raise UserError(
            f"No MLflow server answers at {address}, which MLFLOW_TRACKING_URI names ({brief(error)}): start it, or "
            f"unset MLFLOW_TRACKING_URI to see this project's own store."
        ) from None


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
