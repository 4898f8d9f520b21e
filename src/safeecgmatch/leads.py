"""The standard 12-lead ECG as this study keeps it."""

from __future__ import annotations

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
SECONDS = 10
