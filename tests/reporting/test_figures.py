from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from safeecgmatch.metrics import ece
from safeecgmatch.reporting.figures import all_figures, gains, overview, panels
from safeecgmatch.reporting.figures.style import COLOURS, MARKERS, Where, save, within_unit
from safeecgmatch.reporting.results import Results
from tests.reporting.conftest import Study
from tests.reporting.synthetic import BASELINES, paper_params

HERE = Where("cinc21", 60, "Generated (CinC21)", False)
ROWS = len(BASELINES) + 4  # four readings of SafeECGMatch


@pytest.fixture(scope="module")
def results(study: Study) -> Results:
    return Results(study.evaluation.metrics, study.evaluation.runs, study.evaluation.contrasts)


def gains_frame(generated: bool = False) -> pd.DataFrame:
    common = {"scaling": "none", "rival": "calimatch", "reading": "fused", "generated": generated, "ood": 60}
    return pd.DataFrame(
        [
            {
                **common,
                "dataset": "ptbxl",
                "metric": metric,
                "estimate": 0.02,
                "low": low,
                "high": 0.03,
                "relation": word,
            }
            for metric, low, word in (("acc", 0.01, "better"), ("ece", -0.01, "inconclusive"))
        ]
    )


def test_no_two_rows_look_alike() -> None:
    assert len({(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i in range(ROWS)}) == ROWS


def test_tradeoff_of_generated_data_shows_ours_alone_on_shared_axes(study: Study, results: Results) -> None:
    axes = overview.tradeoff_figure(study.params, results).axes
    assert [a.get_title() for a in axes] == [
        f"Generated ({name}), {ood} % OOD, ours (demo, paper)" for name in ("PTB-XL", "CinC21") for ood in (30, 60)
    ]
    assert axes[0].get_xlim() == axes[1].get_xlim() != axes[2].get_xlim() == axes[3].get_xlim()
    means = study.evaluation.plots["accuracy_ece"].set_index(["dataset", "ood", "row"])
    drawn = {c.get_label(): c.lines[0].get_xydata()[0] for c in axes[0].containers}
    assert len(drawn) == ROWS
    for label, row in (("CaliMatch", "calimatch"), ("SafeECGMatch (learned, time)", "safeecgmatch-learned_t@time")):
        assert drawn[label] == pytest.approx(means.loc[("ptbxl", 30, row), ["ece", "acc"]].to_numpy())
    for panel in axes:
        ends = np.concatenate([line.get_segments() for c in panel.containers for line in c.lines[2]])
        assert ends.min() >= 0 and ends.max() <= 1


def test_tradeoff_of_real_data_has_the_published_points_above(results: Results) -> None:
    axes = overview.tradeoff_figure(paper_params(), results).axes
    assert len(axes) == 8 and axes[0].get_title() == "PTB-XL, 30 % OOD, published"
    published = {c.get_label(): c.lines[0].get_xydata()[0] for c in axes[0].containers}
    assert published["SafeECGMatch (published)"] == pytest.approx([0.045, 0.852])


def test_bars_stay_where_accuracies_can_be() -> None:
    assert within_unit(0.95, 0.1) == (pytest.approx(0.85), 1) and within_unit(0.02, 0.1)[0] == 0


def test_grids_have_one_panel_per_row_and_name_the_data(study: Study, results: Results) -> None:
    plots, params = study.evaluation.plots, study.params
    trained = panels.training_grid(params, plots["training"], HERE)
    for figure in (
        panels.reliability_grid(params, plots["reliability"], HERE),
        panels.score_grid(params, results, plots["ood_scores"], HERE),
        panels.confusion_grid(params, plots["confusion"], HERE),
        panels.budget_grid(params, plots["budget"], HERE),
        trained,
    ):
        titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
        last = "SafeECGMatch (learned)" if figure is trained else "SafeECGMatch (learned, time)"
        assert len(titles) == (ROWS - 2 if figure is trained else ROWS)
        assert titles[0] == "Supervised" and titles[-1] == last
        assert figure.get_suptitle().endswith("Generated (CinC21), 60 % OOD")


def test_reliability_states_the_ece_of_its_bars_and_their_counts(study: Study) -> None:
    rng = np.random.default_rng(0)
    values = rng.dirichlet([1, 1, 1], 300).astype(np.float32)
    labels = rng.integers(0, 3, 300)
    edges = np.linspace(0, 1, 16)
    confidence, correct = values.max(axis=1), values.argmax(axis=1) == labels
    groups = pd.DataFrame(
        {"bin": np.digitize(confidence, edges, right=True), "confidence": confidence, "accuracy": correct}
    )
    bins = groups.groupby("bin").mean().assign(count=groups.groupby("bin").size())
    assert panels.drawn_ece(bins) == pytest.approx(ece(values, labels))
    frame = study.evaluation.plots["reliability"]
    axes = panels.reliability_grid(study.params, frame, HERE).axes[0]
    drawn = HERE.by_row(frame)["supervised"]
    counts = drawn["count"].astype(str).tolist()
    assert [text.get_text() for text in axes.texts] == [*counts, f"ECE {panels.drawn_ece(drawn):.3f}"]


def test_training_curves_have_a_band_of_the_seeds(study: Study) -> None:
    axes = panels.training_grid(study.params, study.evaluation.plots["training"], HERE).axes[1]
    assert len(axes.collections) == 4  # FixMatch: accuracy, accepted, right, unseen


def test_a_method_without_runs_says_so(study: Study) -> None:
    plots = study.evaluation.plots["training"]
    figure = panels.training_grid(study.params, plots[plots["row"] != "adello"], HERE)
    silent = [axes.get_title() for axes in figure.axes if any(t.get_text() == "no runs" for t in axes.texts)]
    assert silent == ["Adello"]


def test_scores_state_how_many_records_they_are(study: Study, results: Results) -> None:
    frame = study.evaluation.plots["ood_scores"]
    axes = panels.score_grid(study.params, results, frame, HERE).axes[3]
    rows = HERE.by_row(frame)["openmatch"]
    assert axes.texts[0].get_text().endswith(f", N = {rows['seen'].sum()} seen, {rows['unseen'].sum()} unseen")
    assert len(axes.get_yticks()) > 1


def test_purity_and_refusal_show_every_seed_and_method(study: Study, results: Results) -> None:
    axes = overview.purity_figure(study.params, results).axes[3]
    assert [len(line.get_xdata()) for line in axes.lines[1:]] == [0] + [2] * 12  # Supervised accepts nothing
    assert axes.lines[0].get_xdata()[0] == 0.6
    lines = overview.refusal_figure(study.params, study.evaluation.plots["refusal"]).axes[0].lines
    assert len(lines) == ROWS and lines[0].get_xdata()[0] == 0


def test_scatter_needs_real_data(study: Study, results: Results) -> None:
    frames = study.evaluation.plots, gains_frame(generated=True)
    assert "paper_vs_ours" not in all_figures(study.params, results, *frames)
    assert "paper_vs_ours" in all_figures(paper_params(), results, *frames)
    figure = overview.scatter_figure(paper_params(), results)
    assert len(figure.axes) == 8
    assert figure.axes[0].lines[-2].get_xdata()[0] == pytest.approx(0.852)  # SafeECGMatch, published; then the diagonal


@pytest.mark.parametrize("generated", [True, False])
def test_forest_draws_intervals_and_says_what_data(study: Study, generated: bool) -> None:
    figure = gains.forest_figure(study.params, gains_frame(generated))
    assert ("generated data" in figure.get_suptitle()) == generated
    acc = next(axes for axes in figure.axes if axes.get_title() == "Generated (PTB-XL), 60 % OOD")
    assert [0.01, 0.03] in [list(line.get_xdata()) for line in acc.lines]
    assert sum(any(t.get_text() == gains.UNPAIRED for t in axes.texts) for axes in figure.axes) == 6


def test_a_setting_without_any_run_is_drawn_empty(study: Study) -> None:
    nowhere = Where("cinc21", 15, "CinC21", True)
    figure = panels.confusion_grid(study.params, study.evaluation.plots["confusion"], nowhere)
    assert all(axes.texts[0].get_text() == "no runs" for axes in figure.axes if axes.get_visible())


def test_a_rare_colour_survives_in_the_png(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 4))
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).random((40, 40)), cmap="Blues")
    axes.plot(5, 5, "s", color="#009E73", markersize=3)
    save(figure, tmp_path, "rare")
    pixels = np.asarray(Image.open(tmp_path / "rare.png").convert("RGB")).reshape(-1, 3).astype(int)
    assert np.abs(pixels - [0, 0x9E, 0x73]).sum(axis=1).min() < 30


