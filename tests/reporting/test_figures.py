from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from safeecgmatch.reporting.figures import all_figures, gains, overview, panels
from safeecgmatch.reporting.figures.style import (
    BLUE,
    GREY,
    LOOKS,
    STYLE,
    line_of,
    look,
    save,
    settings_of,
    shown_rows,
    within_unit,
)
from safeecgmatch.reporting.study import PLOTS, Study, Where, places
from tests.reporting.conftest import MadeUp
from tests.reporting.synthetic import BASELINES, make_params, paper_params

HERE = Where("cinc21", 60, "Generated (CinC21)", False)
ROWS = len(BASELINES) + 4  # four readings of SafeECGMatch


@pytest.fixture(scope="module")
def found(study: MadeUp) -> Study:
    return study.evaluation


def real(found: Study) -> Study:
    return replace(found, params=paper_params())


def with_gains(found: Study) -> Study:
    """With two gains at one setting: in ACC surely better, in ECE not sure."""
    common = {"dataset": "ptbxl", "ood": 60, "scaling": "none", "candidate": "safeecgmatch@fused", "rival": "calimatch",
              "seeds": 3, "records": 1331, "estimate": 0.02, "se_records": 0.0, "high": 0.03}  # fmt: skip
    lines = [{"metric": "acc", "se_seeds": 0.002, "low": 0.01}, {"metric": "ece", "se_seeds": 0.02, "low": -0.01}]
    return replace(found, contrasts=pd.DataFrame([common | line for line in lines]))


def drawn(axes: Axes) -> dict[str, Any]:
    """What the legend names, with its points."""
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def test_a_method_looks_the_same_in_every_study_and_like_no_other(study: MadeUp) -> None:
    rows = list(shown_rows(study.params))
    assert len({tuple(look(row).values()) for row in rows}) == ROWS == len(LOOKS) == len(set(LOOKS.values()))
    assert look("uda") == look("uda") != look("flexmatch")  # a thirteenth: by its name, whatever else there is
    assert tuple(look("uda").values()) not in LOOKS.values()
    few = make_params(grid={"methods": ["calimatch"]})
    assert list(shown_rows(few)) == ["calimatch", "safeecgmatch@fused", "safeecgmatch@time"]
    axes = overview.tradeoff_figure(replace(study.evaluation, params=few), places(few)).axes[0]
    assert drawn(axes)["CaliMatch"].get_color() == look("calimatch")["color"]


def test_safeecgmatch_alone_is_red() -> None:
    def is_red(row: str) -> bool:
        red, green, blue = to_rgb(look(row)["color"])
        return red > 0.7 and max(green, blue) < 0.75 * red and abs(green - blue) < 0.2

    assert [row for row in [*LOOKS, "uda", "flexmatch", "mixmatch"] if is_red(row)] == [
        row for row in LOOKS if row.startswith("safeecgmatch")
    ]
    assert look("safeecgmatch") == look("safeecgmatch@fused")
    assert [line_of(f"safeecgmatch@{branch}")["linestyle"] for branch in ("fused", "time")] == ["-", "--"]


def test_tradeoff_of_generated_data_shows_ours_alone_on_shared_axes(study: MadeUp, found: Study) -> None:
    figure = overview.tradeoff_figure(found, places(found.params))
    axes = figure.axes
    assert "study demo, protocol paper" in figure.get_suptitle() and "published" not in figure.get_suptitle()
    assert [a.get_title() for a in axes] == [
        f"Generated ({name}), {ood} % OOD" for name in ("PTB-XL", "CinC21") for ood in (30, 60)
    ]
    assert axes[0].get_xlim() == axes[1].get_xlim() != axes[2].get_xlim() == axes[3].get_xlim()
    means = study.evaluation.plots["accuracy_ece"].set_index(["dataset", "ood", "row"])
    points = drawn(axes[0])
    assert len(points) == ROWS
    for label, row in (("CaliMatch", "calimatch"), ("SafeECGMatch (learned, time)", "safeecgmatch-learned_t@time")):
        assert points[label].get_xydata()[0] == pytest.approx(means.loc[("ptbxl", 30, row), ["ece", "acc"]].to_numpy())
    for panel in axes:
        ends = np.concatenate([line.get_xydata() for line in panel.lines])
        assert ends.min() >= 0 and ends.max() <= 1


