"""`safeecgmatch run` and DVC: killed while DVC takes cells over, beside another DVC, and only looking (--dry-run)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

from safeecgmatch.files import sha256_of, write_json
from safeecgmatch.launching.scratch import Scratch
from tests.launching.study import wait_for
from tests.micro import Project

CELLS = {"ptbxl/fixmatch/60/1": "train@ptbxl-fixmatch-60-1", "ptbxl/supervised/60/1": "train@ptbxl-supervised-60-1"}
SLOWER = ("lock dvc", "adoption run+dvc", "adoption dvc", *(f"end run+dvc {n / 50}" for n in range(0, 15, 2)))
ADOPTION = "src/safeecgmatch/launching/adoption.py"
# Run by the first stage command that finds the file `trouble`; `run` is the parent of DVC, which leads its own group.
TROUBLE = """
import signal, subprocess, sys
def in_trouble(when: str) -> None:
    trouble = Path("trouble")
    if not trouble.exists() or not trouble.read_text().startswith(when):
        return
    command = [sys.executable, "killer.py", str(os.getpid()), str(os.getpgid(0)), trouble.read_text()]
    trouble.unlink()
    subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout.read(1)
"""
KILLER = """
import contextlib, os, sys, time
from pathlib import Path
stage, dvc, trouble = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split()
launcher = int(Path(f"/proc/{dvc}/stat").read_text().rpartition(")")[2].split()[1])
size = Path("dvc.lock").stat().st_size
if trouble[0] == "end":
    print(flush=True)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{stage}/cmdline").read_bytes():
            pass
    time.sleep(float(trouble[2]))
if trouble[0] == "lock":
    print(flush=True)
    while Path("dvc.lock").stat().st_size >= size and Path(f"/proc/{dvc}").exists():
        pass
for victim in trouble[1].split("+"):
    (os.kill if victim == "run" else os.killpg)(launcher if victim == "run" else dvc, 9)
Path("killed").touch()
if trouble[1] == "run":
    time.sleep(3)
