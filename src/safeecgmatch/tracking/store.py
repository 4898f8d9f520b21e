"""All that this project asks of MLflow about runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from safeecgmatch.predictions import read_arrays, reported_branch
from safeecgmatch.tracking.address import artifact_location, tracking_uri
from safeecgmatch.tracking.diagram import draw_reliability
from safeecgmatch.tracking.record import flat, milliseconds, tags

PARAMS_PER_CALL, METRICS_PER_CALL = 100, 1000  # MLflow's limits
SUPERSEDED = "superseded"

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    everything = list(items)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


@dataclass(frozen=True)
class OpenRun:
    run_id: str
    complete: bool  # nothing is lacking
    present: frozenset[tuple[str, int]]  # the metrics, with their steps, that the store has already


class Store:
    """The store at `tracking_uri()`. Every method may be repeated without harm, for an answer can get lost."""

    Trouble = MlflowException

    def __init__(self, uri: str | None = None) -> None:
        self.uri = uri or tracking_uri()
        self.client = MlflowClient(self.uri)

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

    def open_run(self, record: Mapping[str, Any], config: Mapping[str, Any]) -> OpenRun:
        """This record's run, with its params and tags: the existing one, else a new one."""
        found = self.find_run(record)
        if found is None:
            found = self.client.create_run(
                self.experiment_id(record["experiment"]),
                start_time=milliseconds(record["started"]),
                tags=tags(record),
                run_name=record["path"],
            )
        run_id = found.info.run_id
        if found.info.status == "FINISHED":
            return OpenRun(run_id, True, frozenset())
        if found.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        missing = [Param(key, value) for key, value in flat(config).items() if key not in found.data.params]
        for params in chunks(missing, PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=params)
        points = ((name, self.client.get_metric_history(run_id, name)) for name in found.data.metrics)
        return OpenRun(run_id, False, frozenset((name, point.step) for name, history in points for point in history))

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
        costs = {name: record[name] for name in ("wall_seconds", "cpu_seconds", "iterations_per_second")}
        test = {f"test.{name}": value for name, value in record["metrics"].items()}
        self.log_metrics(run_id, [{"step": 0, "timestamp": finished, "metrics": test | costs}])
        self.client.log_artifact(run_id, str(folder / "config.yaml"))
        if (folder / "predictions.npz").exists():
            predictions = read_arrays(folder / "predictions.npz")
            last_tags = {"branch": reported_branch(predictions), "weights_md5": record["weights_md5"]}
            with tempfile.TemporaryDirectory() as scratch:
                diagram = Path(scratch, "reliability.png")
                draw_reliability(predictions, record["path"], diagram)
                self.client.log_artifact(run_id, str(diagram))
        else:
            last_tags = {"diverged": "true"}
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in last_tags.items()])
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
