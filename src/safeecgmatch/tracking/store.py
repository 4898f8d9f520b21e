"""All that this project asks of MLflow about runs."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from safeecgmatch.predictions import reported_branch
from safeecgmatch.tracking.address import artifact_location, tracking_uri
from safeecgmatch.tracking.diagram import draw_reliability
from safeecgmatch.tracking.record import Json, flat, milliseconds, numbers, tags

PARAMS_PER_CALL, METRICS_PER_CALL = 100, 1000  # MLflow's limits
SUPERSEDED = "superseded"

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    everything = list(items)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


class Store:
    """The store at `tracking_uri()`. Every method may be repeated without harm, for an answer can get lost."""

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or tracking_uri()
        self.client = MlflowClient(self.uri)

    def open(self) -> None:
        """Connect now; the client itself does so at the first question."""
        self.client.search_experiments(max_results=1)

    def experiment_id(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return self.client.create_experiment(name, artifact_location=artifact_location(self.uri, name))
            except MlflowException:  # another cell was faster
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def runs(self, experiment: str, condition: str) -> list[Run]:
        """The experiment's runs that fulfil `condition`, newest first; none if there is no such experiment."""
        found = self.client.get_experiment_by_name(experiment)
        runs: list[Run] = []
        token = None
        while found is not None:
            page = self.client.search_runs([found.experiment_id], condition, page_token=token)
            runs += page
            token = page.token
            if not token:
                break
        return runs

    def find_run(self, record: Mapping[str, Any]) -> Run | None:
        runs = self.runs(record["experiment"], f"tags.cell_uid = '{record['uid']}'")
        return runs[0] if runs else None

    def open_run(self, record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
        """The id of this record's run, with its params and tags: the existing one, else a new one."""
        found = self.find_run(record)
        if found is None:
            found = self.client.create_run(
                self.experiment_id(record["experiment"]),
                start_time=milliseconds(record["started"]),
                tags=tags(record),
                run_name=record["path"],
            )
        elif found.info.status != "RUNNING":
            self.client.update_run(found.info.run_id, status="RUNNING")
        run_id = found.info.run_id
        present = found.data.params
        missing = [Param(key, value) for key, value in flat(config).items() if key not in present]
        for params in chunks(missing, PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=params)
        return run_id

    def log_metrics(self, run_id: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Each entry is `{"step", "timestamp", "metrics"}`; the same entry twice is stored once."""
        metrics = [
            Metric(name, value, entry["timestamp"], entry["step"])
            for entry in entries
            for name, value in entry["metrics"].items()
        ]
        for batch in chunks(metrics, METRICS_PER_CALL):
            self.client.log_batch(run_id, metrics=batch)

    def finish_run(self, run_id: str, record: Mapping[str, Any], folder: Path) -> None:
        """Final metrics, tags and artifacts; the status comes last, so a finished run is a complete one."""
        finished = milliseconds(record["finished"])
        costs = {name: record[name] for name in ("wall_seconds", "iterations_per_second")}
        test = {f"test.{name}": value for name, value in record["metrics"].items()}
        final = {"step": 0, "timestamp": finished, "metrics": test | costs}
        self.log_metrics(run_id, [final])
        with np.load(folder / "predictions.npz", allow_pickle=False) as predictions:
            branch = reported_branch(predictions)
        last_tags = {"branch": branch, "weights_md5": record["weights_md5"]}
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in last_tags.items()])
        self.client.log_artifact(run_id, str(folder / "config.yaml"))
        with tempfile.TemporaryDirectory() as scratch:
            diagram = Path(scratch, "reliability.png")
            draw_reliability(folder / "predictions.npz", record["path"], diagram)
            self.client.log_artifact(run_id, str(diagram))
        self.supersede_older(run_id, record)
        self.client.set_terminated(run_id, "FINISHED", finished)

    def supersede_older(self, run_id: str, record: Mapping[str, Any]) -> None:
        """Mark the runs that this one repeats: same cell, same config, same DVC experiment, started earlier."""
        condition = f"tags.cell = '{record['path']}' and tags.config_hash = '{record['config_hash']}'"
        for run in self.runs(record["experiment"], condition):
            same_experiment = run.data.tags.get("dvc_exp_name", "") == record["dvc_exp_name"]
            earlier = run.info.start_time < milliseconds(record["started"])
            if same_experiment and earlier and run.info.run_id != run_id and SUPERSEDED not in run.data.tags:
                self.client.set_tag(run.info.run_id, SUPERSEDED, run_id)

    def mark_killed(self, run_id: str) -> None:
        self.client.set_terminated(run_id, "KILLED")

    def complete_from_disk(self, record: Mapping[str, Any], folder: Path) -> bool:
        """Upload what the store lacks of a finished cell; False if it lacks nothing."""
        found = self.find_run(record)
        if found is not None and found.info.status == "FINISHED":
            return False
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        run_id = self.open_run(record, config | {"profile": record["profile"]})
        present = {
            (name, point.step)
            for name in (found.data.metrics if found else {})
            for point in self.client.get_metric_history(run_id, name)
        }
        self.log_metrics(run_id, (without(entry, present) for entry in history(record, folder)))
        self.finish_run(run_id, record, folder)
        return True


def history(record: Mapping[str, Any], folder: Path) -> Iterator[Json]:
    """The evaluations of history.csv as metric entries, spread evenly over the time that the run took."""
    with (folder / "history.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    started, finished = milliseconds(record["started"]), milliseconds(record["finished"])
    for row in rows:
        share = int(row["iteration"]) / int(rows[-1]["iteration"])
        metrics = numbers({name: value for name, value in row.items() if name != "iteration"})
        yield {
            "step": int(row["iteration"]),
            "timestamp": started + round(share * (finished - started)),
            "metrics": metrics,
        }


def without(entry: Json, present: set[tuple[str, int]]) -> Json:
    missing = {name: value for name, value in entry["metrics"].items() if (name, entry["step"]) not in present}
    return entry | {"metrics": missing}
