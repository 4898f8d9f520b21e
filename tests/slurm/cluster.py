"""A real one-node SLURM with accounting on this machine, for tests: `python -m tests.slurm.cluster start|stop FOLDER`.

Needs root and Debian's packages slurm-wlm, slurmdbd, mariadb-server and munge; nothing of theirs outside FOLDER is
used, so a SLURM that is configured here is not disturbed. No systemd, no cgroups; every daemon listens on 127.0.0.1
alone, on ports that are free. FOLDER must be one that the users munge and mysql can enter, and new.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAMS = {
    "slurm-wlm": ("slurmctld", "slurmd", "sbatch", "squeue", "sacctmgr"),
    "slurmdbd": ("slurmdbd",),
    "mariadb-server": ("mariadbd", "mariadb-install-db"),
    "munge": ("munged",),
}
CPUS = 4  # what SLURM is given, whatever the machine has: four cells at a time
PATIENCE = 60.0

SLURM_CONF = """\
ClusterName=toy
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=10
MaxArraySize=5001
MaxJobCount=10000
SchedulerParameters=sched_interval=5,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd}
AccountingStoragePass={folder}/munge/socket
JobAcctGatherType=jobacct_gather/none
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000
PartitionName=main Nodes={node} Default=YES PriorityTier=1
PartitionName=urgent Nodes={node} PriorityTier=2
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoInAddrAny
DbdHost={node}
DbdAddr=127.0.0.1
DbdPort={slurmdbd}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadb}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""

DATABASE = """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
"""


def why_not() -> str:
    """Why no cluster can be started here, or nothing."""
    missing = [package for package, programs in PROGRAMS.items() if not all(map(shutil.which, programs))]
    if missing:
        return f"Debian's {', '.join(missing)} not installed"
    return "" if os.geteuid() == 0 else "a SLURM cluster can be started by root alone"


class Cluster:
    """The daemons below `folder`; `environment` is what their clients need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.node = socket.gethostname().partition(".")[0]  # slurmdbd and slurmctld look whether they are at home

    def start(self) -> None:
        if reason := why_not():
            raise SystemExit(reason)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        try:
            self._configure()
            self._start_munge()
            self._start_database()
            self._start_slurm()
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        ports = free_ports("ctld", "slurmd", "slurmdbd", "mariadb")
        self.mariadb_port = ports["mariadb"]
        values = {"folder": self.folder, "node": self.node, "cpus": CPUS, **ports}
        for name, text in {"slurm.conf": SLURM_CONF, "slurmdbd.conf": SLURMDBD_CONF}.items():
            (self.folder / name).write_text(text.format(**values))
            (self.folder / name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        for path in (folder, folder / "key"):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._run("munged", *(f"--{option}={folder / name}" for option, name in files.items()), user="munge")
        self._write_pid("munged", int((folder / "pid").read_text()))

    def _start_database(self) -> None:
        data = self.folder / "database"
        data.mkdir()
        shutil.chown(data, "mysql", "mysql")
        (self.folder / "database.sql").write_text(DATABASE)
        self._run("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db")
        options = [f"--datadir={data}", f"--socket={data}/socket", f"--pid-file={data}/pid", "--user=mysql"]
        options += [
            f"--port={self.mariadb_port}",
            "--bind-address=127.0.0.1",
            f"--init-file={self.folder}/database.sql",
        ]
        self._background("mariadbd", "mariadbd", "--no-defaults", *options)
        self._wait(lambda: answers(self.mariadb_port), "mariadbd")

    def _start_slurm(self) -> None:
        self._background("slurmdbd", "slurmdbd", "-D")
        self._wait(lambda: self.succeeds("sacctmgr", "-i", "add", "cluster", "toy"), "slurmdbd")
        self._background("slurmctld", "slurmctld", "-D", "-c")
        self._wait(lambda: self.succeeds("scontrol", "ping") and "UP" in self.run("scontrol", "ping"), "slurmctld")
        self._background("slurmd", "slurmd", "-D", "-N", self.node)
        self._wait(lambda: self.run("sinfo", "-h", "-p", "main", "-o", "%T").strip() == "idle", "slurmd")

    def stop(self) -> None:
        """End every daemon by its own id, the last started first, and whatever its jobs have left."""
        for name in ("slurmd", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            file = self.folder / f"{name}.started"
            if not file.exists():
                continue
            if name == "slurmd":
                self.succeeds("scancel", "--user=root", "--full", "--signal=KILL")
            end(int(file.read_text()))
            file.unlink()

    def run(self, *command: str) -> str:
        """A client's standard output."""
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def succeeds(self, *command: str) -> bool:
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def _run(self, *command: str, user: str | None = None) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, user=user, group=user, cwd="/")
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")

    def _background(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._write_pid(name, process.pid)

    def _write_pid(self, name: str, pid: int) -> None:
        (self.folder / f"{name}.started").write_text(str(pid))

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > deadline:
                output = (self.folder / f"{name}.out").read_text()[-2000:]
                raise RuntimeError(f"{name} does not answer after {PATIENCE:.0f} s:\n{output}")
            time.sleep(0.5)


def free_ports(*names: str) -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: opened.getsockname()[1] for name, opened in zip(names, sockets, strict=True)}
    for opened in sockets:
        opened.close()
    return ports


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def end(pid: int) -> None:
    """SIGTERM, and SIGKILL to what is still there after ten seconds."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        try:
            process.wait(10)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(10)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop"):
        sys.exit("usage: python -m tests.slurm.cluster start|stop FOLDER")
    cluster = Cluster(Path(sys.argv[2]).resolve())
    if sys.argv[1] == "start":
        cluster.start()
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}")
    else:
        cluster.stop()
