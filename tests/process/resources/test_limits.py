"""Limits of this user and this machine: refused before anything starts, or reported as the cause."""

from __future__ import annotations

import os
import resource
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from agent_driving import SLEEPER, Driver, python
from control_groups import MemoryGroup, NoGroup, ProcessGroup
from orch_command import Orch
from waiting import until

from worker.wire.messages import Exited, Started

TRUE = ("true",)
PLAIN = (sys.executable, "-I", "-S")
G = TypeVar("G", MemoryGroup, ProcessGroup)


def limited(*limits: str) -> tuple[str, ...]:
    return ("prlimit", *(f"--{limit}" for limit in limits))


def group(make: Callable[[], G]) -> Iterator[G]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(make())
        except NoGroup as reason:
            pytest.skip(str(reason))
        yield made


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """A control group with 160 MiB. orch itself takes 70, and more while it compiles its modules."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a control group")
    yield from group(lambda: MemoryGroup(160 << 20))


@pytest.fixture
def processes() -> Iterator[ProcessGroup]:
    yield from group(ProcessGroup)


def test_limit_that_is_too_low_is_refused_before_anything_starts(orch: Orch) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 100  # else they are refused for another reason
    refused = {
        ("nofile=64:64", "-n", "15"): ("is 64", "enough for 14 tasks, not 15", "--workers 14"),
        ("nofile=12:4096",): ("open files is 12 (ulimit -Sn)", "orch needs 24"),
        ("fsize=4096:4096",): (f"cannot be made in {orch.state}", "File too large", "ulimit -f"),
    }
    for (limit, *words), texts in refused.items():
        done = orch.start("up", *words, "--", *TRUE, before=limited(limit)).finish()
        assert done.code == 2 and "Errno" not in done.err, done.err
        assert all(part in done.err for part in texts), done.err
    assert orch.run_dirs() == []
    assert orch.start("up", "--", *TRUE, before=limited("nofile=24:24")).finish().code == 0


@pytest.mark.slow
def test_most_tasks_that_the_limit_on_open_files_allows(orch: Orch) -> None:
    up = ("up", "-n", "14", "--", "sh", "-c", "ulimit -n")
    done = orch.start(*up, before=limited("nofile=64:64")).finish()
    assert done.code == 0, done.err
    assert sorted({line.rpartition("| ")[2] for line in done.lines}) == ["64"]


def test_fork_that_fails_is_reported_with_its_reason(tmp_path: Path, processes: ProcessGroup) -> None:
    with Driver(tmp_path) as agent:
        processes.take(agent.pid)
        processes.allow(3)
        for number in range(3):
            agent.start(f"worker:{number}", python(SLEEPER))
        failed = agent.wait_for(Exited)
        assert failed.task == "worker:2"
        assert "no more processes or threads can be started" in (failed.exit.start_error or "")
        assert [m.task for m in agent.messages if isinstance(m, Started)] == ["worker:0", "worker:1"]
        assert agent.end().swept == 0


def test_process_limit_met_by_the_last_tasks_is_the_cause(
    orch: Orch, processes: ProcessGroup, tmp_path: Path
) -> None:
    """The limit is lowered while the agent preloads a module."""
    # In a zip file: modules in directories count as the script's own source and are not preloaded.
    with zipfile.ZipFile(tmp_path / "slow.zip", "w") as archive:
        archive.writestr("slow.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    script = orch.script("task.py", "import time\ntime.sleep(600)\n")
    env: dict[str, str | None] = {"PYTHONPATH": str(tmp_path / "slow.zip")}
    up = orch.start("up", "-n", "4", "--preload", "slow", "--", script, env=env)
    for pid in (until(orch.agent), until(orch.preloader)):
        processes.take(pid)
    processes.allow(4)
    (orch.directory / "go").touch()
    done = up.finish()
    result = orch.result()
    assert done.code == result["exit_code"] == 126
    assert result["cause"]["kind"] == "limit"
    assert "no more processes or threads can be started" in result["cause"]["text"]
    assert "pids.max" in result["first_failure"]["advice"]


def test_cpu_time_limit_is_the_cause(orch: Orch) -> None:
    spin = ("sh", *PLAIN, "-c", "while True: pass")
    assert orch("up", "-q", "--", "sh", "-c", 'ulimit -S -t 1; exec "$@"', *spin).code == 128 + 24
    cause = orch.result()["cause"]
    assert (cause["kind"], cause["text"]) == ("limit", "SIGXCPU: over its limit on CPU time (ulimit -t)")


# -- memory

# The kernel may else choose orch, whose processes are in the same control group. It takes a bounded amount, in case it
# is killed late.
EATER = """
import os, sys, time
if os.environ["ORCH_TASK"] == "worker:1":
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    kept = []
    for _ in range(40):
        kept.append(bytearray(b"x" * (10 << 20)))
        time.sleep(0.02)
print("up", flush=True)
time.sleep(600)
"""


def test_task_over_its_limit_is_killed_and_named(orch: Orch) -> None:
    eater = orch.script("eater.py", EATER)
    done = orch("up", "-n", "3", "--memory-limit", "200MiB", "--", *PLAIN, eater)
    result = orch.result()
    cause = result["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:1", "limit")
    assert done.code == result["exit_code"] == 128 + signal.SIGKILL
    assert "over --memory-limit 200 MiB" in cause["text"] and "over --memory-limit 200 MiB" in done.err
    assert "--memory-limit" in result["first_failure"]["advice"]
    (used, limit), *others = filter(None, (each["exit"]["over_limit"] for each in orch.events("task_exited")))
    assert used > limit == 200 << 20 and not others


@pytest.mark.parametrize("is_below_a_shell", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_out_of_memory_kill_is_the_cause(
    orch: Orch, memory_group: MemoryGroup, is_below_a_shell: bool
) -> None:
    command = [*PLAIN, orch.script("eater.py", EATER)]
    if is_below_a_shell:
        command = ["sh", "-c", f"{' '.join(command)}; exit $?"]
    done = orch.start("up", "-n", "2", "--", *command, before=memory_group.before).finish()
    result = orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", "limit")
    separator = "," if is_below_a_shell else ":"
    assert f"killed by the kernel{separator} out of memory" in result["cause"]["text"]
    assert done.code == 128 + signal.SIGKILL
    assert "ran out of memory" in result["first_failure"]["advice"]
