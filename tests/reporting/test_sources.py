from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from safeecgmatch.cells import cells
from safeecgmatch.config import Params
from safeecgmatch.engine.signal_store import Entry, write_table
from safeecgmatch.errors import UserError
from safeecgmatch.predictions import read_arrays
from safeecgmatch.reporting.deviations import barriers, deviations
from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
from safeecgmatch.reporting.names import data_name
from safeecgmatch.reporting.page import to_readme
from safeecgmatch.reporting.plot_data import FEWEST, commonest
from safeecgmatch.reporting.provenance import data_sources
from safeecgmatch.reporting.sections import sizes, source_blocks
from safeecgmatch.reporting.study import read_study, with_corpora
from tests.reporting.synthetic import make_params, paper_params, write_cell

CLASSES = ["NORM", "RHY", "CD"]
RARE = FEWEST - 1  # test records of one seed from the smallest source
SMALL = {
    "grid": {"datasets": ["cinc21"], "methods": ["fixmatch"], "ood_levels": [60], "seeds": [1, 2]},
    "readings": ["learned_t"], "ablation": {"datasets": []}, "sensitivity": {"datasets": []},
}  # fmt: skip


def source_of(index: int) -> str:
    return "ningbo" if index < RARE else "ptb-xl" if index % 2 else "georgia"


def write_sources(root: Path, params: Params) -> list[Entry]:
    """Cells and the records that they were tested on, of three sources; more records that are in no test."""
    for cell in cells(params):
        write_cell(cell, params, root, 60, classes=CLASSES)
    predictions = read_arrays(root / "runs" / "cinc21" / "fixmatch" / "60" / "1" / "predictions.npz")
    entries = [
        Entry(record, "", [*CLASSES, "ST"][label], source_of(index), "", 1000)
        for index, (record, label) in enumerate(
            zip(*(predictions[f"open_test.{k}"] for k in ("record", "label")), strict=True)
        )
    ]
    entries += [Entry(f"more{i}", "", CLASSES[2 if i % 4 else 0], "georgia", "", 1000) for i in range(200)]
    entries += [Entry(f"unseen{i}", "", "ST", "ptb-xl", "", 1000) for i in range(500)]
    (root / "data" / "filtered" / "cinc21").mkdir(parents=True)
    write_table(root / "data" / "filtered" / "cinc21" / "records.csv", entries)
    return entries


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.fixture(scope="module")
def frames(root: Path) -> dict[str, pd.DataFrame]:
    params = make_params(**SMALL)
    write_sources(root, params)
    result = evaluate(params, root / "runs", root / "tracking")
    write_evaluation(result, root / "out")
    return result.plots


def test_the_guess_is_the_commonest_seen_class_of_the_source_in_the_corpus(root: Path, frames: dict) -> None:
    predictions = read_arrays(root / "runs" / "cinc21" / "fixmatch" / "60" / "1" / "predictions.npz")
    labels = predictions["test.label"]
    sources = np.array([source_of(index) for index in range(60)])
    by_hand = {}
    for source in ("georgia", "ptb-xl", "ningbo"):
        counts = np.bincount(labels[sources == source], minlength=3)
        if source == "georgia":  # 50 more of NORM, 150 more of CD; unseen classes do not count
            counts += np.array([50, 0, 150])
        by_hand[source] = int(counts.argmax())
    assert by_hand["georgia"] == 2
    right = np.array([by_hand[source] for source in sources]) == labels
    lines = frames["sources"].set_index(["row", "seed", "source"])
    assert set(frames["sources"]["ood"]) == {60}
    # Seeds 1 and 2 have other labels in these made-up cells: the guess of each is scored on its own test set.
    other = read_arrays(root / "runs" / "cinc21" / "fixmatch" / "60" / "2" / "predictions.npz")["test.label"]
    second = np.array([by_hand[source] for source in sources]) == other
    for seed, hits in ((1, right), (2, second)):
        for source, mask in (("all", sources != ""), ("georgia", sources == "georgia")):
            expected = [hits[mask].mean(), mask.sum()]
            assert lines.loc[("fixmatch", seed, source), ["guess", "records"]].tolist() == pytest.approx(expected)


def test_ties_go_to_the_first_class() -> None:
    entries = [Entry(str(i), "", label, "ptb", "", 1) for i, label in enumerate(["CD", "NORM", "ST", "ST", "ST"])]
    assert commonest(entries, CLASSES) == {"ptb": 0}


