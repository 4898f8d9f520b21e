"""report.tex to report.pdf, where LaTeX is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from safeecgmatch.files import atomic_path

RUNS = 2  # the second one knows the references
TIME_LIMIT = 120.0
# Without these the PDF holds the time of its making, and the same report would have other bytes.
NO_DATES = {"SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1"}


def write_pdf(folder: Path, changed: bool) -> str:
    """Compile `folder`/report.tex; returns why there is no new PDF, or an empty text.

    The PDF of a report.tex that changed since is removed: it would show other numbers than the page beside it.
    """
    target = folder / "report.pdf"
    if changed:
        target.unlink(missing_ok=True)
    if shutil.which("pdflatex") is None:
        return "pdflatex is not installed, so report.pdf was not made; report.tex is there."
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape"]
        for _ in range(RUNS):
            try:
                done = subprocess.run(
                    [*command, f"-output-directory={output}", "report.tex"],
                    cwd=folder,
                    env={**os.environ, **NO_DATES},
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=TIME_LIMIT,
                )
            except subprocess.TimeoutExpired:
                return f"pdflatex took longer than {TIME_LIMIT:.0f} s, so report.pdf was not made; report.tex is there."
            if done.returncode:
                errors = [line for line in done.stdout.splitlines() if line.startswith("!")]
                reason = errors[0].removeprefix("! ") if errors else f"exit status {done.returncode}"
                return f"pdflatex could not compile report.tex ({reason}), so report.pdf was not made."
        with atomic_path(target) as partial:
            shutil.copyfile(output / "report.pdf", partial)
    return ""