print(flush=True)
"""


@pytest.fixture
def trained(project: Project) -> Project:
    """The micro study with two cells of which DVC knows nothing: they are finished in scratch."""
    lock = yaml.safe_load((project.root / "dvc.lock").read_text())
    for path, stage in CELLS.items():
        record = json.loads((project.root / "tracking" / path / "run.json").read_text())
        scratch = Scratch(project.root / "scratch" / path / record["fingerprint"])
        with scratch.sealing(record["fingerprint"]) as folder:
            shutil.copytree(project.root / "runs" / path, folder / "run", copy_function=shutil.copyfile)
            shutil.copyfile(project.root / "tracking" / path / "run.json", folder / "run.json")
        write_json(scratch.mlflow, {name: record[name] for name in ("run_id", "logged")})
        shutil.rmtree(project.root / "runs" / path)
        shutil.rmtree(project.root / "tracking" / path)
        (project.root / "scratch" / "recorded" / record["fingerprint"]).unlink()
        del lock["stages"][stage]
    (project.root / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))
    shutil.rmtree(project.root / ".dvc" / "cache" / "runs")
    shutil.rmtree(project.root / "scratch" / "logs")
    project.edit(
        (ADOPTION, "", TROUBLE),
        (ADOPTION, "    try:\n        os.link", '    in_trouble("adoption")\n    try:\n        os.link'),
        (ADOPTION, "    return True\n", '    in_trouble("end")\n    in_trouble("lock")\n    return True\n'),
    )
    (project.root / "killer.py").write_text(KILLER)
    return project


def contents(project: Project) -> dict[str, object]:
    """What DVC has recorded, and every byte of the cells; not the sources, which these tests edit."""
    found = sorted(file for name in ("runs", "tracking") for file in (project.root / name).rglob("*") if file.is_file())
    files = {file.relative_to(project.root).as_posix(): sha256_of(file) for file in found}
    stages = yaml.safe_load((project.root / "dvc.lock").read_text())["stages"]
    return {"lock": {name: entry for name, entry in stages.items() if name != "code"}} | files


def start(project: Project) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "safeecgmatch.cli", "run", *CELLS]
    return subprocess.Popen(
        command, cwd=project.root, env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def goes_on(project: Project, study: Project) -> str:
    """The same command once more takes both cells over, with the bytes that they had, and trains nothing."""
    output = project.safeecgmatch("run", *CELLS)
    assert "0 of them to be trained" in output and "Everything that was asked for is up to date" in output
    assert contents(project) == contents(study)
    assert not (project.root / "scratch" / "ptbxl").exists() and not (project.root / "scratch" / "dvc.lock").exists()
    assert not (project.root / "scratch" / "logs").exists(), "a cell was trained"
    return output


@pytest.mark.parametrize(
    "trouble",
    [
        "lock run+dvc",  # the worst moment; the others are slow tests
        *(pytest.param(trouble, marks=pytest.mark.slow) for trouble in SLOWER),
    ],
)
def test_a_kill_while_dvc_takes_cells_over_loses_no_training(trained: Project, study: Project, trouble: str) -> None:
    (trained.root / "trouble").write_text(trouble)
    process = start(trained)
    output = process.communicate()[0]
    wait_for((trained.root / "killed").exists)
    if "run" in trouble:
        assert process.returncode == -signal.SIGKILL, output
    else:
        assert process.returncode == 1 and "DVC was killed by signal 9; nothing is lost" in output
        assert not (trained.root / "scratch" / "dvc.lock").exists(), "dvc.lock was not put back"
    for path in CELLS:
        assert list((trained.root / "scratch" / path).glob("*/finished/run/model.safetensors"))
    output = goes_on(trained, study)
    assert ("The last run was killed while DVC was at work" in output) == ("run" in trouble)


@pytest.mark.slow
def test_dvc_that_outlives_a_killed_run_is_waited_for(trained: Project, study: Project) -> None:
    (trained.root / "trouble").write_text("adoption run")
    process = start(trained)
    wait_for((trained.root / "killed").exists)
    assert "still at work for a `safeecgmatch run` that was killed; waiting" in goes_on(trained, study)
    process.communicate()


@pytest.mark.slow
def test_a_plain_kill_ends_dvc_too_and_loses_nothing(trained: Project, study: Project) -> None:
    trained.edit((ADOPTION, "    try:\n        os.link", "    sleeping()\n    try:\n        os.link"))
    trained.edit((ADOPTION, "", 'def sleeping():\n    import time\n    Path("begun").touch()\n    time.sleep(600)\n'))
    process = start(trained)
    wait_for((trained.root / "begun").exists)
    process.terminate()
    assert "Stopped; cells" in process.communicate(timeout=300)[0] and process.returncode == 130
    trained.edit((ADOPTION, "time.sleep(600)", "pass"))
    goes_on(trained, study)


@pytest.mark.slow
def test_run_waits_for_a_dvc_that_is_at_work(project: Project) -> None:
    go, waiting = project.root / "go", "    time.sleep(0.1)\n\n\ndef train("
    begin = 'import time\nPath("begun").touch()\nwhile not Path("go").exists():\n'
    project.edit(("stages/train.py", "def train(", begin + waiting))
    stage = next(iter(CELLS.values()))
    command = ["dvc", "repro", "--force", "--single-item", stage]
    beside = subprocess.Popen(command, cwd=project.root, env=project.environment, stdout=subprocess.DEVNULL)
    wait_for((project.root / "begun").exists)
    with start(project) as run:
        output = ""
        for line in run.stdout or ():
            output += line
            if f"Another DVC process ({beside.pid}) is at work; waiting for it." in line:
                go.touch()
    waited, ended = go.exists(), beside.poll()
    go.touch()
    beside.wait()
    assert waited and ended == 0 and run.returncode == 0, output
    assert "0 of them to be trained" in output


@pytest.mark.parametrize("damage", ["cut", "another program's number"])
def test_what_a_killed_dvc_left_as_busy_blocks_nobody(project: Project, damage: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        info = {"pid": other.pid, "cmd": "dvc repro"}
        text = json.dumps({"write": {str(project.root / "runs" / next(iter(CELLS))): info}, "read": {}})
        (project.root / ".dvc" / "tmp" / "rwlock").write_text(text[:-20] if damage == "cut" else text)
        assert "busy" in project.run("dvc", "status", check=False) or damage == "cut"
        assert "0 of them to be trained" in project.safeecgmatch("run", "--dry-run")
        other.kill()


def every_byte(project: Project) -> dict[str, str]:
    """Of the whole tree, DVC's cache included; without what DVC and Python note down at every start."""
    tree = (file for file in project.root.rglob("*") if file.is_file())
    names = {file.relative_to(project.root).as_posix(): file for file in tree}
    noted = (".dvc/tmp/", ".git/")
    return {
        name: f"{file.stat().st_mtime_ns} {sha256_of(file)}"
        for name, file in names.items()
        if not name.startswith(noted) and "__pycache__" not in name
    }


@pytest.mark.parametrize("what", ["outputs gone", "shared stages", "typo"])
def test_a_dry_run_changes_no_byte(project: Project, what: str) -> None:
    if what == "outputs gone":  # DVC could restore them
        for path in CELLS:
            shutil.rmtree(project.root / "runs" / path)
    elif what == "shared stages":
        project.edit(("src/safeecgmatch/data/descriptor.py", "", "\nUNUSED = 1\n"))
    before = every_byte(project)
    output = project.safeecgmatch("run", "--dry-run", *(["split@typo"] if what == "typo" else []), check=what != "typo")
    assert every_byte(project) == before
    expected = {
        "outputs gone": " training cells, 0 of them to be trained.",
        "shared stages": "Out of date and run first: code; what they change can put other cells out of date.",
        "typo": "Error: 'split@typo' names no stage or cell of params.yaml",
    }
    assert expected[what] in output
