"""A training's whole state in one file that is either complete or absent."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from safeecgmatch.files import atomic_path

FILE = "checkpoint.pt"
SET_ASIDE = "checkpoint.rejected.pt"
# What torch.load raises on a file that is cut, scrambled or not a checkpoint at all.
DAMAGE = (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile)


class Checkpoint:
    """Lives in the scratch folder of its cell and belongs to one fingerprint."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.path = folder / FILE

    def save(self, state: dict[str, Any]) -> None:
        with atomic_path(self.path) as partial:
            torch.save({**state, "fingerprint": self.fingerprint}, partial)

    def load(self) -> tuple[dict[str, Any] | None, str]:
        """(state, "") to go on from, or (None, reason) where there is nothing usable; what is unusable is set aside."""
        if not self.path.exists():
            return None, ""
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            found = state["fingerprint"]
        except DAMAGE as error:
            return None, self._set_aside(f"is damaged ({' '.join(str(error).split())[:120]})")
        if found != self.fingerprint:
            return None, self._set_aside(
                f"belongs to another config or code ({found}, this cell has {self.fingerprint})"
            )
        return state, ""

    def _set_aside(self, reason: str) -> str:
        self.path.replace(self.folder / SET_ASIDE)
        return f"{self.path} {reason}; it was set aside as {SET_ASIDE} and the cell starts anew."

    def discard(self) -> None:
        """The cell is done: its checkpoint, a rejected one and their empty folder go."""
        for name in (FILE, SET_ASIDE):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
