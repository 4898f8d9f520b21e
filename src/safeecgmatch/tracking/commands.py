"""The commands `safeecgmatch mlflow`; slow imports are inside them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import typer

from safeecgmatch.tracking.address import patience

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


@mlflow_app.command(short_help="Start the MLflow UI on the right store.")
def ui(port: int = typer.Option(5000, "--port", "-p", min=1, max=65535, help="The port on 127.0.0.1.")) -> None:
    """Start the MLflow UI on this project's store, for this machine alone (127.0.0.1), and print where to look.

    Besides its address it prints links: to the table of all runs with test ACC and ECE, and, for each dataset and share
    of unseen records, to charts of both by method, and of SafeECGMatch by lambda_sum, sweeps included. Where
    MLFLOW_TRACKING_URI names a server, only the links are printed. Ctrl-C ends it.

    \b
    Examples:
      safeecgmatch mlflow ui
      safeecgmatch mlflow ui --port 5001
    """
    from safeecgmatch.config import load_params
    from safeecgmatch.tracking.store import Store, one_sentence
    from safeecgmatch.tracking.ui import links
    from safeecgmatch.tracking.ui import ui as start_ui

    params = load_params()
    patience(seconds=10, retries=1)
    # A plain kill must end the server too: SystemExit lets the context manager below do so, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with one_sentence(), start_ui(port) as (address, process):
        print(f"MLflow UI: {address}")
        for title, link in links(Store(), address, params).items():
            print(f"  {title}:\n    {link}")
        sys.stdout.flush()
        if process is not None:
            print("Press Ctrl-C to end it.", flush=True)
            process.wait()


@mlflow_app.command("backfill", short_help="Upload what MLflow lacks.")
def backfill_() -> None:
    """Upload to MLflow whatever it lacks of the finished cells below runs/ and tracking/.

    Nothing is uploaded twice, however often this is run. It completes runs that an unreachable server did not take,
    and rebuilds the whole store where it was lost or where MLFLOW_TRACKING_URI names a new one. For the cells of a
    DVC experiment, run `dvc exp apply NAME` first.

    \b
    Examples:
      safeecgmatch mlflow backfill
      MLFLOW_TRACKING_URI=http://127.0.0.1:5000 safeecgmatch mlflow backfill
    """
    from safeecgmatch.tracking.store import one_sentence
    from safeecgmatch.tracking.uploader import backfill

    with one_sentence():
        uploaded, complete = backfill(Path())
    print(f"{uploaded} runs uploaded, {complete} were complete already.")
