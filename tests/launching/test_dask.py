"""The Dask launcher without a cluster: its sentences, and what travels to a worker."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from safeecgmatch.launching import dask, dask_inputs, registry
from safeecgmatch.launching.cluster import Cluster
from safeecgmatch.launching.cluster import Dask as Settings

distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")


def test_without_distributed_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"needs the package distributed; install it with: pip install .* -e '\.\[dask\]'"
    ):
        registry.check("dask", Cluster())


@pytest.mark.parametrize("listening", [False, True])
def test_an_address_that_answers_nothing_gives_one_sentence(monkeypatch: pytest.MonkeyPatch, listening: bool) -> None:
    monkeypatch.setattr(dask, "SECONDS_TO_GREET", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        with pytest.raises(UserError, match=f"No Dask scheduler answers at {address} .*correct dask.scheduler in"):
            registry.check("dask", Cluster(dask=Settings(scheduler=address)))


def test_without_an_address_or_with_nonsense_one_sentence() -> None:
    with pytest.raises(UserError, match=r"cluster\.yaml names no scheduler"):
        registry.check("dask", Cluster())
    with pytest.raises(UserError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:port"):
        registry.check("dask", Cluster(dask=Settings(scheduler="tcp://127.0.0.1:port")))
    with pytest.raises(UserError, match=r"dask\.scheduler begins with tls://, not tcp://host:8786"):
        registry.check("dask", Cluster(dask=Settings(scheduler="tcp://host:8786", tls_ca_file="ca.pem")))


def test_tls_settings_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(dask, "listen", lambda address, security: None)
    monkeypatch.setattr(distributed, "Client", lambda address, **options: given.update(options))
    files = {"tls_ca_file": "ca.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}
    dask.connect(Settings(scheduler="tls://host:8786", **files))
    assert given["security"].require_encryption
    assert {name: getattr(given["security"], name) for name in files} == files


def test_a_task_reaches_a_worker_that_has_nothing_of_ours(tmp_path: Path) -> None:
    from safeecgmatch.launching import dask_worker

    (tmp_path / "task").write_bytes(pickle.dumps(dask_inputs.ByValue(dask_worker.trouble)))
    script = (
        "import sys; sys.modules['safeecgmatch'] = None; import pickle; from pathlib import Path;"
        "print(pickle.loads(Path('task').read_bytes())(Path(), {'absent': ''}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "absent: No such file or directory\n"


@pytest.mark.parametrize("damage", ["", "cut", "missing"])
def test_a_delivery_is_used_only_if_every_byte_arrived(tmp_path: Path, damage: str) -> None:
    source = tmp_path / "home"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "signals").write_bytes(bytes(range(256)) * 100)
    (source / "empty").touch()
    worker: Any = SimpleNamespace(local_directory=str(tmp_path / "dask-scratch-space" / "worker-1"))
    client: Any = SimpleNamespace(run=lambda task, *values, workers: pickle.loads(task.content)(*values, worker))
    inputs = dask_inputs.Inputs(client)
    item = inputs.item(source)
    assert item["files"] == {name: sha256_of(source / name) for name in ("deep/signals", "empty")}
    assert inputs.item(source) is item
    if damage == "cut":
        (source / "deep" / "signals").write_bytes(b"short")
    elif damage == "missing":
        item["files"]["deep/other"] = "0" * 64
        (source / "deep" / "other").touch()
    inputs.send("tcp://worker", item["key"])
    inputs.close()
    arrived = tmp_path / "dask-scratch-space" / "safeecgmatch" / "inputs"
    assert [folder.name for folder in arrived.iterdir()] == ([] if damage else [item["key"]])
    if not damage:
        assert (arrived / item["key"] / "deep" / "signals").read_bytes() == (source / "deep" / "signals").read_bytes()


def test_chunks_come_together_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_inputs, "BYTES_AT_ONCE", 3)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "six").write_bytes(b"abcdef")
    sent: list[bytes] = []
    client: Any = SimpleNamespace(
        run=lambda task, *values, workers: sent.append(values[2]) if len(values) == 3 else None
    )
    inputs = dask_inputs.Inputs(client)
    inputs.send("worker", inputs.item(tmp_path / "home")["key"])
    inputs.close()
    assert b"".join(sent) == b"abcdef" and max(map(len, sent)) == 3


def test_the_remote_and_the_hash_of_an_input_come_from_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dask_inputs.dvc_remote() == {} and dask_inputs.dvc_hash("data/filtered/ptbxl") == ""
    (tmp_path / ".dvc").mkdir()
    config = "[core]\nno_scm = true\nremote = store\n['remote \"store\"']\nurl = s3://bucket/ecg\n"
    (tmp_path / ".dvc" / "config").write_text(config)
    (tmp_path / ".dvc" / "config.local").write_text("['remote \"store\"']\nsecret_access_key = secret\n")
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  filter@ptbxl:\n    cmd: x\n    outs:\n"
        "    - {path: data/filtered/ptbxl, hash: md5, md5: 0a.dir, size: 1, nfiles: 1}\n"
    )
    assert dask_inputs.dvc_remote() == {"url": "s3://bucket/ecg"}
    assert dask_inputs.dvc_hash("data/filtered/ptbxl") == "0a.dir"
