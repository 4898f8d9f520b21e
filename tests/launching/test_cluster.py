"""cluster.yaml, and the launchers by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from safeecgmatch.errors import UserError
from safeecgmatch.launching import local, registry
from safeecgmatch.launching.cluster import Cluster, load_cluster
from tests.conftest import ROOT


def test_cluster_yaml_is_documented_and_a_wrong_key_is_told(tmp_path: Path) -> None:
    assert load_cluster(ROOT / "cluster.yaml") == load_cluster(tmp_path / "absent") == Cluster()
    (tmp_path / "cluster.yaml").write_text("slurm: {partitoin: gpu}\n")
    with pytest.raises(UserError, match=r"unknown key 'slurm\.partitoin'"):
        load_cluster(tmp_path / "cluster.yaml")


def test_a_launcher_that_is_unknown_or_lacks_its_package_is_told() -> None:
    assert registry.launcher("local") is local.launch
    with pytest.raises(UserError, match="There is no launcher 'abacus'"):
        registry.launcher("abacus")
    with pytest.raises(
        UserError, match=r"--on slurm needs the package no_such; install it with: pip install .* -e '\.\[slurm\]'"
    ):
        registry.need("no_such", "slurm")
