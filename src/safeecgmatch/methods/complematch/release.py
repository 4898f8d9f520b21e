"""CompleMatch in the published benchmark is its TS-TFC under another name, line by line, with the same options.

So this row repeats TS-TFC's: a supervised two-branch network that never uses an unlabelled record.
"""

from __future__ import annotations

from safeecgmatch.methods.tstfc.release import TSTFCRelease

METHOD = TSTFCRelease
