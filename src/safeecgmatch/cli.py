"""The command `safeecgmatch`. Imports that take time stand inside the commands that need them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path

import typer

from safeecgmatch.errors import UserError
from safeecgmatch.predicting import commands

PROFILES = Path("profiles")
PARAMS = Path("params.yaml")

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
mlflow_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Look at the runs in MLflow, or bring MLflow up to date with the files.

    The store is mlflow.db in the project's folder; set MLFLOW_TRACKING_URI to use a server or another database.

    \b
    Examples:
      safeecgmatch mlflow ui --port 5001
      safeecgmatch mlflow backfill
    """,
)
app.add_typer(mlflow_app, name="mlflow", short_help="Look at the runs in MLflow, or complete it.")
app.command(short_help="Classify ECGs with a finished cell.")(commands.predict)
app.add_typer(commands.model_app, name="model", short_help="Store a finished cell as a servable model.")


@app.command(short_help="Install a profile as params.yaml.")
def profile(
    name: str | None = typer.Argument(None, help="The profile to install; without it, all profiles are listed."),
    force: bool = typer.Option(False, "--force", help="Overwrite params.yaml even if it was edited."),
) -> None:
    """Install a profile, which says how big the study is, as params.yaml.

    A params.yaml that was edited, so that it equals no profile, is overwritten only with --force.

    \b
    Examples:
      safeecgmatch profile            List the profiles and say which one is installed.
      safeecgmatch profile cpu        Install profiles/cpu.yaml.
      safeecgmatch profile demo --force
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.files import read_yaml, write_text

    known = {file.stem: file for file in sorted(PROFILES.glob("*.yaml"))}
    if not known:
        raise UserError("There is no folder 'profiles' with profiles here; run this in the project's folder.")
    current = read_yaml(PARAMS) if PARAMS.exists() else None
    installed = next((stem for stem, file in known.items() if read_yaml(file) == current), None)
    if name is None:
        for stem in known:
            print(f"{stem}{'  (installed)' if stem == installed else ''}")
        if installed is None:
            print("params.yaml is none of them: it was edited." if current else "There is no params.yaml.")
        return
    if name not in known:
        raise UserError(f"There is no profile '{name}'; those that exist are {', '.join(known)}.")
    if current is not None and installed is None and not force:
        raise UserError("params.yaml was edited and would be lost; keep a copy, then use --force to overwrite it.")
    load_params(known[name])
    write_text(PARAMS, known[name].read_text(encoding="utf-8"))
    print(f"params.yaml is now the profile {name}.")


@app.command(short_help="Run the study, several cells at a time.")
def run(
    targets: list[str] | None = typer.Argument(
        None, metavar="TARGET", help="Stages, cells or patterns of them; without any, the whole study."
    ),
    jobs: int = typer.Option(0, "--jobs", "-j", min=0, help="Cells at a time; 0 takes the cores / train.threads."),
) -> None:
    """Run the study like `dvc repro`, but with several training cells at a time.

    Stages that cells share come first, then every cell that is out of date, then evaluate and tables. A cell that
    fails does not stop the others; it is reported at the end with the last lines of its log (scratch/logs), evaluate
    and tables are then left out, and the exit status is 1. Ctrl-C lets the running cells write a checkpoint, from
    which the same command goes on later.

    \b
    Examples:
      safeecgmatch run --jobs 2
      safeecgmatch run --jobs 4 train_safeecgmatch          All cells of one stage.
      safeecgmatch run 'train@ptbxl-fixmatch-*'             All cells that a pattern matches.
      safeecgmatch run ptbxl/fixmatch/30/1                  One cell, by its folder below runs/.
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.launching import graph

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    params = load_params()
    plan = graph.make_plan(params, targets or [])
    at_once = jobs or max(1, (os.cpu_count() or 1) // params.train.threads)
    try:
        failed = graph.run(plan, at_once)
    except KeyboardInterrupt:
        print("Stopped; cells that were running go on from their checkpoints next time.", file=sys.stderr)
        raise typer.Exit(130) from None
    if failed:
        print(graph.describe_failures(failed, plan), file=sys.stderr)
        raise typer.Exit(1)
    print("Everything that was asked for is up to date.")


@app.command(short_help="List the training cells and their state.")
def cells() -> None:
    """List the training cells that params.yaml asks for, with their state: done, checkpointed or missing.

    This looks for files only; `dvc status` says whether a cell that is done is also up to date.

    \b
    Examples:
      safeecgmatch cells
      safeecgmatch cells | grep missing
    """
    from safeecgmatch.cells import cells
    from safeecgmatch.config import load_params
    from safeecgmatch.files import project_root

    scratch = project_root() / "scratch"
    asked = cells(load_params())
    width = max(len(cell.path) for cell in asked) + 2
    for cell in asked:
        done = Path("runs", cell.path).is_dir() and Path("tracking", cell.path, "run.json").is_file()
        begun = (scratch / cell.path).is_dir() and any((scratch / cell.path).iterdir())
        state = "done" if done else "checkpointed" if begun else "missing"
        print(f"{state:13} {cell.path:{width}}{cell.stage}")


@app.command(short_help="List what each protocol does.")
def protocol(method: str | None = typer.Argument(None, help="A method, or 'data'; without it, all of them.")) -> None:
    """List where the paper's text and the published code differ, and what each protocol does about it.

    Each switch is shown with its value under `protocol: paper` and `protocol: release` and with its source; a star
    marks the values that differ. Override one in params.yaml, under methods.METHOD.switches or data.switches.

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


@mlflow_app.command(short_help="Start the MLflow UI on the right store.")
def ui(port: int = typer.Option(5000, "--port", "-p", help="The port on 127.0.0.1.")) -> None:
    """Start the MLflow UI on this project's store, for this machine alone (127.0.0.1), and print where to look.

    Besides its address it prints two comparisons: all methods on one setting, and SafeECGMatch over its lambda_sum,
    sweeps included. Where MLFLOW_TRACKING_URI names a server, only the links are printed. Ctrl-C ends it.

    \b
    Examples:
      safeecgmatch mlflow ui
      safeecgmatch mlflow ui --port 5001
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.tracking.store import Store
    from safeecgmatch.tracking.ui import comparison_links
    from safeecgmatch.tracking.ui import ui as start_ui

    params = load_params()
    # A plain kill must end the server too: SystemExit lets the context manager below do so, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with start_ui(port) as (address, process):
        print(f"MLflow UI: {address}")
        for title, link in comparison_links(Store(), address, params).items():
            print(f"  {title}:\n    {link}")
        sys.stdout.flush()
        if process is not None:
            print("Press Ctrl-C to end it.", flush=True)
            process.wait()


@mlflow_app.command(short_help="Upload what MLflow lacks.")
def backfill() -> None:
    """Upload to MLflow whatever it lacks of the finished cells below runs/ and tracking/.

    Nothing is uploaded twice, however often this is run. It completes runs that an unreachable server did not take,
    and rebuilds the whole store where it was lost or where MLFLOW_TRACKING_URI names a new one. For the cells of a
    DVC experiment, run `dvc exp apply NAME` first.

    \b
    Examples:
      safeecgmatch mlflow backfill
      MLFLOW_TRACKING_URI=http://127.0.0.1:5000 safeecgmatch mlflow backfill
    """
    from safeecgmatch.tracking import replay

    uploaded, complete = replay.backfill(Path())
    print(f"{uploaded} runs uploaded, {complete} were complete already.")


def main() -> None:
    try:
        app()
    except UserError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
