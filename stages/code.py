"""Stage `code`: what decides how each method trains, and what each stage runs, as small files that others depend on.

An edit below src/ or stages/ runs this stage again; the others are stale only where the file written for them changed.
Every method is imported and checked here, so that what it lacks is told before anything is trained.
Example: python stages/code.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# A queued experiment must run the code of its own workspace, not that of the editable install.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import typer

from safeecgmatch.config import Params, load_params, validate
from safeecgmatch.engine.fingerprint import method_of, stage_of
from safeecgmatch.engine.method import method_class
from safeecgmatch.errors import one_sentence
from safeecgmatch.files import write_json
from safeecgmatch.protocols import known_methods
from safeecgmatch.reporting.names import must_be_named

STAGES = ("download", "filter", "split", "evaluate", "tables")  # train follows its method


def check(params: Params, method: str, found: dict[str, Any]) -> None:
    """A method has a class METHOD, the switches and the section that it asks for, and a name."""
    kind = method_class(found["module"])
    validate(kind.Switches, found["switches"], f"methods/{method}/protocol.yaml, protocol {params.protocol}")
    if method in params.methods:
        section = {key: value for key, value in params.methods[method].items() if key != "switches"}
        validate(kind.Hyper, section, f"params.yaml, methods.{method}")
    must_be_named(method)


def main() -> None:
    """Write data/code/methods/METHOD.json for every method that exists, and data/code/stages/STAGE.json."""
    with one_sentence():
        params = load_params()
        for method in known_methods():
            found = method_of(params, method)
            check(params, method, found)
            write_json(Path("data/code/methods") / f"{method}.json", found)
        for stage in STAGES:
            write_json(Path("data/code/stages") / f"{stage}.json", stage_of(Path("stages") / f"{stage}.py"))


if __name__ == "__main__":
    typer.run(main)
