"""Generated 12-lead ECG archives: the embedded data, in the layout of the real ones."""

from __future__ import annotations

from safeecgmatch.data.phantom.archives import write_archive

__all__ = ["write_archive"]
