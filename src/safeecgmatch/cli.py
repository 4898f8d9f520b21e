"""The command `safeecgmatch`. Imports that take time are inside the commands that need them."""

from __future__ import annotations

import shutil
import signal
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import typer

from safeecgmatch import cli_models
from safeecgmatch.errors import UserError, one_sentence
from safeecgmatch.tracking import commands as mlflow_commands

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Reproduce SafeECGMatch: a benchmark of calibrated open-set semi-supervised ECG classification.

    All commands are run in the project's folder.

    \b
    Examples:
      dvc repro                       Run the whole study as params.yaml describes it, one cell after the other.
      safeecgmatch run --jobs 2       Run the same study with two training cells at a time.
      safeecgmatch mlflow ui          Look at all runs in the browser.
    """,
)
app.add_typer(mlflow_commands.mlflow_app, name="mlflow", short_help="Look at the runs in MLflow, or complete it.")
app.command(short_help="Classify ECGs with a finished cell or a published model.")(cli_models.predict)
app.add_typer(cli_models.model_app, name="model", short_help="Serve or publish a finished cell.")


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"safeecgmatch {version('safeecgmatch')}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=print_version, is_eager=True, help="Print the version."),
) -> None:
    """What is true for all commands; the help of `app` describes them."""


@app.command(short_help="Install a profile as params.yaml.")
def profile(
    name: str | None = typer.Argument(None, help="The profile to install; without it, all profiles are listed."),
    force: bool = typer.Option(False, "--force", help="Overwrite params.yaml even if it was edited."),
) -> None:
    """Install a profile, which says how big the study is, as params.yaml.

    A profile is profiles/NAME.yaml laid over profiles/base.yaml; params.yaml gets every key and comment. A params.yaml
    that was edited, so that it equals no profile, is overwritten only with --force.

    \b
    Examples:
      safeecgmatch profile            List the profiles and say which one is installed.
      safeecgmatch profile cpu        Install the profile cpu.
      safeecgmatch profile demo --force
    """
    from safeecgmatch.config import PARAMS_FILE
    from safeecgmatch.files import read_yaml, write_text
    from safeecgmatch.profiles import compose, compose_params, compose_values, profile_names

    known = profile_names()
    current = read_yaml(PARAMS_FILE) if PARAMS_FILE.exists() else None
    installed = next((known_name for known_name in known if compose_values(known_name) == current), None)
    if name is None:
        for known_name in known:
            print(f"{known_name}{'  (installed)' if known_name == installed else ''}")
        if installed is None:
            print("params.yaml is none of them: it was edited." if current else "There is no params.yaml.")
        return
    text = compose(name)
    if current is not None and installed is None and not force:
        raise UserError("params.yaml was edited and would be lost; keep a copy, then use --force to overwrite it.")
    compose_params(name)  # never install what no stage would read
    write_text(PARAMS_FILE, text)
    print(f"params.yaml is now the profile {name}.")


@app.command(short_help="Run the study, several cells at a time.")
def run(
    targets: list[str] | None = typer.Argument(
        None, metavar="TARGET", help="Stages, cells or patterns of them; without any, the whole study."
    ),
    on: str = typer.Option("local", "--on", help="Where to train: local, slurm or dask."),
    jobs: int = typer.Option(0, "--jobs", "-j", min=0, help="Cells at a time; 0 takes all cores or GPUs."),
    gpus: str = typer.Option("", "--gpus", help="GPUs for --on local, such as 0,1,3; without it, all of them."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only say what would be run and for how long; nothing is changed."
    ),
) -> None:
    """Run the study like `dvc repro`, but with several training cells at a time, here or on a cluster.

    Stages that cells share come first. Then every cell that is out of date is trained into scratch/, the first seed of
    everything before the second; when all are trained, DVC takes them over and runs evaluate and tables. A cell
    that fails does not stop the others; it is reported at the end with the last lines of its log (scratch/logs), the
    good cells are taken over, evaluate and tables are left out, and the exit status is 1. Ctrl-C or a plain kill lets
    cells on this machine write a checkpoint, from which the same command goes on later; jobs on a cluster go on without
    it. After kill -9 too the same command goes on, and trains no cell again that was finished. What a cluster is asked
    for is written in cluster.yaml.

    \b
    Examples:
      safeecgmatch run --jobs 2
      safeecgmatch run --gpus 0,1,3                         One cell on each of three GPUs.
      safeecgmatch run --on slurm --dry-run                 What would be submitted, with hours.
      safeecgmatch run --jobs 4 train_safeecgmatch          All cells of one stage.
      safeecgmatch run 'train@ptbxl-fixmatch-*'             All cells that a pattern matches.
      safeecgmatch run '*/4'                                All cells of seed 4.
      safeecgmatch run ptbxl/fixmatch/30/1                  One cell, by its folder below runs/.
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.launching.cluster import load_cluster
    from safeecgmatch.launching.jobs import Detached
    from safeecgmatch.launching.run import How, carry_out, describe_failures, make_plan

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    params = load_params()
    plan = make_plan(params, targets or [])
    how = How(on, jobs, tuple(filter(None, gpus.split(","))), load_cluster(), dry_run)
    try:
        failed = carry_out(plan, params, how)
    except Detached:
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        print("Stopped; cells that were running here go on from their checkpoints next time.", file=sys.stderr)
        raise typer.Exit(130) from None
    if failed:
        print(describe_failures(failed, plan), file=sys.stderr)
        raise typer.Exit(1)
    if not dry_run:
        print("Everything that was asked for is up to date.")


