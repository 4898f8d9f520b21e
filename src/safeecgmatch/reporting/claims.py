"""claims.yaml as typed objects, and whether it is still what it was when the runs were made."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from safeecgmatch.config import PROPOSED, Strict, validate
from safeecgmatch.files import read_yaml

FILE = Path(__file__).with_name("claims.yaml")
SHOWN = 10  # characters of a commit


class Reading(Strict):
    """One way to read what the paper leaves open."""

    text: str
    variant: str
    branch: str

    def row(self, name: str) -> str:
        """The row key (see `contrasts`) that a name in claims.yaml stands for under this reading."""
        if not name.startswith(PROPOSED) or "@" in name:
            return name
        variant = f"-{self.variant}" if name == PROPOSED and self.variant != "full" else ""
        return f"{name}{variant}@{self.branch}"


class Setting(Strict):
    dataset: str
    ood: int


class Check(Strict):
    """One comparison, made in each of its settings."""

    kind: Literal["superior", "tradeoff", "noninferior", "equivalent", "rank", "purity", "score"]
    settings: list[str]
    metric: str = ""
    candidate: str = PROPOSED
    rival: str = ""
    scaling: Literal["none", "posthoc"] = "none"
    margin: float | None = None
    top: int = 1
    probability: float = 0.95
    decides: bool = True


class Claim(Strict):
    sentence: str
    place: str
    decided_by: str
    criterion: str
    reduced: str
    tests: list[Check]
    primary: bool = False
    combine: Literal["all", "any"] = "all"
    readings: Literal["all", "main", "main_fused", "none"] = "all"
    audit: str = ""
    audit_decides: bool = False
    untested: str = ""

    @property
    def plain(self) -> str:
        """The sentence without LaTeX."""
        text = self.sentence.replace(r"$\lambda_{\mathrm{sum}}$", "lambda_sum")
        return re.sub(r"\\(.)", r"\1", text)


class Claims(Strict):
    level: float
    margin: float
    minimum_seeds: int
    methods: int
    readings: dict[str, dict[str, Reading]]
    settings: dict[str, Setting]
    claims: dict[str, Claim]

    def readings_of(self, claim: Claim, protocol: str) -> list[Reading]:
        """Under which `claim` is judged; an empty reading where the claim concerns none of the open questions."""
        if claim.readings == "none":
            return [Reading(text="", variant="full", branch="")]
        known = list(self.readings[protocol].values())
        if claim.readings == "all":
            return known
        main = [reading for reading in known if reading.variant == "full"]
        return main if claim.readings == "main" else [reading for reading in main if reading.branch == "fused"]


@cache
def load_claims(file: Path = FILE) -> Claims:
    return validate(Claims, read_yaml(file), str(file))


@dataclass(frozen=True)
class Fixed:
    """The last commit that changed claims.yaml; `commit` is empty outside a repository or before the first commit."""

    commit: str
    date: str
    edited: bool  # since that commit


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=FILE.parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def fixed() -> Fixed:
    """The author's date is taken, because it survives a rebase."""
    commit, _, date = (_git("log", "-1", "--format=%H %aI", "--", FILE.name) or "").strip().partition(" ")
    return Fixed(commit, date, bool(_git("status", "--porcelain", "--", FILE.name)))


def rules(content: Any) -> dict[str, Any]:
    """What decides, by claim: everything but comments, with what all claims share beside each."""
    shared = {key: value for key, value in content.items() if key != "claims"}
    return {name: {"shared": shared, **claim} for name, claim in content["claims"].items()}


def changed_since(commit: str) -> list[str] | None:
    """The claims whose rule is not the one of `commit`; None if that commit, or the file in it, is unknown here."""
    before = _git("show", f"{commit}:./{FILE.name}")
    if before is None:
        return None
    old, new = rules(yaml.safe_load(before)), rules(read_yaml(FILE))
    return [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]


def fixation_notes(runs: pd.DataFrame) -> list[str]:
    """When the rules were fixed, and warnings if the runs are older than the rules that judge them."""
    now = fixed()
    if not now.commit:
        return ["The rules (claims.yaml) are not under version control here, so nothing says when they were fixed."]
    notes = [f"The rules (claims.yaml) were fixed at commit {now.commit[:SHOWN]} on {now.date[:16].replace('T', ' ')}."]
    if now.edited:
        notes.append("Warning: claims.yaml has been edited since, and the edit is not committed.")
    for commit in runs["commit"].dropna().unique() if "commit" in runs else ():
        changed = changed_since(commit)
        if changed:
            notes.append(
                f"Warning: the rules of {', '.join(changed)} changed after cells were trained at commit "
                f"{commit[:SHOWN]}; their verdicts are not by a rule fixed beforehand."
            )
        elif changed is None:
            notes += _by_date(runs[runs["commit"] == commit], commit, now)
    return notes


def _by_date(cells: pd.DataFrame, commit: str, now: Fixed) -> list[str]:
    """Where the commit of the runs does not hold the file, the dates decide."""
    started = cells["started"].dropna() if "started" in cells else pd.Series(dtype=str)
    if started.empty:
        return [f"Warning: when the cells of commit {commit[:SHOWN]} were trained is not recorded."]
    first = min(datetime.fromisoformat(moment) for moment in started)
    if first >= datetime.fromisoformat(now.date):
        return []
    return [
        f"Warning: the first cell of commit {commit[:SHOWN]} was trained on {first:%Y-%m-%d %H:%M}, before the rules "
        "were fixed; their verdicts are not by a rule fixed beforehand."
    ]
