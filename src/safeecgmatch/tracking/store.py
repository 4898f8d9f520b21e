"""All that this project asks of MLflow about runs and experiments."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Experiment, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from safeecgmatch.cells import Cell
from safeecgmatch.errors import UserError
from safeecgmatch.predictions import read_arrays, reported_branch
from safeecgmatch.tracking.address import artifact_location, brief, tracking_uri
from safeecgmatch.tracking.diagram import reliability_diagram
from safeecgmatch.tracking.record import milliseconds, params, run_name, tags

PARAMS_PER_CALL, METRICS_PER_CALL, RUNS_PER_CALL = 100, 1000, 50_000  # MLflow's limits
SUPERSEDED = "superseded"
COSTS = ("wall_seconds", "cpu_seconds", "iterations_per_second")
ABOUT = {
    "mlflow.experimentKind": "custom_model_development",  # else the UI opens with empty columns for language models
    "mlflow.note.content": """\
Each run is one training: a dataset, a method, a share of unseen records in the pool (`ood`, in per cent), a seed.

**What to look at.** `test/acc` (higher is better) and `test/ece` (lower is better), averaged over seeds: group the runs
by the tag `method`, and filter them by one setting, such as
`tags.role = 'main' and tags.dataset = 'ptbxl' and tags.ood = '60'`. `safeecgmatch mlflow ui` prints links that do so.

| metrics | what they are |
| --- | --- |
| `test/` | of the chosen weights on the test sets |
| `val/`, `loss/` | validation accuracy and mean losses, by iteration |
| `pseudo/` | what the method accepts of the pool, and how much of it is right or unseen |
| `temperature/` | of methods that calibrate |
| `cost/` | seconds and speed |

