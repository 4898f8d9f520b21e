"""A cell that was trained, logged and served by real processes, and what its server does with many and bad requests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from safeecgmatch.data.readers import read_record
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

CELL = "ptbxl/fixmatch/60/1"
NAME = "ecg-ptbxl-fixmatch-60-1"
COLUMNS = ("confidence", "unseen_score", "p_NORM", "p_MI", "p_CD")
LEADS = "I II III aVR aVL aVF V1 V2 V3 V4 V5 V6".split()


def python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *arguments], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo of a few iterations in a folder of its own, with one finished cell, logged as a model."""
    folder = tmp_path_factory.mktemp("served")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["data"]["phantom"]["records"] = 300
    params["data"]["ptbxl"].update(labels_per_class=5, pool_size=100)
    params["train"].update(iterations=4, epoch=2, warm_up=1)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    data = ["--dataset", "ptbxl"]
    python(folder, str(ROOT / "stages/download.py"), *data)
    python(folder, str(ROOT / "stages/filter.py"), *data)
    python(folder, str(ROOT / "stages/split.py"), *data, "--ood", "60", "--seed", "1")
    python(folder, str(ROOT / "stages/train.py"), CELL)
    done = python(folder, "-m", "safeecgmatch.cli", "model", "log", CELL)
    assert f"{NAME} version 1 in run " in done.stdout and "mlflow models serve" in done.stdout
    return folder