def test_tradeoff_joins_the_readings_that_differ_in_one_choice(study: MadeUp, found: Study) -> None:
    axes = overview.tradeoff_figure(found, places(found.params)).axes[0]
    names = {tuple(line.get_xydata()[0]): label for label, line in drawn(axes).items()}
    joined = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 0.7]
    pairs = [{names[tuple(end)][14:-1] for end in line.get_xydata()} for line in joined]
    assert pairs == [
        {"fitted, fused", "fitted, time"}, {"fitted, fused", "learned, fused"}, {"fitted, time", "learned, time"},
        {"learned, fused", "learned, time"},
    ]  # fmt: skip


def test_tradeoff_of_real_data_has_the_published_points_hollow_in_the_same_panel(found: Study) -> None:
    figure = overview.tradeoff_figure(real(found), places(paper_params()))
    assert len(figure.axes) == 4 and figure.get_suptitle().endswith("hollow: published")
    star = drawn(figure.axes[0])["SafeECGMatch (published)"]
    assert star.get_xydata()[0] == pytest.approx([0.045, 0.852]) and star.get_markerfacecolor() == "none"
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert len(hollow) == len(BASELINES) + 1


def test_bars_stay_where_accuracies_can_be() -> None:
    assert within_unit(0.95, 0.1) == (pytest.approx(0.85), 1) and within_unit(0.02, 0.1)[0] == 0


def test_grids_have_one_panel_per_row_and_name_the_data(study: MadeUp) -> None:
    trained = panels.training_grid(study.evaluation, HERE)
    for figure in (
        panels.reliability_grid(study.evaluation, HERE),
        panels.confusion_grid(study.evaluation, HERE),
        panels.budget_grid(study.evaluation, HERE),
        trained,
    ):
        titles = [title.replace("\n", " ") for axes in figure.axes if (title := axes.get_title())]
        last = "SafeECGMatch (learned)" if figure is trained else "SafeECGMatch (learned, time)"
        assert len(titles) == (ROWS - 2 if figure is trained else ROWS)
        assert titles[0] == "Supervised" and titles[-1] == last
        assert figure.get_suptitle().endswith("Generated (CinC21), 60 % OOD")


def test_reliability_shows_all_seeds_and_states_the_ece_of_the_tables(study: MadeUp, found: Study) -> None:
    frame = study.evaluation.plots["reliability"]
    bins = HERE.by_row(frame)["supervised"]
    printed = found.value("cinc21", "supervised", 60, "ece")
    assert printed and panels.mean_ece(bins) == pytest.approx(printed.mean)
    axes = panels.reliability_grid(study.evaluation, HERE).axes[0]
    counts = bins.groupby("lower")["count"].sum()
    assert [text.get_text() for text in axes.texts] == [*counts.astype(str), f"ECE {printed.mean:.3f}"]
    right = (bins["accuracy"] * bins["count"]).groupby(bins["lower"]).sum() / counts
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(right.to_list())


def test_pooled_bins_are_those_of_the_pooled_records() -> None:
    bins = pd.DataFrame({"lower": [0.4, 0.4, 0.6], "count": [1, 3, 2], "confidence": [0.42, 0.46, 0.7],
                         "accuracy": [1.0, 0.0, 0.5], "seed": [1, 2, 2]})  # fmt: skip
    pooled = panels.pooled_bins(bins)
    assert pooled["count"].to_list() == [4, 2]
    assert pooled["confidence"].to_list() == pytest.approx([0.45, 0.7])
    assert pooled["accuracy"].to_list() == pytest.approx([0.25, 0.5])
    assert panels.mean_ece(bins) == pytest.approx((0.58 + (3 * 0.46 + 2 * 0.2) / 5) / 2)


def test_confusion_adds_the_seeds(study: MadeUp) -> None:
    frame = study.evaluation.plots["confusion"]
    figure = panels.confusion_grid(study.evaluation, HERE)
    counts = HERE.by_row(frame)["supervised"].groupby(["true", "predicted"], sort=False)["count"].sum().unstack()
    shown = np.asarray(figure.axes[0].images[0].get_array())
    first = counts.loc[figure.axes[0].get_yticklabels()[0].get_text()]
    order = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert shown[0] == pytest.approx((first / first.sum())[order].to_list())


