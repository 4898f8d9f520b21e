from __future__ import annotations

import pytest

from tests.launching.study import make_study, outputs


@pytest.fixture(scope="session")
def trained_locally(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outputs of the longer micro study, trained by `--on local`."""
    project = make_study(tmp_path_factory.mktemp("local") / "project")
    project.safeecgmatch("run", "--jobs", "2")
    return outputs(project)