def test_budget_shows_every_seed_what_validation_chose_and_the_papers_value(study: Study) -> None:
    frame = study.evaluation.plots["budget"]
    real = Where("ptbxl", 60, "PTB-XL", True)
    axes = {panel.get_title(): panel for panel in panels.budget_grid(study.params, frame, real).axes}
    panel = axes["SafeECGMatch (learned, fused)"]
    here = frame[(frame["dataset"] == "ptbxl") & (frame["ood"] == 60) & (frame["row"] == "safeecgmatch-learned_t")]
    fused = here[here["branch"] == "fused"]
    lines = [list(line.get_ydata()) for line in panel.lines]
    for _, seed in fused.groupby("seed"):
        assert seed["acc"].tolist() in lines and seed.loc[seed["chosen"], "ece"].tolist() in lines
    assert [0.843, 0.843] in lines and [0.047, 0.047] in lines
    generated = panels.budget_grid(study.params, frame, HERE).axes
    assert not any("published" in str(line.get_label()) for panel in generated for line in panel.lines)


def test_effects_draw_the_intervals_of_the_contrasts(study: Study, results: Results) -> None:
    figure = gains.effects_figure(study.params, results)
    frame = study.evaluation.contrasts
    acc = figure.axes[2]  # PTB-XL, 60 %
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [
        "fitted over learned, fused", "fitted over learned, time", "fitted, time, over CaliMatch",
        "fused over time, fitted", "fused over time, learned", "second over first, fitted",
        "second over first, learned",
    ]  # fmt: skip
    here = frame[(frame["dataset"] == "ptbxl") & (frame["ood"] == 60) & (frame["metric"] == "acc")]
    line = here[(here["candidate"] == "safeecgmatch@time") & (here["rival"] == "safeecgmatch-learned_t@time")].iloc[0]
    drawn = [list(one.get_xdata()) for one in acc.lines]
    assert [line["low"], line["high"]] in drawn and [line["estimate"]] in drawn