def test_training_curves_have_a_band_of_the_seeds(study: MadeUp) -> None:
    axes = panels.training_grid(study.evaluation, HERE).axes[1]
    assert len(axes.collections) == 4  # FixMatch: accuracy, accepted, right, unseen


def test_a_method_without_runs_says_so(study: MadeUp) -> None:
    lines = study.evaluation.plots["training"]
    plots = {"training": lines[lines["row"] != "adello"]}
    figure = panels.training_grid(replace(study.evaluation, plots=plots), HERE)
    assert "No runs yet: Adello." in [text.get_text() for text in figure.texts]
    assert "Adello" not in [axes.get_title() for axes in figure.axes]


def test_purity_shows_every_seed_and_method(study: MadeUp, found: Study) -> None:
    axes = overview.purity_figure(found, places(found.params)).axes[3]
    assert [len(line.get_xdata()) for line in axes.lines[1:]] == [0] + [2] * 12  # Supervised accepts nothing
    assert axes.lines[0].get_xdata()[0] == 0.6


def test_curves_are_of_every_row_and_the_best_five_have_colours(study: MadeUp, found: Study) -> None:
    refusal, roc = (study.evaluation.plots[name] for name in ("refusal", "roc"))
    for figure, frame, x, y in (
        (overview.refusal_figure(found, places(found.params)), refusal, "refused", "accuracy"),
        (overview.roc_figure(found, places(found.params)), roc, "fpr", "tpr"),
    ):
        axes = figure.axes[3]
        curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
        assert len(curves) == ROWS and {line.get_xdata()[0] for line in curves} == {0}
        legend = axes.get_legend()
        assert legend
        named = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
        assert named[-1] == "the others" and 5 <= len(named) - 1 <= 6
        scores = [float(name.split()[-1]) for name in named[:-1]]
        assert scores == sorted(scores, reverse=True) and any("SafeECGMatch" in name for name in named)
        best = next(line for line in curves if str(line.get_label()).startswith(named[0].split()[0]))
        row = next(row for row, label in shown_rows(study.params).items() if label == named[0].rpartition(" ")[0])
        assert best.get_color() == look(row)["color"]
        means = HERE.by_row(frame)[row].groupby(x)[y].mean()
        assert best.get_ydata() == pytest.approx(means.to_numpy())


def test_the_roc_legend_has_the_auroc_of_the_tables_or_of_the_curve(study: MadeUp, found: Study) -> None:
    unknown = replace(found, metrics=found.metrics[found.metrics["metric"] != "auroc"])
    for known in (found, unknown):
        legend = overview.roc_figure(known, places(known.params)).axes[3].get_legend()
        assert legend
        label, _, value = legend.get_texts()[0].get_text().replace("\n", " ").rpartition(" ")
        row = next(row for row, name in shown_rows(study.params).items() if name == label)
        printed = found.value("cinc21", row, 60, "auroc")
        assert printed and float(value) == pytest.approx(printed.mean, abs=0.0006 if known is found else 0.02)


def test_scatter_needs_real_data(study: MadeUp, found: Study) -> None:
    assert "paper_vs_ours" not in all_figures(found)
    assert "paper_vs_ours" in all_figures(real(found))
    figure = overview.scatter_figure(real(found), places(paper_params()))
    assert len(figure.axes) == 8
    assert figure.axes[0].lines[-2].get_xdata()[0] == pytest.approx(0.852)  # SafeECGMatch, published; then the diagonal


