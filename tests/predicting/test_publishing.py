"""A cell exported for publication: the cell's answers to the bit, aggregates alone, and a card that is true."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from safeecgmatch.cli import app
from safeecgmatch.errors import UserError
from safeecgmatch.files import digest_of
from safeecgmatch.metrics import CLOSED_SET, METRICS
from safeecgmatch.predicting.publishing import FROM_RECORD, SHARES
from safeecgmatch.predicting.trained import OF_MODEL, Trained
from safeecgmatch.predictions import final_metrics, read_arrays
from tests.conftest import ROOT
from tests.predicting.conftest import Made
from tests.predicting.test_running import predict
from tests.predicting.test_trained import assert_same_bytes, damage
from tests.test_docs import broken_links

CELL = "ptbxl/safeecgmatch/60/1"
CORPUS = "dataset,source,label,records,patients\nptbxl,ptbxl,CD,1200,9\nptbxl,ptbxl,MI,300,9\ncinc21,georgia,CD,7,\n"
PUBLISHED = sorted(folder for folder in (ROOT / "models").glob("*") if folder.is_dir())


def record_of(made: Made) -> dict[str, object]:
    digest = digest_of(made.folder / "model.safetensors", "md5")
    return {"commit": "0123456789abcdef", "dirty": False, "profile": "cpu", "weights_md5": digest}


def export(cell: object, target: object) -> Result:
    return CliRunner().invoke(app, ["model", "export", str(cell), str(target)])


@pytest.fixture
def project(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, as the current folder, with the cell and the record of its training."""
    shutil.copytree(made.folder, tmp_path / "runs" / CELL)
    record = tmp_path / "tracking" / CELL / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(record_of(made)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(project: Path) -> Path:
    assert export(CELL, "models/mine").exit_code == 0
    return project / "models" / "mine"


@pytest.mark.parametrize("part", ["validation", "open_test"])
def test_a_model_gives_the_bytes_of_its_cell(made: Made, model: Path, part: str) -> None:
    assert_same_bytes(made, part, model)


def test_predict_writes_the_same_files_for_the_model_and_its_cell(made: Made, model: Path, tmp_path: Path) -> None:
    written = []
    for folder in (made.folder, model):
        result = predict(
            Made(folder, made.archive), *made.headers("test")[:9], "--accept", 0.8, "-o", tmp_path / "o.csv"
        )
        assert result.exit_code == 0
        written.append((result.stdout, (tmp_path / "o.csv").read_bytes()))
    assert written[0] == written[1]


def test_nothing_about_a_single_record_is_published(made: Made, model: Path) -> None:
    assert {file.name for file in model.iterdir()} == set(OF_MODEL)
    for file in ("config.yaml", "model.safetensors"):
        assert (model / file).read_bytes() == (made.folder / file).read_bytes()
    own, published = (json.loads((folder / "summary.json").read_text()) for folder in (made.folder, model))
    added = {key: value for key, value in published.items() if key not in own}
    assert added.keys() == {"branch", "thresholds", "metrics", "seen_accepted", "unseen_accepted", *FROM_RECORD}
    assert added["metrics"].keys() == set(METRICS) and len(added["thresholds"]) == len(SHARES)
    assert not any(
        str(made.folder.parents[4]) in (model / file).read_text() for file in OF_MODEL if "tensors" not in file
    )


def test_the_shares_of_a_model_are_those_of_the_card(made: Made, model: Path) -> None:
    for share in SHARES:
        assert Trained.open(model, share).threshold == Trained.open(made.folder, share).threshold
        assert f"| {100 * share:g} % |" in (model / "README.md").read_text()
    with pytest.raises(
        UserError, match=r"published model, which has thresholds for these shares alone: 0\.5, .*0\.99\."
    ):
        Trained.open(model, 0.93)


def test_the_card_holds_the_cells_numbers(made: Made, model: Path) -> None:
    card, metrics = (model / "README.md").read_text(), final_metrics(read_arrays(made.folder / "predictions.npz"))
    assert card.startswith("# SafeECGMatch on PTB-XL, 60 % unseen, seed 1\n")
    assert all(f" {metrics[key]:.3f} |" in card for key in CLOSED_SET if key not in ("ace", "sce"))
    assert f"AUROC {metrics['auroc']:.3f}" in card and "commit `0123456789`" in card
    assert "Generated ECGs in the layout of PTB-XL; no person's." in card and "CC BY" not in card
    assert "not for use on people" in card and "safeecgmatch predict models/mine RECORD" in card


def test_the_card_of_real_records_names_their_licence_and_their_sources(project: Path) -> None:
    damage(project / "runs" / CELL, "summary.json", lambda summary: summary.update(generated_ecgs=False))
    refused = export(CELL, "models/mine")
    assert isinstance(refused.exception, UserError) and "run `safeecgmatch report` first" in str(refused.exception)
    assert not Path("models/mine").exists()
    corpus = Path("reports/cpu/paper/plots/corpus.csv")
    corpus.parent.mkdir(parents=True)
    corpus.write_text(CORPUS)
    assert export(CELL, "models/mine").exit_code == 0
    card = Path("models/mine/README.md").read_text()
    assert "under CC BY 4.0](https://physionet.org/" in card and "1,500 records" in card and "Georgia" not in card
    corpus.write_text(CORPUS.replace("ptbxl,ptbxl,MI", "ptbxl,elsewhere,MI"))
    assert export(CELL, "models/mine").exit_code == 0
    card = Path("models/mine/README.md").read_text()
    assert "from ptbxl (1,200), elsewhere (300)" in card and "Class and source are correlated" in card


def test_a_result_that_waits_in_scratch_has_its_record_beside_it(made: Made, tmp_path: Path) -> None:
    cell = tmp_path / "finished" / "run"
    shutil.copytree(made.folder, cell)
    result = export(cell, tmp_path / "out")
    assert isinstance(result.exception, UserError) and "states its commit" in str(result.exception)
    (tmp_path / "finished" / "run.json").write_text(json.dumps(record_of(made) | {"dirty": True}))
    assert export(cell, tmp_path / "out").exit_code == 0
    assert "with uncommitted changes" in (tmp_path / "out/README.md").read_text()


def test_an_export_replaces_an_export_and_nothing_else(model: Path) -> None:
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    assert export(CELL, model).exit_code == 0
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before
    (model / "thesis.txt").touch()
    result = export(CELL, model)
    assert isinstance(result.exception, UserError) and "something else than an exported model" in str(result.exception)
    assert (model / "thesis.txt").exists()


def test_weights_that_have_changed_are_refused_in_a_cell_and_in_a_model(project: Path, model: Path) -> None:
    """One bit in the middle still makes a network, and other answers."""
    for folder in (Path("runs", CELL), model):
        weights = bytearray((folder / "model.safetensors").read_bytes())
        weights[len(weights) // 2] ^= 1
        (folder / "model.safetensors").write_bytes(weights)
        with pytest.raises(UserError, match=r"model\.safetensors has changed since it was written"):
            Trained.open(folder)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_models_can_be_used(folder: Path) -> None:
    trained, card = Trained.open(folder), (folder / "README.md").read_text()
    assert not trained.summary["generated_ecgs"] and not trained.summary["dirty"]
    assert f"| {trained.summary['metrics']['acc']:.3f} |" in card and f"predict models/{folder.name} " in card
    assert (folder / "model.safetensors").stat().st_size < 2_500_000
    assert broken_links(f"models/{folder.name}/README.md", card) == []
