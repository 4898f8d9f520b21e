"""Cells that are written as a training writes them, with nothing learnt, and what MLflow holds of them."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from safeecgmatch.files import digest_of, read_json, write_json
from safeecgmatch.launching.adoption import adopt
from safeecgmatch.launching.scratch import Scratch
from safeecgmatch.tracking.record import Cost, finished_record, run_record
from safeecgmatch.tracking.uploader import Following

STEPS = (50, 100, 150)
WEIGHTS = b"weights"
EXPERIMENT = "safeecgmatch-demo-paper"
METRICS = {"acc": 0.5, "ece": 0.125, "auroc": None}


def make_config(path: str, config_hash: str = "abc") -> dict[str, Any]:
    dataset, row, ood, seed = path.split("/")
    method, _, arm = row.partition("-")
    cell = {"dataset": dataset, "method": method, "ood": int(ood), "seed": int(seed)}
    return {
        "cell": cell | {"variant": "full", "lambda_sum": None, "arm": arm},
        "protocol": "paper",
        "module": method,
        "train": {"batch": 32, "threads": 1},
        "switches": {"lengths": [1, 2]},
        "data": {"hash": "d", "sampling_rate": 100},
        "config_hash": config_hash,
        "fingerprint": f"print-{config_hash}",
    }


def make_record(config: dict[str, Any], path: str, uid: str = "u", stage: str = "train@x") -> dict[str, Any]:
    return run_record(
        config,
        profile="demo",
        path=path,
        stage=stage,
        code={},
        device="cpu",
        uid=uid,
        origin=("c0ffee", True),
    )


class Training:
    """Writes the files of a cell as its training does, with nothing learnt."""

    def __init__(self, path: str, config_hash: str = "abc", uid: str | None = None, stage: str = "train@x") -> None:
        self.path, self.config = path, make_config(path, config_hash)
        self.scratch = Scratch.of(path, self.config["fingerprint"])
        self.folder = self.scratch.folder
        self.record = make_record(self.config, path, uid or uuid.uuid4().hex, stage)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.scratch.config.write_text(yaml.safe_dump(self.config))
        write_json(self.scratch.record, self.record)

    def evaluate(self, *steps: int, file: Path | None = None) -> None:
        lines = [f"{step},{step / 1000},{'' if step == 50 else 0.25}" for step in steps]
        text = "\n".join(["iteration,val_accuracy,mask_rate", *lines]) + "\n"
        (file or self.scratch.history).write_text(text)

    def finish(self, diverged: bool = False) -> None:
        with self.scratch.sealing(self.config["fingerprint"]) as folder:
            outputs = folder / "run"
            outputs.mkdir()
            shutil.copy(self.scratch.config, outputs / "config.yaml")
            self.evaluate(*STEPS, file=outputs / "history.csv")
            record = finished_record(self.record, {} if diverged else METRICS, Cost(3.0, 2.5), 150, None)
            if not diverged:
                generator = np.random.default_rng(1)
                log_probs = np.log(generator.dirichlet([1, 1, 1], 100)).astype(np.float32)
                arrays = {"test.log_probs.main": log_probs, "test.label": generator.integers(0, 3, 100)}
                np.savez(outputs / "predictions.npz", branch=np.array("main"), **arrays)
                (outputs / "model.safetensors").write_bytes(WEIGHTS)
                record["weights_md5"] = digest_of(outputs / "model.safetensors", "md5")
            write_json(folder / "run.json", record)

    def adopt(self) -> dict[str, Any]:
        assert adopt(self.path, self.config)
        return read_json(Path("tracking", self.path, "run.json"))


def log_cell(path: str, config_hash: str = "abc") -> dict[str, Any]:
    """A cell that is followed from its beginning to its end; its run.json."""
    with Following() as following:
        training = Training(path, config_hash)
        following.follow(training.scratch)
        training.evaluate(*STEPS)
        training.finish()
    return training.adopt()


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def runs() -> list[Any]:
    from safeecgmatch.tracking.store import Store

    return Store().runs(EXPERIMENT, "")


def history(run_id: str, name: str) -> dict[int, float]:
    from safeecgmatch.tracking.store import Store

    return {point.step: point.value for point in Store().client.get_metric_history(run_id, name)}


def assert_complete(run: Any) -> None:
    from safeecgmatch.tracking.store import Store

    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/acc"] == 0.5 and run.data.metrics["test/ece"] == 0.125
    assert "test/auroc" not in run.data.metrics and not [
        name for name in run.data.metrics if name.endswith("iteration")
    ]
    cost = {"cost/wall_seconds": 3.0, "cost/cpu_seconds": 2.5, "cost/iterations_per_second": 50.0}
    assert cost.items() <= run.data.metrics.items()
    assert history(run.info.run_id, "val/accuracy") == {50: 0.05, 100: 0.1, 150: 0.15}
    assert history(run.info.run_id, "pseudo/mask_rate") == {100: 0.25, 150: 0.25}
    params = run.data.params
    assert params["train.batch"] == "32" and params["switches.lengths"] == "[1, 2]" and params["profile"] == "demo"
    assert not [name for name, value in params.items() if value in ("abc", "print-abc", "d")], "hashes are no params"
    assert run.data.tags["config_hash"] == "abc" and run.data.tags["fingerprint"] == "print-abc"
    [used] = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == (params["cell.dataset"], "d")
    assert run.data.tags["branch"] == "main" and run.data.tags["weights_md5"] == md5(WEIGHTS).hexdigest()
    artifacts = {artifact.path for artifact in Store().client.list_artifacts(run.info.run_id)}
    assert artifacts == {"config.yaml", "reliability.svg"}