@app.command(short_help="List the training cells and their state.")
def cells() -> None:
    """List the training cells that params.yaml asks for, with their state: done, trained, checkpointed, reported or
    missing.

    A trained cell waits in scratch/ for `dvc repro` to take it over. A reported one was trained on another machine: the
    study's report has its numbers. A stored cell of other params or data counts as missing, and the last line says how
    many there are; one of other code is done, and `dvc status` names it.

    \b
    Examples:
      safeecgmatch cells
      safeecgmatch run $(safeecgmatch cells | awk '/^(missing|checkpointed)/ {print $2}')
                                      Train what neither this machine nor the report has.
    """
    from safeecgmatch.cells import cells
    from safeecgmatch.config import load_params
    from safeecgmatch.files import read_yaml
    from safeecgmatch.launching.scratch import scratch_root
    from safeecgmatch.reporting.stored import asked_for, reported, sentence, wanted_hash
    from safeecgmatch.reporting.study import report_folder

    params = load_params()
    asked, judge, foreign = cells(params), asked_for(params, Path("data")), []
    known = reported(report_folder(params), asked, wanted_hash(params, Path("data")))
    width = max(len(cell.path) for cell in asked) + 2
    for cell in asked:
        stored = Path("runs", cell.path, "config.yaml")
        reason = judge(cell, read_yaml(stored)) if stored.is_file() else ""
        foreign += [reason] if reason else []
        done = stored.is_file() and not reason and Path("tracking", cell.path, "run.json").is_file()
        begun = {file.name for file in (scratch_root() / cell.path).glob("*/*")}
        lacking = "reported" if cell.path in known else "checkpointed" if "checkpoint.pt" in begun else "missing"
        state = "done" if done else "trained" if "finished" in begun else lacking
        print(f"{state:13} {cell.path:{width}}{cell.stage}")
    if foreign:
        print(sentence(foreign).strip(), file=sys.stderr)


@app.command(short_help="Report on the cells that there are.")
def report() -> None:
    """Write metrics, tables, figures and the page of the study from the cells that are there, without DVC.

    `dvc repro` and `safeecgmatch run` train every missing cell first; this trains none. Missing cells print as missing.
    Cells that `safeecgmatch run` has trained count at once, before DVC has taken them over. What the report already has
    of a cell that is not here, but was trained elsewhere with the same params and data, stays in it: a study can be
    shared out to several machines, and its report goes with the repository.

    \b
    Examples:
      safeecgmatch report
    """
    from safeecgmatch.cells import cells
    from safeecgmatch.config import load_params
    from safeecgmatch.launching.adoption import waiting
    from safeecgmatch.reporting.evaluate import evaluate, write_evaluation
    from safeecgmatch.reporting.report import write_report
    from safeecgmatch.reporting.stored import read_earlier, wanted_hash
    from safeecgmatch.reporting.study import report_folder

    params = load_params()
    folder = report_folder(params)
    earlier = read_earlier(folder, cells(params), wanted_hash(params, Path("data")))
    study = evaluate(params, waiting=lambda cell: waiting(params, cell), earlier=earlier)
    write_evaluation(study, folder)
    write_report(params, folder)
    print(f"{folder}/README.md reports on {(study.runs['state'] == 'done').sum()} of {len(study.runs)} cells.")


@app.command(short_help="Which of the paper's claims hold.")
def claims(
    claim: str | None = typer.Argument(None, help="A claim, as C5; without it, all of them."),
    study: str | None = typer.Option(None, "--study", help="The profile whose report is read, as cpu."),
) -> None:
    """Print the paper's claims with their verdicts, or the evidence behind one, from a study's report.

    Without --study: the study of params.yaml if its data are real, else the one with the most trained cells among the
    reports on real data. The rules are in src/safeecgmatch/reporting/claims.yaml and were fixed before the study was
    trained. Generated data give no verdict.

    \b
    Examples:
      safeecgmatch claims
      safeecgmatch claims C5
      safeecgmatch claims --study demo
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.reporting.study import choose, read_study, report_folder
    from safeecgmatch.reporting.terminal import claim_text, claims_text, heading
    from safeecgmatch.reporting.verdicts import judge, notes

    params = choose(load_params(), study)
    found = read_study(params, report_folder(params))
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    judged = {judgement.id: judgement for judgement in judge(found)}
    if claim is not None and claim.upper() not in judged:
        raise UserError(f"There is no claim '{claim}'; those that exist are {', '.join(judged)}.")
    print(f"{heading(found)}\n")
    if claim is None:
        print(claims_text(list(judged.values()), notes(found), width))
    else:
        print(claim_text(judged[claim.upper()], notes(found), width))


@app.command(short_help="List what each protocol does.")
def protocol(method: str | None = typer.Argument(None, help="A method, or 'data'; without it, all of them.")) -> None:
    """List where the paper's text and the published code differ, and what each protocol does about it.

    Each switch is shown with its value under `protocol: paper` and `protocol: release` and with its source; a star
    marks the values that differ. Override one in params.yaml, under
    methods.METHOD.switches.PROTOCOL or data.switches.PROTOCOL.

    \b
    Examples:
      safeecgmatch protocol
      safeecgmatch protocol fixmatch
    """
    from safeecgmatch.protocols import known_methods, read_protocol

    sections = [method] if method else ["data", *known_methods()]
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    for section in sections:
        print(section)
        for name, entry in read_protocol(section).items():
            values = [f"{side}: {entry[side]}" if side in entry else f"{side}: -" for side in ("paper", "release")]
            star = " " if entry.get("paper") == entry.get("release") else "*"
            print(f" {star} {name:28} {values[0]:24} {values[1]}")
            print(
                textwrap.fill(
                    entry["why"], width, initial_indent=" " * 7, subsequent_indent=" " * 7, break_on_hyphens=False
                )
            )
        print()


def main() -> None:
    with one_sentence("Error: "):
        app()


if __name__ == "__main__":
    main()
