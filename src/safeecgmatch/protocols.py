"""Where the paper's text and the published code differ: the `protocol.yaml` of the data and of every method, one entry
per switch.

`paper` is what the paper (for a baseline: its own paper) says, `release` what the published code does, `why` where that
is stated. A switch with one value only exists under that protocol alone. Any of them can be overridden, for one
protocol, by `methods.<name>.switches.<protocol>` or `data.switches.<protocol>` in params.yaml. A moment is `warm_up` or
a number of `epochs`, both keys of `train` and absolute, or a number of iterations for a budget of 50,000, which scales.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_yaml

PACKAGE = Path(__file__).parent
FILE = "protocol.yaml"
PROTOCOLS = ("paper", "release")


def known_methods() -> list[str]:
    """The methods that exist: one folder each, with a method.py and a protocol.yaml; one that lacks either counts, so
    that its lack is told."""
    return sorted(
        {file.parent.name for name in ("method.py", FILE) for file in (PACKAGE / "methods").glob(f"*/{name}")}
    )


def method_module(module: str) -> str:
    """The import name behind the switch `module`: "fixmatch" is fixmatch/method.py, "tstfc.release" its release.py."""
    return f"safeecgmatch.methods.{module if '.' in module else f'{module}.method'}"


@cache
def read_protocol(section: str) -> dict[str, dict[str, Any]]:
    """The switches of a method, or of the "data"."""
    if section != "data" and section not in known_methods():
        raise UserError(f"unknown method '{section}'; allowed are {', '.join(known_methods())}.")
    file = (PACKAGE / "data" if section == "data" else PACKAGE / "methods" / section) / FILE
    if not file.is_file():
        raise UserError(f"{file} does not exist; every method has its switches there, as CONTRIBUTING.md says.")
    return read_yaml(file)


def switches(section: str, protocol: str, overrides: Any) -> dict[str, Any]:
    """The switches of `section` under `protocol`, with the overrides of params.yaml (by protocol) laid over them."""
    where = "data.switches" if section == "data" else f"methods.{section}.switches"
    if not isinstance(overrides, dict) or not all(isinstance(values, dict) for values in overrides.values()):
        raise UserError(f"params.yaml: {where} must be {{}} or hold mappings by protocol, as in `paper: {{...}}`.")
    found: dict[str, dict[str, Any]] = {}
    for side in PROTOCOLS:
        found[side] = {name: entry[side] for name, entry in read_protocol(section).items() if side in entry}
    for side, changes in overrides.items():
        if side not in found:
            raise UserError(f"params.yaml: unknown key '{where}.{side}'; allowed here are {', '.join(PROTOCOLS)}.")
        for name in changes:
            if name not in found[side]:
                known = ", ".join(found[side]) or "none"
                raise UserError(f"params.yaml: unknown switch '{where}.{side}.{name}'; allowed here are {known}.")
    return {**found[protocol], **overrides.get(protocol, {})}
