"""A finished cell as an MLflow model, in the run that trained it: weights as safetensors, code as files, no pickle."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import AnyType, Array

import safeecgmatch
from safeecgmatch.errors import UserError
from safeecgmatch.files import read_json
from safeecgmatch.predicting import serving
from safeecgmatch.predicting.trained import Trained, find_cell
from safeecgmatch.tracking.address import ensure_store, patience, tracking_uri
from safeecgmatch.tracking.record import RECORD_FILE, tags
from safeecgmatch.tracking.store import Store

# All that the code imports on its way from a request to an answer.
REQUIREMENTS = ("mlflow", "numpy", "pandas", "pydantic", "pyyaml", "safetensors", "scipy", "torch")
NOT_IN_A_NAME = "/:"  # MLflow's own rule, which it tells after all files are stored


@dataclass(frozen=True)
class Logged:
    name: str
    version: str
    run_id: str
    uri: str

    @property
    def serve_command(self) -> str:
        serve = f"mlflow models serve -m models:/{self.name}/{self.version} --env-manager local --host 127.0.0.1"
        return f"MLFLOW_TRACKING_URI={self.uri} {serve} --port 5001"


def signature(trained: Trained) -> ModelSignature:
    text, number = DataType.string, DataType.double
    inputs: list[ColSpec | TensorSpec] = [
        # Not Array(Array(number)): MLflow would refuse a lead of whole numbers, such as microvolts.
        ColSpec(AnyType(), serving.SIGNALS, required=False),
        ColSpec(number, serving.RATE),
        ColSpec(Array(text), serving.NAMES),
        ColSpec(text, serving.UNITS, required=False),
    ]
    numbers = ("confidence", "unseen_score", *(f"p_{name}" for name in trained.classes))
    columns = answer_columns(trained)
    outputs: list[ColSpec | TensorSpec] = [ColSpec(number if name in numbers else text, name) for name in columns]
    return ModelSignature(Schema(inputs), Schema(outputs))


def answer_columns(trained: Trained) -> list[str]:
    return list(serving.respond(trained, serving.example(trained)).columns)


def model_name(path: str, asked: str | None) -> str:
    """`ptbxl/fixmatch/60/1` -> `ecg-ptbxl-fixmatch-60-1`; MLflow's names have no slashes."""
    if asked is None:
        return f"ecg-{path.replace('/', '-')}"
    if not asked.strip() or set(asked).intersection(NOT_IN_A_NAME):
        raise UserError(f"--name is '{asked}', but a model's name must not be empty nor hold a slash or a colon.")
    return asked


def description(trained: Trained, record: dict[str, Any]) -> str:
    """What somebody who finds the model in the registry should know, as Markdown."""
    cell, metrics, data = record["cell"], record["metrics"], trained.config["data"]
    known = {"acc": "accuracy", "ece": "calibration error (ECE)", "auroc": "AUROC of the unseen score"}
    rows = [f"| {words} | {metrics[name]:.3f} |" for name, words in known.items() if name in metrics]
    table = "\n".join(["| on its test sets | |", "| --- | ---: |", *rows])
    return f"""\
**{trained.notice}**

Classifies 12-lead ECGs of 10 s as {", ".join(trained.classes)}, with a calibrated confidence, and answers `unseen`
where a record seems to belong to none of these ({trained.share:.0%} of the validation records are accepted).

Method {cell["method"]} on {cell["dataset"]}, {cell["ood"]} % of whose pool belongs to unseen classes
({", ".join(data["unseen"])}), seed {cell["seed"]}, profile {record["profile"]}, protocol {record["protocol"]}; commit
{record["commit"] or "unknown"}.

{table}

A request holds one list of numbers per lead, its sampling rate (50 Hz or more) and the leads' names: see the signature
and the input example. Trained by the cell `{record["path"]}`.
"""


def log_model(path: str, name: str | None) -> Logged:
    """Log, register and describe; the run itself keeps its state and times."""
    registered = model_name(path, name)
    trained = Trained.open(find_cell(path))
    file = Path("tracking") / path / RECORD_FILE
    if not file.is_file():
        raise UserError(f"{file} is missing, so the run that trained {path} is unknown: name a cell below runs/.")
    record = read_json(file)
    patience(seconds=30, retries=2)
    ensure_store()
    store = Store()
    run = store.find_run(record)
    if run is None:
        raise UserError(f"{store.uri} has no run of {path}: run `safeecgmatch mlflow backfill` first.")
    mlflow.set_tracking_uri(store.uri)
    mlflow.set_experiment(experiment_id=run.info.experiment_id)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    info = Model.log(
        artifact_path=None,
        name="model",
        flavor=mlflow.pyfunc,
        run_id=run.info.run_id,
        python_model=str(Path(__file__).with_name("pyfunc.py")),
        artifacts={"cell": str(trained.folder.resolve())},
        code_paths=[str(Path(safeecgmatch.__file__).parent)],
        signature=signature(trained),
        input_example=pd.DataFrame(serving.example(trained)),
        pip_requirements=[f"{package}=={version(package).partition('+')[0]}" for package in REQUIREMENTS],
        registered_model_name=registered,
        tags={key: value for key, value in tags(record).items() if value and not key.startswith("mlflow.")},
        metadata={"notice": trained.notice},
    )
    logged = Logged(registered, str(info.registered_model_version), run.info.run_id, tracking_uri())
    store.describe_model(logged.name, logged.version, description(trained, record))
    return logged
