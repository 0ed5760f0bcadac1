"""Runs of light Python tasks, and checks that their processes are gone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from waiting import until, until_gone

import orchestrator
from orchestrator import Cluster, Run
from orchestrator.store.logs.merge import LogReader

# Seconds until processes must be gone. The documented limit is 2 s; a busy machine may need more.
GONE_WITHIN_S = 60.0
# A grace period so long that a test which waits for it fails.
LONG = "10m"

START = """
import os, signal, subprocess, sys, time
me = os.environ["ORCH_TASK"]
index = int(me.partition(":")[2])
def touch(name): open(name, "w").close()
def wait_for(*names):
    while not all(map(os.path.exists, names)): time.sleep(0.005)
"""
# Short sleeps: a signal that arrives just before a sleep is handled after it.
SLEEP = "\nwhile True: time.sleep(0.1)\n"
# Ignores SIGTERM, with a daemon (in its own session, reparented) that ignores it, too.
DAEMONISES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(f"grandchild-{index}.new", "w").write(str(os.getpid()))
        os.rename(f"grandchild-{index}.new", f"grandchild-{index}")
        time.sleep(600)
    os._exit(0)
os.wait()
"""
LINES = 2000
WRITES = f"""
for n in range({LINES}): print(me, n)
sys.stdout.flush()
touch(f"up-{{index}}")
"""
COLLATERAL = """
print("Traceback (most recent call last):\\n  File \\"t.py\\", line 1, in <module>\\n"
      "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed", file=sys.stderr)
sys.exit(1)
"""


def python(*program: str) -> list[str]:
    """A Python that starts fast: no site-packages."""
    return [sys.executable, "-I", "-S", "-c", START + "\n".join(program)]


def cluster(*program: str, workers: int = 2, **options: Any) -> Cluster:
    return Cluster(workers=workers, command=python(*program), **options)


def up(workers: int = 2) -> None:
    """Wait for the files that the tasks create when they are up."""
    until(lambda: all(Path(f"up-{index}").exists() for index in range(workers)))


def grandchildren(workers: int = 2) -> list[int]:
    until(lambda: all(Path(f"grandchild-{index}").exists() for index in range(workers)))
    return [int(Path(f"grandchild-{index}").read_text()) for index in range(workers)]


def task_pids(run: Run) -> list[int]:
    """The pids of all tasks, once they are started."""
    until(lambda: run.status().tasks and all(task.pid for task in run.status().tasks))
    return [task.pid for task in run.status().tasks if task.pid is not None]


def supervisor_of(run: Run) -> int:
    return run.view.record.supervisor_pid


def agent_of(run: Run) -> int:
    children = until(lambda: psutil.Process(supervisor_of(run)).children())
    (agent,) = (child for child in children if "worker.agent.agent" in child.cmdline())
    return int(agent.pid)


def assert_gone(pids: Sequence[int]) -> None:
    until_gone(*pids, timeout_s=GONE_WITHIN_S)


def assert_logs_are_whole(run: Run, workers: int = 2) -> None:
    """Check that the raw and the replayed logs have every line of every task once, in order."""
    reader = LogReader(run.dir / "logs")
    replayed = dict.fromkeys((f"worker:{index}" for index in range(workers)), b"")
    while chunks := reader.read(1 << 20) or reader.read_unindexed(1 << 20):
        for chunk in chunks:
            replayed[chunk.task] += chunk.data
    reader.close()
    for task, data in replayed.items():
        wanted = "".join(f"{task} {number}\n" for number in range(LINES)).encode()
        assert run.log(task).read_bytes() == wanted
        assert data == wanted


def assert_the_next_run_works() -> None:
    with cluster("print(me)", workers=1) as run:
        assert run.wait().succeeded
        assert run.log("worker:0").read_text() == "worker:0\n"


def find(run_id: str) -> Run:
    return orchestrator.find(run_id)
