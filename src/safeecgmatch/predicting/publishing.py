"""A finished cell as a folder that may be published: weights, config, aggregates and a model card.

Nothing in it is about a single record: a cell's predictions.npz and trajectory.npz stay behind.
"""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, write_json, write_text
from safeecgmatch.predicting.trained import (
    CARD,
    CONFIG,
    DIGEST,
    OF_MODEL,
    PREDICTIONS,
    SUMMARY,
    THRESHOLDS,
    WEIGHTS,
    Trained,
    read_record,
)
from safeecgmatch.predictions import Arrays, acceptance, final_metrics, ood_score, read_arrays
from safeecgmatch.reporting.names import dataset_name, method_name, metric_name, source_names

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
FROM_RECORD = ("commit", "dirty", "profile", DIGEST)
ON_TEST = ("acc", "balanced_accuracy", "macro_f1", "ece", "nll", "brier")
# Who made the records, and under which licence; a dataset that is not listed cannot be published by mistake.
CREDITS = {
    "ptbxl": "PTB-XL 1.0.3 (Wagner et al., Scientific Data 7:154, 2020; PhysioNet), under CC BY 4.0",
    "cinc21": "PhysioNet/CinC Challenge 2021 1.0.3 (Reyna et al., Computing in Cardiology 48, 2021), under CC BY 4.0",
}


def export(folder: Path, target: Path) -> None:
    """The finished cell in `folder` as a model in `target`."""
    if target.exists() and not (target.is_dir() and {file.name for file in target.iterdir()} <= set(OF_MODEL)):
        raise UserError(f"{target} is something else than an exported model: name another folder.")
    trained, record, predictions = Trained.open(folder), read_record(folder), read_arrays(folder / PREDICTIONS)
    if missing := [key for key in FROM_RECORD if key not in record]:
        raise UserError(f"No run.json of {folder} states its {missing[0]}: `dvc checkout` brings it back.")
    summary = trained.summary | aggregates(trained, predictions) | {key: record[key] for key in FROM_RECORD}
    text = card(trained, summary, target.name)
    with atomic_path(target) as partial:
        partial.mkdir()
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(folder / name, partial / name)
        write_json(partial / SUMMARY, summary)
        write_text(partial / CARD, text)


def aggregates(trained: Trained, predictions: Arrays) -> dict[str, Any]:
    """What the card prints and `predict` needs, and what predictions.npz would have told."""
    unseen = predictions["open_test.label"] >= len(trained.classes)
    accepted = ood_score(predictions, trained.branch) <= trained.threshold
    return {
        "branch": trained.branch,
        THRESHOLDS: {f"{share:g}": acceptance(predictions, share)["accept_threshold"] for share in SHARES},
        "metrics": final_metrics(predictions),
        "seen_accepted": float(np.mean(accepted[~unseen])),
        "unseen_accepted": float(np.mean(accepted[unseen])),
    }


def card(trained: Trained, summary: dict[str, Any], name: str) -> str:
    config, cell, metrics = trained.config, trained.config["cell"], summary["metrics"]
    refused = [key for key in metrics if key.startswith("acc_refusing_")]
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")).render(
        name=name,
        notice=trained.notice,
        config=config,
        cell=cell,
        summary=summary,
        metrics=metrics,
        method=method_name(cell["method"]),
        data=dataset_name(cell["dataset"]).name,
        url=find_dataset(cell["dataset"]).url,
        on_test=table({metric_name(key): f"{metrics[key]:.3f}" for key in ON_TEST}),
        thresholds=table({f"{100 * float(share):g} %": f"{value:.4f}" for share, value in summary[THRESHOLDS].items()}),
        refusing=table({metric_name(key): f"{metrics[key]:.3f}" for key in refused}),
        report=f"reports/{summary['profile']}/{config['protocol']}",
        **({} if summary["generated_ecgs"] else origin(summary["profile"], config["protocol"], cell["dataset"])),
    )


def table(columns: dict[str, str]) -> str:
    """One row below its heading, in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---:"] * len(columns), columns.values()))


def origin(profile: str, protocol: str, dataset: str) -> dict[str, Any]:
    """Of real records: whom to credit, and how many of each source the study had, as its report counts them."""
    if dataset not in CREDITS:
        raise UserError(f"Nothing is known of the licence of {dataset}: add it to CREDITS in {Path(__file__).name}.")
    file = Path("reports", profile, protocol, "plots", "corpus.csv")
    counts: Counter[str] = Counter()
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["dataset"] == dataset:
                    counts[source_names(dataset).get(row["source"], row["source"])] += int(row["records"])
    if not counts:
        raise UserError(f"{file} does not count the records of {dataset}: run `safeecgmatch report` first.")
    return {"credit": CREDITS[dataset], "sources": counts}