def test_accuracy_by_source_is_that_of_the_shown_branch(root: Path, frames: dict) -> None:
    lines = frames["sources"].set_index(["row", "seed", "source"])["acc"]
    mask = np.array([source_of(index) == "ptb-xl" for index in range(60)])
    for row, folder, branch in (
        ("fixmatch", "fixmatch", "main"),
        ("safeecgmatch-learned_t@time", "safeecgmatch-learned_t", "time"),
    ):
        for seed in (1, 2):
            predictions = read_arrays(root / "runs" / "cinc21" / folder / "60" / str(seed) / "predictions.npz")
            right = predictions[f"test.log_probs.{branch}"].argmax(axis=1) == predictions["test.label"]
            assert lines[row, seed, "ptb-xl"] == pytest.approx(right[mask].mean())
    metrics = evaluate(make_params(**SMALL), root / "runs", root / "tracking").metrics
    chosen = metrics[(metrics["row"] == "fixmatch") & (metrics["metric"] == "acc") & (metrics["scaling"] == "none")]
    assert lines["fixmatch"][:, "all"].tolist() == pytest.approx(chosen["value"].tolist())


def test_nothing_is_said_about_few_records(frames: dict) -> None:
    line = frames["sources"].set_index(["row", "seed", "source"]).loc[("fixmatch", 1, "ningbo")]
    assert line["records"] == RARE < FEWEST and pd.isna(line["acc"]) and pd.isna(line["guess"])


def test_report_prints_source_by_class_and_names_no_patients(root: Path, frames: dict) -> None:
    corpus = pd.read_csv(root / "out" / "plots" / "corpus.csv")
    counts = corpus.set_index(["source", "label"])["records"]
    assert counts["ptb-xl", "ST"] >= 500 and corpus["patients"].isna().all()
    params = make_params(**SMALL)
    text = to_readme(source_blocks(params, corpus, pd.read_csv(root / "out" / "plots" / "sources.csv")))
    assert f"| PTB-XL | {counts['ptb-xl', 'ST']:,} |" in text and "| Guess by source | 0." in text
    assert "SafeECGMatch (learned, time)" in text and f"Ningbo (N = {2 * RARE})" in text
    table = [row.split(" | ") for row in text.splitlines() if row.startswith(("| Guess", "| FixMatch"))]
    means = frames["sources"].groupby(["row", "source"])[["acc", "guess"]].mean().loc[("fixmatch", "all")]
    assert [row[1] for row in table] == [f"{means['guess']:.3f}", f"{means['acc']:.3f}"]
    runs = pd.read_csv(root / "out" / "runs.csv")
    assert sizes(params, runs, corpus).splitlines()[2].endswith("| unknown |")
    assert sizes(params, runs, corpus.assign(patients=1234)).splitlines()[2].endswith("| 1,234 |")


def test_a_real_corpus_of_fewer_sources_is_named_wherever_the_dataset_is(root: Path, frames: dict) -> None:
    real = paper_params()
    named = with_corpora(real, frames["corpus"])
    assert data_name(named, "cinc21").name == "CinC21 (3 sources)" and data_name(named, "ptbxl").name == "PTB-XL"
    assert "CinC21 (3 of 8 sources: PTB-XL, Georgia, Ningbo) from PhysioNet" in data_sources(named)
    assert barriers(deviations(named), "cinc21") == ["3 of 8 sources"] and barriers(deviations(named), "ptbxl") == []
    assert data_name(read_study(real, root / "out").params, "cinc21").name == "CinC21 (3 sources)"
    assert data_name(with_corpora(real, frames["corpus"].iloc[:0]), "cinc21").name == "CinC21"
    generated = make_params()
    assert with_corpora(generated, frames["corpus"]) == generated


def test_without_data_nothing_is_said_and_foreign_data_are_one_sentence(root: Path, tmp_path: Path) -> None:
    params = make_params(**SMALL)
    entries = write_sources(tmp_path, params)[1:]
    (tmp_path / "data" / "filtered").rename(tmp_path / "data" / "elsewhere")
    frames = evaluate(params, tmp_path / "runs", tmp_path / "tracking").plots
    assert frames["sources"].empty and frames["corpus"].empty
    (tmp_path / "data" / "elsewhere").rename(tmp_path / "data" / "filtered")
    write_table(tmp_path / "data" / "filtered" / "cinc21" / "records.csv", entries)
    with pytest.raises(UserError, match=r"tested on records that data/filtered/cinc21 does not have; run `dvc repro"):
        evaluate(params, tmp_path / "runs", tmp_path / "tracking")