@pytest.mark.parametrize("generated", [True, False])
def test_forest_draws_intervals_and_says_what_data(found: Study, generated: bool) -> None:
    seen = with_gains(found if generated else real(found))
    figure = gains.forest_figure(seen, settings_of(seen.params, gains.forest_marks(seen)))
    headline = " ".join(figure.get_suptitle().split())
    assert ("generated data" in headline) == generated
    assert len(figure.axes) == 2  # the other settings are named in a sentence
    for axes, low, colour in zip(figure.axes, (0.01, -0.01), (BLUE, GREY), strict=True):
        assert [low, 0.03] in [list(line.get_xdata()) for line in axes.lines if line.get_color() == colour]
    assert headline.endswith(
        "fewer than two pairs of seeds: "
        + ", ".join(f"{where.data} {where.ood} %" for where in places(seen.params) if where.ending != "ptbxl_60")
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_figures_and_panels_are_of_the_settings_that_have_runs(study: MadeUp, kept: int) -> None:
    def few(frame: pd.DataFrame) -> pd.DataFrame:
        first = frame[(frame["row"] == "fixmatch") & (frame["seed"] == 1)]
        return first[[place in settings for place in zip(first["dataset"], first["ood"], strict=True)]]

    settings = [("ptbxl", 30), ("ptbxl", 60), ("cinc21", 60)][-kept:] if kept else []
    told = study.evaluation
    plots = {name: few(told.plots[name]) for name in PLOTS if name != "corpus"}
    seen = Study(paper_params(), few(told.metrics), told.runs, told.contrasts[:0], plots)
    figures = all_figures(seen)
    overall = ["tradeoff", "paper_vs_ours", "purity", "refusal", "roc"]
    grids = [
        f"{name}_{dataset}_{ood}"
        for dataset, ood in settings
        for name in ("reliability", "budget", "training", "confusion")
    ]
    assert list(figures) == ([*overall, *grids] if kept else [])
    with rc_context(STYLE):
        for name, drawn in figures.items():
            figure = drawn.make()
            figure.draw_without_rendering()
            if name in overall:
                assert len(figure.axes) == kept * (1 + (name == "paper_vs_ours"))
                assert ("no runs yet: PTB-XL 30 %" in " ".join(figure.get_suptitle().split())) == (kept == 1)


def test_the_same_figure_has_the_same_bytes_and_no_date(study: MadeUp, found: Study, tmp_path: Path) -> None:
    for name in ("first", "second"):
        save(overview.purity_figure(found, places(found.params)), tmp_path, name)
    for ending in ("png", "pdf"):
        one, other = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("first", "second"))
        assert one == other and b"CreationDate" not in one
    assert Image.open(tmp_path / "first.png").size[0] == pytest.approx(8.2 * 200, abs=1)


def test_a_rare_colour_survives_in_the_png(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 4))
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).random((40, 40)), cmap="Blues")
    axes.plot(5, 5, "s", color="#009E73", markersize=3)
    save(figure, tmp_path, "rare")
    pixels = np.asarray(Image.open(tmp_path / "rare.png").convert("RGB")).reshape(-1, 3).astype(int)
    assert np.abs(pixels - [0, 0x9E, 0x73]).sum(axis=1).min() < 30


def test_budget_shows_every_seed_what_validation_chose_and_the_papers_value(study: MadeUp) -> None:
    frame = study.evaluation.plots["budget"]
    real = Where("ptbxl", 60, "PTB-XL", True)
    axes = panels.budget_grid(study.evaluation, real).axes
    first = [panel.get_title() for panel in axes].index("SafeECGMatch\n(learned, fused)")
    accuracy, calibration = axes[first : first + 2]
    here = frame[(frame["dataset"] == "ptbxl") & (frame["ood"] == 60) & (frame["row"] == "safeecgmatch-learned_t")]
    fused = here[here["branch"] == "fused"]
    for panel, metric, paper in ((accuracy, "acc", 0.843), (calibration, "ece", 0.047)):
        lines = [list(line.get_ydata()) for line in panel.lines]
        for _, seed in fused.groupby("seed"):
            assert seed[metric].tolist() in lines and seed.loc[seed["chosen"], metric].tolist() in lines
        assert [paper, paper] in lines
        assert len({other.get_ylim() for other in axes[first % 2 + (metric == "ece") :: 2]}) == 1
    generated = panels.budget_grid(study.evaluation, HERE)
    assert "published" not in generated.get_suptitle()
    assert not any(line.get_linestyle() == "--" for panel in generated.axes for line in panel.lines)


def test_effects_draw_the_intervals_of_the_contrasts(study: MadeUp, found: Study) -> None:
    figure = gains.effects_figure(found, settings_of(found.params, gains.effect_marks(found)))
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