The files below `runs/` are the truth and this is a copy: `safeecgmatch mlflow backfill` adds what is missing here.
""",
}

T = TypeVar("T")


@contextmanager
def one_sentence() -> Iterator[None]:
    """For commands: trouble with a store, a server or a disk ends them with its reason."""
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs a traceback of what it raises
    try:
        yield
    except (MlflowException, sqlite3.Error, OSError) as error:
        raise UserError(f"The MLflow store {tracking_uri()} failed: {brief(error)}") from error


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
        self.told: set[str] = set()
        try:
            self.client = MlflowClient(self.uri)
        except MlflowException as error:
            raise UserError(
                f"MLFLOW_TRACKING_URI is {self.uri}, which MLflow cannot use: name a server (http://127.0.0.1:5000) "
                f"or a database (sqlite:////a/file.db), or unset it ({brief(error)})"
            ) from None

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name, made and described where that is missing; of foreign artifacts it tells once."""
        location = artifact_location(self.uri, name)
        found = self.client.get_experiment_by_name(name) or self._create(name, location)
        for key, value in ABOUT.items():
            if key not in found.tags:
                self.client.set_experiment_tag(found.experiment_id, key, value)
        if location not in (None, found.artifact_location) and name not in self.told:
            self.told.add(name)
            print(
                f"{self.uri} was copied or moved: it keeps the artifacts of {name} in {found.artifact_location}, not "
                f"in {location}. To have them here, move it away and run `safeecgmatch mlflow backfill`.",
                file=sys.stderr,
                flush=True,
            )
        return found

    def _create(self, name: str, location: str | None) -> Experiment:
        try:
            return self.client.get_experiment(self.client.create_experiment(name, artifact_location=location))
        except MlflowException:
            found = self.client.get_experiment_by_name(name)
            if found is None:
                raise
            return found  # another cell was faster

    def runs(self, experiment: str, condition: str) -> list[Run]:
        """The experiment's runs that fulfil `condition`, newest first; none if there is no such experiment."""
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            return []
        return list(self.client.search_runs([found.experiment_id], condition, max_results=RUNS_PER_CALL))

    def find_run(self, record: Mapping[str, Any]) -> Run | None:
        runs = self.runs(record["experiment"], f"tags.cell_uid = '{record['uid']}'")
        return runs[0] if runs else None

    def open_run(self, record: Mapping[str, Any], config: Mapping[str, Any]) -> OpenRun:
        """This record's run, with its params, tags and dataset: the existing one, else a new one."""
        found = self.find_run(record)
        if found is None:
            found = self.client.create_run(
                self.experiment(record["experiment"]).experiment_id,
                start_time=milliseconds(record["started"]),
                tags=tags(record),
                run_name=run_name(record),
            )
        run_id = found.info.run_id
        if found.info.status == "FINISHED":
            return OpenRun(run_id, True, frozenset())
        if found.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        wanted = params(config, record["profile"])
        missing = [Param(key, value) for key, value in wanted.items() if key not in found.data.params]
        for batch in chunks(missing, PARAMS_PER_CALL):
            self.client.log_batch(run_id, params=batch)
        self.client.log_inputs(run_id, [dataset(config)])
        points = ((name, self.client.get_metric_history(run_id, name)) for name in found.data.metrics)
        return OpenRun(run_id, False, frozenset((name, point.step) for name, history in points for point in history))

    def log_metrics(
        self, run_id: str, entries: Iterable[Mapping[str, Any]], present: Collection[tuple[str, int]] = ()
    ) -> None:
        """Each entry is `{"step", "timestamp", "metrics"}`; what is present, by name and step, is left out."""
        metrics = [
            Metric(name, value, entry["timestamp"], entry["step"])
            for entry in entries
            for name, value in entry["metrics"].items()
            if (name, entry["step"]) not in present
        ]
        for batch in chunks(metrics, METRICS_PER_CALL):
            self.client.log_batch(run_id, metrics=batch)

    def finish_run(self, run_id: str, record: Mapping[str, Any], folder: Path) -> None:
        """Final metrics, tags and artifacts; the status comes last, so a finished run is a complete one."""
        finished = milliseconds(record["finished"])
        costs = {f"cost/{name}": record[name] for name in COSTS}
        test = {f"test/{name}": value for name, value in record["metrics"].items()}
        self.log_metrics(run_id, [{"step": 0, "timestamp": finished, "metrics": test | costs}])
        self.client.log_artifact(run_id, str(folder / "config.yaml"))
        if (folder / "predictions.npz").exists():
            predictions = read_arrays(folder / "predictions.npz")
            last_tags = {"branch": reported_branch(predictions), "weights_md5": record["weights_md5"]}
            self.client.log_text(run_id, reliability_diagram(predictions, record["path"]), "reliability.svg")
        else:
            last_tags = {"diverged": "true"}
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in last_tags.items()])
        self.supersede_older(run_id, record)
        self.client.set_terminated(run_id, "FINISHED", finished)

    def supersede_older(self, run_id: str, record: Mapping[str, Any]) -> None:
        """Mark the runs that this one repeats: same cell, same config, same DVC experiment, started earlier.

        Their role goes too, for a filter can ask for a role and not for a tag's absence.
        """
        condition = f"tags.cell = '{record['path']}' and tags.config_hash = '{record['config_hash']}'"
        for run in self.runs(record["experiment"], condition):
            same_experiment = run.data.tags.get("dvc_exp_name", "") == record["dvc_exp_name"]
            earlier = run.info.start_time < milliseconds(record["started"])
            if same_experiment and earlier and run.info.run_id != run_id and SUPERSEDED not in run.data.tags:
                marks = {SUPERSEDED: run_id, "role": SUPERSEDED}
                self.client.log_batch(run.info.run_id, tags=[RunTag(key, value) for key, value in marks.items()])

    def mark_killed(self, run_id: str) -> None:
        self.client.set_terminated(run_id, "KILLED")

    def describe_model(self, name: str, version: str, text: str) -> None:
        """Of the version, and of the model, whose page shows its newest version's."""
        self.client.update_model_version(name, version, text)
        self.client.update_registered_model(name, text)


def dataset(config: Mapping[str, Any]) -> DatasetInput:
    """What the run was trained on: the records and the split behind `data_hash`."""
    cell, facts = Cell(**config["cell"]), dict(config["data"])
    digest, source = facts.pop("hash"), {"uri": f"data/splits/{cell.split_path}"}
    entity = Dataset(cell.dataset, digest, "local", json.dumps(source), profile=json.dumps(facts))
    return DatasetInput(entity, [InputTag("mlflow.data.context", "training")])
