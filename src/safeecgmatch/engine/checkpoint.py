"""A training's whole state in one file that is either complete or absent, and is never read if a byte of it changed."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from safeecgmatch.files import atomic_path

FILE = "checkpoint.pt"
SET_ASIDE = "checkpoint.rejected.pt"


class Checkpoint:
    """Lives in the scratch folder of its cell and belongs to one fingerprint.

    The file is a line with the SHA-256 of what follows, then torch's own format, which has no digest.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.path = folder / FILE

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save({**state, "fingerprint": self.fingerprint}, buffer)
        content = buffer.getbuffer()
        with atomic_path(self.path, durable=True) as partial, partial.open("wb") as stream:
            stream.write(f"{hashlib.sha256(content).hexdigest()}\n".encode())
            stream.write(content)

    def load(self) -> tuple[dict[str, Any] | None, str]:
        """(state, "") to go on from, or (None, reason) where there is nothing usable; what is unusable is set aside."""
        if not self.path.exists():
            return None, ""
        digest, _, content = self.path.read_bytes().partition(b"\n")
        if digest.decode(errors="replace") != hashlib.sha256(content).hexdigest():
            return None, self.set_aside("is damaged (its content is not what was written)")
        try:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            found = state["fingerprint"]
        except (RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
            return None, self.set_aside(f"is no checkpoint ({' '.join(str(error).split())[:120]})")
        if found != self.fingerprint:
            return None, self.set_aside(
                f"belongs to another config or code ({found}, this cell has {self.fingerprint})"
            )
        return state, ""

    def set_aside(self, reason: str) -> str:
        self.path.replace(self.folder / SET_ASIDE)
        return f"{self.path} {reason}; it was set aside as {SET_ASIDE} and the cell starts anew."

    def discard(self) -> None:
        """The cell is done: its checkpoint, a rejected one and their empty folder go."""
        for name in (FILE, SET_ASIDE):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
