"""Where the paper's text and the published code differ: the `protocol.yaml` of the data and of every method, one entry
per switch.

`paper` is what the paper (for a baseline: its own paper) says, `release` what the published code does, `why` where that
is stated. A switch with one value only exists under that protocol alone. Any of them can be overridden for a method by
`methods.<name>.switches` in params.yaml. Iteration numbers are for a budget of 50,000 and scale with it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from safeecgmatch.errors import UserError
from safeecgmatch.files import read_yaml

PACKAGE = Path(__file__).parent
FILE = "protocol.yaml"


def known_methods() -> list[str]:
    """The methods that exist: one folder each with a protocol.yaml."""
    return sorted(file.parent.name for file in (PACKAGE / "methods").glob(f"*/{FILE}"))


@cache
def read_protocol(section: str) -> dict[str, dict[str, Any]]:
    """The switches of a method, or of the "data"."""
    if section != "data" and section not in known_methods():
        raise UserError(f"unknown method '{section}'; allowed are {', '.join(known_methods())}.")
    folder = PACKAGE / "data" if section == "data" else PACKAGE / "methods" / section
    return read_yaml(folder / FILE)


def switches(section: str, protocol: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The switches of `section` under `protocol`, with the overrides of params.yaml laid over them."""
    values = {name: entry[protocol] for name, entry in read_protocol(section).items() if protocol in entry}
    unknown = [name for name in overrides if name not in values]
    if unknown:
        raise UserError(
            f"params.yaml: unknown switch '{unknown[0]}' for {section} under protocol {protocol}; "
            f"allowed are {', '.join(values) or 'none'}."
        )
    return {**values, **overrides}