class Server:
    """`mlflow models serve` on loopback."""

    def __init__(self, project: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        command = ["-m", "mlflow", "models", "serve", "-m", f"models:/{NAME}/1", "--env-manager", "local"]
        environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{project / 'mlflow.db'}"}
        self.process = subprocess.Popen(
            [sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=project, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{self.address}/ping").close()
                return
            except OSError:
                assert self.process.poll() is None, "the server ended"
                time.sleep(0.5)
        raise AssertionError("the server does not answer")

    def post(self, body: object, kind: str = "application/json") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/invocations", data, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def memory(self) -> int:
        """Of the processes of the server, in bytes."""
        own = psutil.Process(self.process.pid)
        return sum(process.memory_info().rss for process in [own, *own.children(recursive=True)])

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(project: Path) -> Iterator[Server]:
    server = Server(project)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def answers(project: Path) -> dict[str, dict[str, Any]]:
    """What `predict` says about the first records of the archive that have an answer."""
    folder = "data/raw/ptbxl.phantom/records100/00000"
    headers = sorted(file.name for file in (project / folder).glob("*.hea"))[:24]
    command = [sys.executable, "-m", "safeecgmatch.cli", "predict", CELL, *(f"{folder}/{name}" for name in headers)]
    subprocess.run([*command, "--output", "answers.json"], cwd=project, capture_output=True)
    rows = json.loads((project / "answers.json").read_text())["records"]
    return {row["record"]: row for row in rows if row["error"] is None}


def request_of(project: Path, record: str) -> dict[str, Any]:
    recording = read_record(project / f"{record}.hea")
    signals = (recording.values.T / 1000).tolist()
    return {"signals": signals, "sampling_rate": recording.rate, "leads": list(recording.names)}


def assert_same(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert (given["predicted"], given["verdict"]) == (expected["predicted"], expected["verdict"])
    np.testing.assert_allclose([given[name] for name in COLUMNS], [expected[name] for name in COLUMNS], atol=1e-6)
    assert "generated ECGs" in given["notice"] and "no medical device" in given["notice"]


def test_the_model_belongs_to_the_run_and_holds_no_pickle(project: Path) -> None:
    run = json.loads((project / "tracking" / CELL / "run.json").read_text())
    [folder] = [file.parent for file in project.glob("mlartifacts/**/MLmodel")]
    model = yaml.safe_load((folder / "MLmodel").read_text())
    assert model["run_id"] == run["run_id"]
    assert {"signals", "sampling_rate", "leads", "units"} == {
        column["name"] for column in json.loads(model["signature"]["inputs"])
    }
    assert not [file for file in folder.rglob("*") if file.suffix in (".pkl", ".pickle", ".pt", ".pth")]
    assert (folder / "input_example.json").is_file() and [*folder.rglob("model.safetensors")]
    pins = (folder / "requirements.txt").read_text().splitlines()
    assert all("==" in pin and "+" not in pin for pin in pins) and any(pin.startswith("torch==") for pin in pins)
    ask = (
        "from mlflow import MlflowClient; import json;"
        f"client = MlflowClient('sqlite:///mlflow.db'); version = client.get_model_version('{NAME}', '1');"
        f"run = client.get_run('{run['run_id']}');"
        "print(json.dumps([version.tags, version.run_id, run.info.status, run.info.end_time, run.info.start_time]))"
    )
    tags, run_id, status, end, start = json.loads(python(project, "-c", ask).stdout.splitlines()[-1])
    assert tags["cell"] == CELL and tags["method"] == "fixmatch" and tags["config_hash"] == run["config_hash"]
    assert run_id == run["run_id"] and status == "FINISHED"
    assert end - start < 600_000


def test_the_same_numbers_as_predict(server: Server, project: Path, answers: dict[str, dict[str, Any]]) -> None:
    for record, expected in answers.items():
        status, content = server.post({"dataframe_records": [request_of(project, record)]})
        assert status == 200
        assert_same(content["predictions"][0], expected)
    status, content = server.post({"inputs": [request_of(project, record) for record in answers]})
    assert status == 200
    for given, expected in zip(content["predictions"], answers.values(), strict=True):
        assert_same(given, expected)


def bad_requests(good: dict[str, Any]) -> dict[str, object]:
    def records(**changes: object) -> dict[str, object]:
        return {"dataframe_records": [good | changes]}

    signals = good["signals"]
    return {
        "valid JSON": b'{"signals": [',
        "dataframe_records": {"ecg": good},
        "missing inputs.*leads": {"dataframe_records": [{key: good[key] for key in ("signals", "sampling_rate")}]},
        "signals must hold one list of numbers": {"dataframe_records": [{**good, "signals": signals[0]}]},
        "all of one length": records(signals=[*signals[:11], signals[11][:-1]]),
        "numbers per lead": records(signals=[*signals[:11], ["high"] * 1000]),
        "lacks lead V6": records(signals=signals[:11], leads=LEADS[:11]),
        "names for 12 signals": records(leads=LEADS[:11]),
        "more than one lead I ?": records(leads=["I", *LEADS[:11]]),
        "1000 missing samples, the first at sample 0, lead V6": records(signals=[*signals[:11], [None] * 1000]),
        "too short": records(signals=[lead[:50] for lead in signals]),
        "all-zero lead: lead I": records(signals=[[0.0] * 1000, *signals[1:]]),
        "sampling rate is 0 Hz": records(sampling_rate=0.0),
        "sampling_rate": records(sampling_rate="fast"),
        "not a voltage": records(units="mmHg"),
    }


def test_bad_requests_are_4xx_with_a_sentence(server: Server, project: Path, answers: dict[str, Any]) -> None:
    import re

    good = request_of(project, next(iter(answers)))
    for sentence, body in bad_requests(good).items():
        status, text = server.post(body)
        assert 400 <= status < 500 and re.search(sentence, text), (sentence, status, text[-300:])
        assert "Traceback" not in text, sentence
    assert server.post(b"12 leads", "text/plain")[0] == 415
    assert server.post({"dataframe_records": [good]})[0] == 200


def test_many_requests_leave_the_memory_flat(server: Server, project: Path, answers: dict[str, Any]) -> None:
    record = next(iter(answers))
    body = json.dumps({"dataframe_records": [request_of(project, record)]}).encode()

    def ask(_: int) -> None:
        status, content = server.post(body)
        assert status == 200
        assert_same(content["predictions"][0], answers[record])

    def eight_at_once(requests: int) -> None:
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(ask, range(requests)))

    eight_at_once(64)  # every thread of the server has worked once
    before = server.memory()
    for number in range(200):
        ask(number)
    eight_at_once(200)
    assert server.memory() - before < 20e6
