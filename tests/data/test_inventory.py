from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.data.inventory import read_sums, require_space, safe_name
from safeecgmatch.errors import UserError
from tests.data.trees import OUTSIDE


@pytest.mark.parametrize("name", [*OUTSIDE, "", "..", "a/..", "a\x00b", "a\nb"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="could lie outside the data folder"):
        safe_name(name, "SHA256SUMS.txt")


def test_harmless_names_are_plain() -> None:
    assert safe_name("./training//ptb/a..b.hea", "x") == "training/ptb/a..b.hea"


def test_checksum_lines_with_one_blank_two_or_a_star(tmp_path: Path) -> None:
    digest = "AB" * 32
    (tmp_path / "sums").write_text(f"{digest} a.hea\n{digest}  b.hea\n{digest} *c d.hea\n\n")
    assert read_sums(tmp_path / "sums", "sums") == dict.fromkeys(["a.hea", "b.hea", "c d.hea"], digest.lower())
    (tmp_path / "sums").write_text(f"{digest} a.hea\n<html>Busy</html>\n")
    with pytest.raises(UserError, match="sums, line 2 is not"):
        read_sums(tmp_path / "sums", "sums")


def test_space_is_looked_up_where_the_folder_will_be(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet" / "there", 1, "ptbxl")
