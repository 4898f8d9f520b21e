from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.data.inventory import estimated_size, needed_files, read_sums, require_space, safe_name
from safeecgmatch.errors import UserError
from tests.data.trees import OUTSIDE, PTBXL


@pytest.mark.parametrize(("rate", "folder"), [(100, "records100"), (500, "records500"), (250, "records500")])
def test_only_one_rate_is_needed(rate: int, folder: str) -> None:
    wanted = needed_files("ptbxl", rate)
    folders = {name.split("/")[0] for name in PTBXL if wanted.fullmatch(name)}
    assert folders == {"ptbxl_database.csv", "scp_statements.csv", folder}


def test_cinc_needs_its_training_records_only() -> None:
    names = ["training/ptb/g1/S1.mat", "training/ptb/g1/S1.hea", "training/ptb/g1/RECORDS", "LICENSE.txt", "x/a.mat"]
    assert [name for name in names if needed_files("cinc21", 500).fullmatch(name)] == names[:2]


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


def test_size_estimates_of_the_published_archives() -> None:
    assert 21_799 * estimated_size("records500/00000/00001_hr.dat") == pytest.approx(2.6e9, rel=0.05)
    assert estimated_size("records100/00000/00001_lr.dat") == 24_000
