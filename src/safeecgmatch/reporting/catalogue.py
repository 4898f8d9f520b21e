"""The paper's four tables and those that go beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from safeecgmatch.cells import weight_label
from safeecgmatch.metrics import OPEN_SET, REFUSED
from safeecgmatch.reporting import rows as rows_of
from safeecgmatch.reporting.names import summary_methods, variant_name
from safeecgmatch.reporting.plot_data import FIVE, LAST, LAST_FIVE, OWN_BEST
from safeecgmatch.reporting.provenance import accepted_as_unseen, score_notes, warning_notes
from safeecgmatch.reporting.study import TRAINING, Study
from safeecgmatch.reporting.tables import Table, columns_for, listed, make_table, our_runs, runs_of

NO_CAL_NOTE = "Without calibration there are no temperatures: {} is one run, printed under both rules."
SENSITIVITY_NOTE = (
    "No gradient passes between the branches, so after equally many iterations the time branch has the same bits for "
    "every lambda_sum, and the frequency branch feels a factor through Adam's epsilon alone. What lambda_sum does "
    "change is which checkpoint is chosen; the differences between its values are a noise floor."
)
EQUAL_NOTE = (
    "The time branch is reported and selects the checkpoint, and nothing of the frequency branch reaches it: rows that "
    "differ in the frequency branch alone are equal by construction."
)
PAIRED_NOTE = (
    "Paired by construction: under one seed the time branches of all runs share initial weights, batches and views; "
    "with learned temperatures that branch is CaliMatch."
)
CHOICE_NOTE = (
    "The other choices are computed from the predictions that every cell keeps of each epoch. Test is never used for "
    "selection: the reported numbers are those of the best validation checkpoint, whatever these columns show."
)
PAPER_METRICS = ("acc", "ece", "ace", "sce")
MEASURED = ("acc", "ece", ("ece", "posthoc"), "auroc")  # of what the study was designed to tell apart
ACCEPTED = ("accepted", "accepted_unseen", "accepted_second", "teacher_accuracy")
TEMPERATURES = ("t_class", "t_ova", "t_class_second", "t_ova_second")


def build_tables(study: Study) -> list[Table]:
    """Tables 1 to 4 in the paper's order, then what goes beyond them; a table without runs is left out."""
    tables = [*paper_tables(study), *further_tables(study), *design_tables(study)]
    return [table for table in tables if table.rows and table.columns]


def paper_tables(study: Study) -> list[Table]:
    params, table = study.params, partial(make_table, study)
    datasets, ablation, sensitivity = params.grid.datasets, params.ablation, params.sensitivity
    shown = our_runs(study, datasets)
    ablation_rows = rows_of.ablation_rows(params)
    in_ablation = [name for name in params.datasets() if name in {*ablation.datasets, *params.variants.datasets}]
    equal = [EQUAL_NOTE] if study.reported == "time" else []
    without = {row.section for row in ablation_rows if row.label == variant_name("no_cal")}

    def levels(members: Sequence[int]) -> str:
        return listed([f"{ood} %" for ood in members])

    return [
        table(
            "table1_summary",
            "summary",
            f"Summary of benchmark results on {shown}.",
            rows_of.method_rows(params, summary_methods(rows_of.methods(params))),
            columns_for(datasets, "acc", "ece"),
        ),
        table(
            "table2_ablation",
            "ablation",
            f"Ablation study at {levels(ablation.ood_levels)} OOD on {our_runs(study, in_ablation)}, "
            f"lambda_sum = {weight_label(ablation.lambda_sum)}, reported prediction.",
            ablation_rows,
            columns_for(in_ablation, "acc", "ece"),
            [NO_CAL_NOTE.format(variant_name("no_cal"))] * (len(without) > 1) + equal,
        ),
        table(
            "table3_benchmark",
            "full benchmark",
            f"Main benchmark results on {shown}. Lower ECE, ACE and SCE represent better calibration.",
            rows_of.method_rows(params, rows_of.methods(params)),
            columns_for(datasets, *PAPER_METRICS),
        ),
        table(
            "table4_sensitivity",
            "sensitivity to lambda_sum",
            f"Sensitivity analysis of lambda_sum on {our_runs(study, sensitivity.datasets)} with "
            f"{levels(sensitivity.ood_levels)} OOD.",
            rows_of.sensitivity_rows(params),
            columns_for(sensitivity.datasets, *PAPER_METRICS),
            [SENSITIVITY_NOTE, *equal],
            first_head="λ_sum",
        ),
    ]


