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
from safeecgmatch.tracking.address import ARTIFACTS, brief, child_environment, ensure_store, is_remote, tracking_uri
from safeecgmatch.tracking.record import experiment_name
from safeecgmatch.tracking.store import Store

SECONDS_TO_START = 180.0
SECONDS_TO_ANSWER = 5.0
# What the button "Share" of the UI stores on an experiment to make a link that opens with columns, groups and charts.
# MLflow documents the button, not the content; a UI that does not know it opens the plain table.
SHARED_VIEW = "mlflow.sharedViewState."
HEADLINE = ("test/acc", "test/ece")
COLUMNS = [f"metrics.`{name}`" for name in (*HEADLINE, "val/accuracy", "cost/wall_seconds")] + [
    f"tags.`{name}`" for name in ("dataset", "method", "ood", "seed", "role", "lambda_sum")
]
MOST_BARS = 20


def run_table(condition: str, **state: Any) -> dict[str, Any]:
    return {"searchFilter": condition, "selectedColumns": COLUMNS, "runsHiddenMode": "SHOW_ALL", **state}


def comparison(condition: str, group: str) -> dict[str, Any]:
    """Bars of the headline metrics, one for each value of the tag `group`: the mean over its runs."""
    section = {"uuid": "headline", "name": "test", "display": True, "isReordered": False}
    charts = [
        {"uuid": name, "type": "BAR", "metricKey": name, "metricSectionId": section["uuid"], "displayName": name}
        for name in HEADLINE
    ]
    made = {"deleted": False, "isGenerated": False, "runsCountToCompare": MOST_BARS}
    return run_table(
        condition,
        groupBy={"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": group}]},
        compareRunSections=[section | made],
        compareRunCharts=[chart | made for chart in charts],
    )


def links(store: Store, address: str, params: Params) -> dict[str, str]:
    """Titles and addresses; the views behind them are stored with the experiment."""
    name = experiment_name(params.profile, params.protocol)
    experiment = store.experiment(name).experiment_id
    page = f"{address}/#/experiments/{experiment}/runs?viewStateShareKey="
    store.client.set_experiment_tag(experiment, f"{SHARED_VIEW}runs", json.dumps(run_table("")))
    found = {f"all runs of {name}, with test ACC and ECE": f"{page}runs"}
    for dataset, ood in product(params.grid.datasets, params.grid.ood_levels):
        setting = f"attributes.status = 'FINISHED' and tags.dataset = '{dataset}' and tags.ood = '{ood}'"
        baseline = f"{setting} and tags.role = 'main' and tags.dvc_exp_name = ''"
        weights = f"{setting} and tags.method = '{PROPOSED}' and tags.variant = 'full' and tags.arm = ''"
        for group, condition in (("method", baseline), ("lambda_sum", weights)):
            key = f"{group}-{dataset}-{ood}"
            store.client.set_experiment_tag(experiment, SHARED_VIEW + key, json.dumps(comparison(condition, group)))
            who = f"{PROPOSED} by lambda_sum, sweeps included" if group == "lambda_sum" else "by method"
            found[f"test ACC and ECE {who}: {dataset}, {ood} % unseen"] = f"{page}{key}&compareRunsMode=CHART"
    return found


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
