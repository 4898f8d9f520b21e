"""Links to views that compare methods, and a server that starts or does not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from safeecgmatch.config import load_params
from safeecgmatch.errors import UserError
from safeecgmatch.tracking.store import Store
from safeecgmatch.tracking.ui import SHARED_VIEW, links, ui
from safeecgmatch.tracking.uploader import backfill
from tests.tracking.written import EXPERIMENT, Training, log_cell


def test_every_link_opens_a_stored_view_of_test_acc_and_ece(project: Path) -> None:
    store, params = Store(), load_params()
    found = links(store, "http://127.0.0.1:5000", params)
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    settings = len(params.grid.datasets) * len(params.grid.ood_levels)
    assert sum("by method" in title for title in found) == settings and any("lambda_sum" in title for title in found)
    for title, link in found.items():
        page, _, query = urlsplit(link).fragment.partition("?")
        asked = parse_qs(query)
        assert page == f"/experiments/{experiment.experiment_id}/runs" and asked["workflowType"] == ["machine_learning"]
        view = json.loads(experiment.tags[SHARED_VIEW + asked["viewStateShareKey"][0]])
        assert {"metrics.`test/acc`", "metrics.`test/ece`"} <= set(view["selectedColumns"])
        assert ("groupBy" in view) == (asked["compareRunsMode"] == ["CHART"]) == (title in list(found)[1:])
        for chart in view.get("compareRunCharts", []):
            assert chart["metricSectionId"] in [section["uuid"] for section in view["compareRunSections"]]


def test_a_comparison_of_methods_holds_main_runs_that_nothing_superseded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(path: str, stage: str = "train@x", uid: str | None = None) -> None:
        training = Training(path, uid=uid, stage=stage)
        training.finish()
        training.adopt()

    log("ptbxl/fixmatch/60/1", uid="old")
    assert backfill(Path()) == (1, 0)
    log("ptbxl/fixmatch/60/1", uid="new")
    log("ptbxl/fixmatch-seen_pool/60/1", "train_seen_pool@x")
    log("ptbxl/supervised/30/1")
    with monkeypatch.context() as sweep:
        sweep.setenv("DVC_EXP_NAME", "sunny-dog")
        log("ptbxl/supervised/60/1")
    assert backfill(Path()) == (4, 0)
    store = Store()
    links(store, "", load_params())
    [experiment] = [found for found in store.client.search_experiments() if found.name == EXPERIMENT]
    view = json.loads(experiment.tags[f"{SHARED_VIEW}methods-ptbxl-60"])
    assert [run.data.tags["cell_uid"] for run in store.runs(EXPERIMENT, view["searchFilter"])] == ["new"]


def test_a_dead_server_is_told_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    began = time.monotonic()
    with pytest.raises(UserError, match=f"No MLflow server answers at {address}"), ui(5000):
        pass
    assert time.monotonic() - began < 50  # MLflow's client alone tries for 100 s


@pytest.mark.slow
def test_the_ui_shows_the_store_and_links_to_comparisons(
    project: Path,
) -> None:
    assert log_cell("ptbxl/fixmatch/60/1")["logged"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "safeecgmatch.cli", "mlflow", "ui", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        lines = []
        deadline = time.monotonic() + 300
        while "Press Ctrl-C to end it.\n" not in lines:
            assert time.monotonic() < deadline
            lines.append(process.stdout.readline())
            assert lines[-1], "the UI ended early"
        text = "".join(lines)
        assert f"MLflow UI: http://127.0.0.1:{port}" in text and "test ACC and ECE by method, ptbxl" in text
        [run] = Store().runs(EXPERIMENT, "")
        page = f"http://127.0.0.1:{port}/get-artifact?run_uuid={run.info.run_id}&path=reliability.svg"
        with urllib.request.urlopen(page, timeout=60) as answer:
            assert answer.read(4) == b"<svg"
    finally:
        process.send_signal(2)
        process.wait()