def further_tables(study: Study) -> list[Table]:
    """Other metrics of the runs of Table 3."""
    params, table = study.params, partial(make_table, study)
    datasets, methods = params.grid.datasets, rows_of.methods(params)
    rows, shown = rows_of.method_rows(params, methods), our_runs(study, datasets)
    trained = rows_of.training_rows(params)
    learned = study.metrics[study.metrics["metric"] == "t_class"]
    tempered = [row for row in trained if row.key in set(learned["row"])]
    return [
        table(
            "table5_further_metrics",
            "further metrics",
            f"Further metrics on the test set of {shown}.",
            rows,
            columns_for(datasets, "balanced_accuracy", "macro_f1", "nll", "brier"),
        ),
        table(
            "table6_open_set",
            "unseen classes",
            f"Seen against unseen classes on the open test set of {shown}, by the method's unseen-class score. FPR95: "
            "share of seen records flagged where 95 % of the unseen ones are. AURC: area under the risk-coverage "
            "curve, the mean share of wrong answers over all shares of refused records; an answer for an unseen "
            "class is always wrong.",
            rows,
            columns_for(datasets, *OPEN_SET, "aurc"),
            score_notes(runs_of(study, rows, datasets)),
        ),
        table(
            "table6b_refusal",
            "accuracy with refusals",
            f"Accuracy on the open test set of {shown}, when the 0 to 50 % least certain records, by the score of "
            "Table 6, are refused; an answer for an unseen class is always wrong.",
            rows,
            columns_for(datasets, *(f"acc_refusing_{share}" for share in REFUSED)),
        ),
        table(
            "table7_posthoc",
            "after post-hoc temperature scaling",
            f"Calibration on {shown}, after post-hoc temperature scaling, marked (T): every method gets one "
            "temperature in [0.2, 5], fitted on validation. Accuracy is that of Table 3.",
            rows,
            columns_for(datasets, *product(("ece", "ace", "sce", "nll"), ("posthoc",))),
        ),
        table(
            "table8_branches",
            "branch by branch",
            f"Branches of the two-branch methods on {shown}, at the epoch that the reported prediction chose and, "
            "marked own best, at the best validation epoch of each branch by itself.",
            rows_of.branch_rows(params, study.branches),
            columns_for(datasets, *product(("acc", "ece"), ("none", OWN_BEST))),
            [CHOICE_NOTE],
        ),
        table(
            "table9_training",
            "what was accepted",
            f"Trainings on {shown}. Accepted: share of the offered pool records that got a pseudo-label, over the "
            "whole run, by the first (or only) and the second branch; Unseen: share of unseen classes among them, to "
            "be compared with the pool's share, the OOD level; Teacher: its last validation accuracy. A dash: the "
            "method has no such thing.",
            trained,
            columns_for(datasets, *product(ACCEPTED, (TRAINING,))),
            [*accepted_as_unseen(params.grid.methods), *warning_notes(study.runs)],
        ),
        table(
            "table9b_temperatures",
            "temperatures",
            f"Temperatures T at the end of the trainings on {shown}, of the classes and of the one-vs-all heads, in "
            "the first (or only) and the second branch.",
            tempered or trained,
            columns_for(datasets, *product(TEMPERATURES, (TRAINING,))),
        ),
    ]


def design_tables(study: Study) -> list[Table]:
    """What the study was designed to tell apart: the readings, the arms, the choice of the checkpoint."""
    params, table = study.params, partial(make_table, study)
    datasets, shown = params.grid.datasets, our_runs(study, params.grid.datasets)
    by_rule = "with fitted over learned temperatures, by prediction, and " if len(rows_of.rules(params)) > 1 else ""
    filtered, labelled = params.arms.seen_pool.datasets, params.arms.val150.datasets

    return [
        table(
            "table10_readings",
            "temperature rule and frequency branch",
            f"What the questions that the paper leaves open are worth on {shown}: gains of SafeECGMatch {by_rule}of "
            "the fused prediction over the time branch of the same run, by rule. The placebo is what two branches of "
            "the same kind differ by, each at its own best epoch.",
            rows_of.effect_rows(params),
            columns_for(datasets, *MEASURED),
            [PAIRED_NOTE],
            first_head="Gain",
        ),
        table(
            "table11_filter",
            "what a perfect filter gains",
            f"The {rows_of.ARM_OOD} % setting on {our_runs(study, filtered)}, with the pool as it is and with a pool "
            "that a perfect filter has left, without its unseen records.",
            rows_of.arm_rows(params, "seen_pool"),
            columns_for(filtered, *MEASURED),
        ),
        table(
            "table12_validation_labels",
            "what few validation labels cost",
            f"The {rows_of.ARM_OOD} % setting on {our_runs(study, labelled)}, with the whole validation set and with "
            "150 labels of it, 50 of each class, for selection, smoothing tables and temperatures.",
            rows_of.arm_rows(params, "val150"),
            columns_for(labelled, *MEASURED),
        ),
        table(
            "table13_checkpoints",
            "other ways to choose the checkpoint",
            f"Table 3 on {shown}: at the best validation epoch, as reported; at the last epoch; and the mean of the "
            f"metrics of the last {FIVE} epochs. Means over the seeds.",
            rows_of.method_rows(params, rows_of.methods(params)),
            columns_for(datasets, *product(("acc", "ece"), ("none", LAST, LAST_FIVE))),
            [CHOICE_NOTE],
            spread=False,
        ),
    ]
