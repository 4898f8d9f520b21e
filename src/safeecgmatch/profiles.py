"""Profiles say how big a study is: `base.yaml` holds every key, `<name>.yaml` those in which the profile differs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from safeecgmatch.config import Params, validate
from safeecgmatch.errors import UserError
from safeecgmatch.files import parse_yaml, read_yaml

FOLDER = Path("profiles")
BASE = "base"
WIDTH = 200  # no line of base.yaml is folded


def profile_names(folder: Path = FOLDER) -> list[str]:
    names = sorted(file.stem for file in folder.glob("*.yaml") if file.stem != BASE)
    if not names:
        raise UserError("There is no folder 'profiles' with profiles here; run this in the project's folder.")
    return names


def compose(name: str, folder: Path = FOLDER) -> str:
    """The text of params.yaml for a profile: its values over those of base.yaml, the comments of both."""
    if name not in profile_names(folder):
        raise UserError(f"There is no profile '{name}'; those that exist are {', '.join(profile_names(folder))}.")
    ruamel = YAML()
    ruamel.width, ruamel.preserve_quotes = WIDTH, True
    for file in (base_file := folder / f"{BASE}.yaml", folder / f"{name}.yaml"):
        read_yaml(file)  # a mistake in it is one sentence
    base, profile = ruamel.load(base_file), ruamel.load(folder / f"{name}.yaml")
    _lay_over(base, profile)
    base.ca.comment = profile.ca.comment  # the header says what the profile is for
    text = io.StringIO()
    ruamel.dump(base, text)
    return text.getvalue()


def compose_values(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The content of params.yaml for a profile."""
    return parse_yaml(compose(name, folder))


def compose_params(name: str, folder: Path = FOLDER) -> Params:
    return validate(Params, compose_values(name, folder), str(folder / f"{name}.yaml"))


def _lay_over(base: CommentedMap, profile: CommentedMap) -> None:
    for key, value in profile.items():
        if isinstance(value, CommentedMap) and isinstance(base.get(key), CommentedMap):
            _lay_over(base[key], value)
        else:
            base[key] = value
        _keep_remark(base, profile, key)


def _keep_remark(base: CommentedMap, profile: CommentedMap, key: str) -> None:
    """At the end of the key's line the profile's remark, else the base's; what base.yaml has below that line stays."""
    old, new = (side.ca.items[key][2].value if key in side.ca.items else "" for side in (base, profile))
    if old or new:
        first, below = (new or old).partition("\n")[0], "".join(old.partition("\n")[1:])
        base.yaml_add_eol_comment(first + below, key, column=0)
