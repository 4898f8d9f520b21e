"""The diagnostic classes of both datasets: the one place that lists them."""

from __future__ import annotations

DATASETS = ("ptbxl", "cinc21")

SEEN = {"ptbxl": ("NORM", "MI", "CD"), "cinc21": ("NORM", "RHY", "CD")}
UNSEEN = {"ptbxl": ("STTC", "HYP"), "cinc21": ("ST", "OTHER")}

# What the published code does for CinC 2021 at 60 %: another task, not another contamination.
RELEASE_CINC60_SEEN = ("RHY", "CD", "OTHER")
RELEASE_CINC60_UNSEEN = ("NORM", "ST")

SINUS_RHYTHM = "426783006"  # alone on a record: Normal

# SNOMED CT codes of the four abnormal groups of CinC 2021.
CINC_GROUPS: dict[str, frozenset[str]] = {
    "RHY": frozenset("164889003 164890007 426627000 10370003 427393009 426177001 427084000".split()),
    "CD": frozenset(
        "6374002 733534002 713427006 270492004 713426002 445118002 164909002 698252002 59118001 233917008 27885002 "
        "195042002 426183003 251120003 445211001 65778007 74390002".split()
    ),
    "ST": frozenset(
        "111975006 164934002 59931005 425419005 425623009 428750005 55930002 429622005 164931005 164930006".split()
    ),
    "OTHER": frozenset(
        "39732003 251146004 284470004 365413008 427172004 164917005 47665007 63593006 17338001 164884008 "
        "164947007".split()
    ),
}
