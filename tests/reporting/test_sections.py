from __future__ import annotations

from safeecgmatch.reporting import sections
from safeecgmatch.reporting.claims import load_claims
from safeecgmatch.reporting.verdicts import Judgement


def test_a_size_is_stated_once_with_the_claims_that_it_marks() -> None:
    sizes = {"C1": "PTB-XL alone: width 16", "C2": "PTB-XL: width 16", "C5": "PTB-XL alone: width 16", "C10": ""}
    claims = load_claims().claims
    judgements = [Judgement(name, claims[name], "inconclusive", "", "", size=size) for name, size in sizes.items()]
    counts, table, *notes = sections.claims_table(judgements, ["last"])
    assert counts.startswith("Of 4 claims: 4 inconclusive. ")
    assert notes == [
        "“At this size” (C1, C5): PTB-XL alone: width 16.",
        "“At this size” (C2): PTB-XL: width 16.",
        "last",
    ]
    assert ["at this size" in line for line in table.splitlines()[2:]] == [True, True, True, False]
