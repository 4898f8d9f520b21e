"""claims.yaml as typed objects, and which edition of it judges which runs."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pandas as pd

from safeecgmatch.config import PROPOSED, Params, Strict, validate
from safeecgmatch.files import read_yaml

FILE = Path(__file__).with_name("claims.yaml")
SHOWN = 10  # characters of a commit or a digest


class Reading(Strict):
    """One way to read what the paper leaves open."""

    text: str
    variant: str
    branch: str
    rule: str = ""  # what the names of variants begin with under its temperatures

    def row(self, name: str) -> str:
        """The row key (see `contrasts`) that a name in claims.yaml stands for under this reading."""
        if not name.startswith(PROPOSED):
            return name
        run, _, branch = name.partition("@")
        variant = f"-{self.variant}" if run == PROPOSED and self.variant != "full" else ""
        return f"{run.format(rule=self.rule)}{variant}@{branch or self.branch}"


class Place(Strict):
    dataset: str
    ood: int


class Check(Strict):
    """One comparison, made in each of its settings."""

    kind: Literal["superior", "tradeoff", "noninferior", "equivalent", "best", "purity", "score"]
    settings: list[str]
    metric: str = ""
    candidate: str = PROPOSED
    rival: str = ""
    scaling: Literal["none", "posthoc", "both"] = "both"
    margin: float | None = None
    but: int = 0
    decides: bool = True

    @property
    def metrics(self) -> list[str]:
        return ["acc", "ece"] if self.kind == "tradeoff" else [self.metric]

    @property
    def scaled(self) -> list[Check]:
        """As trained and after scaling, where both are wanted; a temperature changes only what is scaled by it."""
        ways = ["none", "posthoc"] if "ece" in self.metrics else ["none"]
        return [self.model_copy(update={"scaling": way}) for way in ways if self.scaling in (way, "both")]


class Claim(Strict):
    sentence: str
    place: str
    decided_by: str
    criterion: str
    reduced: str
    tests: list[Check]
    primary: bool = False
    combine: Literal["all", "any"] = "all"
    readings: Literal["all", "main", "fused", "none"] = "all"
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
    developed_on: list[int]
    readings: dict[str, dict[str, Reading]]
    settings: dict[str, Place]
    claims: dict[str, Claim]

    def readings_of(self, claim: Claim, protocol: str) -> list[Reading]:
        """Under which `claim` is judged; an empty reading where the claim concerns none of the open questions."""
        if claim.readings == "none":
            return [Reading(text="", variant="full", branch="")]
        known = list(self.readings[protocol].values())
        wanted = {"main": ("variant", "full"), "fused": ("branch", "fused")}.get(claim.readings)
        return [reading for reading in known if wanted is None or getattr(reading, wanted[0]) == wanted[1]]


@cache
def load_claims(file: Path = FILE) -> Claims:
    return validate(Claims, read_yaml(file), str(file))


def rule_note(runs: pd.DataFrame) -> str:
    """Which rules judge, and which runs they judge."""
    digest = sha256(FILE.read_bytes()).hexdigest()
    done = runs[runs["state"] != "missing"] if "state" in runs else runs
    commits = [str(commit)[:SHOWN] for commit in done["commit"].dropna().unique()] if "commit" in done else []
    trained = f" The runs were trained at commit {', '.join(commits)}." if commits else ""
    return (
        f"The rules that judge (claims.yaml) have the SHA-256 {digest[:SHOWN]}.{trained} Its history in Git says which "
        "are older."
    )


def seed_note(params: Params) -> str:
    """Whether the seeds of a study may test the rules that judge it."""
    developed, used = load_claims().developed_on, params.grid.seeds
    again = ", ".join(str(seed) for seed in used if seed in developed)
    seeds = ", ".join(map(str, used))
    end = f", so {again} of {seeds} here cannot test them." if again else f"; {seeds} test them."
    return f"Seeds {', '.join(map(str, developed))} developed the rules that judge the claims{end}"
