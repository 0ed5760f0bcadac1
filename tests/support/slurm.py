"""A real Slurm on the pretend machines: the controller on n0, where users log in, and a node on each of n1 to n3."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from testbed import SLURM_DAEMONS, Testbed
from waiting import until

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
NODES = ("n1", "n2", "n3")
_FREEZER = Path("/sys/fs/cgroup/freezer")
# Seconds in which nodes are idle again after the last job.
_SETTLING_S = 30.0
_CONFIG = """\
ClusterName=pretend
SlurmctldHost=n0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
CredType=cred/munge
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=n[1-3] CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=debug Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-3] MaxTime=INFINITE State=UP PriorityTier=10
"""
_CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
"""


def reason_to_skip() -> str | None:
    """Why Slurm cannot run here, besides what the machines need."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [program for program in NEEDED if shutil.which(program, path=path) is None]
    if missing:
        return f"Slurm needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None


class Slurm:
    """Runs the daemons of Slurm on the machines until close(). `n0` is the login node."""

    def __init__(self, machines: Testbed) -> None:
        self.machines = machines
        self.directory = machines.shared / "slurm"
        self._start_all()

    def _start_all(self) -> None:
        self._write_files()
        try:
            self._start("n0", "munged", *self._munge_words())
            self._start("n0", "slurmctld", "-c")
            for name in NODES:
                self._start(name, "slurmd", "-N", name)
            until(lambda: self.idle_nodes() == len(NODES))
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait until no job is left, and prepare for other tests. AssertionError if one is left."""
        try:
            until(lambda: not self.queue())
            if self._is_changed:
                self._configure(self._config)
                self._is_changed = False
            until(lambda: self.idle_nodes() == len(NODES), _SETTLING_S)
            # It may outlive an orch that was killed.
            self._kill("n0", "salloc")
        except AssertionError:
            left = self.queue()
            self.close()
            self._start_all()
            assert not left, f"jobs are left in the queue: {left}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The variable by which Slurm's programs find their configuration."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def run(self, *command: str, stdin: str = "", cwd: Path | None = None, check: bool = True) -> str:
        """Run a command on the login node, such as sbatch or scancel; return what it prints."""
        options: dict[str, Any] = {"stdin": stdin.encode(), "cwd": cwd, "check": check, "env": self.environ}
        return self.machines["n0"].run(*command, **options).stdout.strip()

    def idle_nodes(self) -> int:
        return int(self.run("sinfo", "-h", "-p", "debug", "-t", "idle", "-o", "%D", check=False) or 0)

    def node_state(self, name: str) -> str:
        return self.run("sinfo", "-h", "-N", "-n", name, "-p", "debug", "-o", "%T")

    def queue(self) -> list[str]:
        """The jobs that wait or run, as `ID STATE`."""
        return self.run("squeue", "-h", "-o", "%i %T").splitlines()

    def job(self) -> str:
        """The id of the only job."""
        (line,) = self.queue()
        return line.split()[0]

    def comment(self, job: str) -> str:
        return self.run("squeue", "-h", "-j", job, "-o", "%k")

    def preempt(self) -> None:
        """Run a job that is more urgent on all nodes."""
        self.run("srun", "-p", "urgent", "-N3", "--exclusive", "true")

    def daemons(self, name: str, *programs: str) -> list[psutil.Process]:
        """The daemons of a machine."""
        wanted = programs or SLURM_DAEMONS
        found = []
        for each in self.machines[name].all_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.name() in wanted:
                    found.append(each)
        return found

    def restart_controller(self) -> None:
        """Restart the controller as an administrator does. A killed one would forget the last 5 seconds of its jobs."""
        for process in self.daemons("n0", "slurmctld"):
            process.terminate()
        until(lambda: not self.daemons("n0", "slurmctld"))
        self._start("n0", "slurmctld")

    def turn_off(self, name: str) -> None:
        """Kill all processes of a node and cut its network, as a loss of power would, until turn_on()."""
        self.machines.cut(name)
        self._kill(name, *SLURM_DAEMONS)
        self.machines[name].kill_all()

    def turn_on(self, name: str) -> None:
        self.machines.heal()
        self._start(name, "slurmd", "-N", name)

    def set_prolog(self, script: str) -> None:
        """Make each node run this script before its part of a job."""
        prolog = self.directory / "prolog"
        prolog.write_text(f"#!/bin/sh\n{script}\nexit 0\n")
        prolog.chmod(0o755)
        self.configure(Prolog=str(prolog))

    def configure(self, **values: str) -> None:
        """Set values in slurm.conf until the end of the test, and let the daemons read it again."""
        kept = [line for line in self._config.splitlines() if line.partition("=")[0] not in values]
        self._is_changed = True
        self._configure("\n".join([*kept, *(f"{name}={value}" for name, value in values.items()), ""]))

    def _configure(self, text: str) -> None:
        (self.directory / "slurm.conf").write_text(text)
        self.run("scontrol", "reconfigure")

    def close(self) -> None:
        """End all daemons, and a salloc that a failed test has left."""
        for name in ("n1", "n2", "n3", "n0"):
            self._kill(name, *SLURM_DAEMONS, "salloc")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _kill(self, name: str, *programs: str) -> None:
        for process in self.daemons(name, *programs):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends with another one
                process.kill()
        until(lambda: not self.daemons(name, *programs))

    def _start(self, name: str, program: str, *words: str) -> None:
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin") or program
        self.machines[name].run(path, *words, env=self.environ)

    def _munge_words(self) -> list[str]:
        place = self.directory
        return [
            f"--key-file={place / 'munge.key'}",
            f"--socket={place / 'munge.sock'}",
            *(f"--{kind}-file={place / f'munged.{kind}'}" for kind in ("pid", "log", "seed")),
        ]

    def _write_files(self) -> None:
        self.directory.mkdir(mode=0o755)
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        proctrack = "cgroup" if _FREEZER.is_dir() else "linuxproc"
        self._config = _CONFIG.format(directory=self.directory, proctrack=proctrack)
        self._is_changed = False
        (self.directory / "slurm.conf").write_text(self._config)
        if proctrack == "cgroup":
            (self.directory / "cgroup.conf").write_text(_CGROUP)
        for name in NODES:
            (self.directory / f"spool.{name}").mkdir()
