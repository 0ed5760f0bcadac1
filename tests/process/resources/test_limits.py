"""Limits of this user and this machine: refused before anything starts, or reported as the cause."""

from __future__ import annotations

import resource
import sys
import zipfile
from pathlib import Path

import pytest
from agent_driving import SLEEPER, Driver, python
from control_groups import ProcessGroup
from orch_command import Orch
from waiting import until

from worker.wire.messages import Exited, Started

TRUE = ("true",)


def limited(*limits: str) -> tuple[str, ...]:
    return ("prlimit", *(f"--{limit}" for limit in limits))


def test_limit_that_is_too_low_is_refused_before_anything_starts(orch: Orch) -> None:
    orch.script("tf.py", "import tensorflow\n")
    refused = {
        ("nofile=64:64", "-n", "15", "--", *TRUE): ("is 64", "enough for 14 tasks, not 15", "--workers 14"),
        ("nofile=16:16", "--", *TRUE): ("open files is 16", "orch needs 24"),
        ("nofile=12:4096", "--", *TRUE): ("open files is 12 (ulimit -Sn)", "orch needs 24"),
        ("as=1000000000", "--", "tf.py"): ("address space is 954 MiB (ulimit -v)", "TensorFlow"),
    }
    started = {words: orch.start("up", *words[1:], before=limited(words[0])) for words in refused}
    for words, texts in refused.items():
        done = started[words].finish()
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert all(part in done.err for part in texts), done.err
    assert orch.run_dirs() == []


def test_limit_on_file_size_is_refused_with_place_and_reason(orch: Orch) -> None:
    done = orch.start("up", "--", *TRUE, before=limited("fsize=4096:4096")).finish()
    assert done.code == 2
    assert f"cannot be made in {orch.state}" in done.err and "File too large" in done.err
    assert "ulimit -f" in done.err and "Errno" not in done.err


@pytest.mark.slow
def test_most_tasks_that_the_limit_on_open_files_allows(orch: Orch) -> None:
    done = orch.start(
        "up", "-n", "14", "--", "sh", "-c", "ulimit -n", before=limited("nofile=64:64")
    ).finish()
    assert done.code == 0, done.err
    assert sorted({line.rpartition("| ")[2] for line in done.lines}) == ["64"]


def test_doctor_and_up_agree_on_the_limit_on_open_files(orch: Orch) -> None:
    for limit, texts in (
        (64, {"each task may open 64 files", "enough for 14 tasks"}),
        (24, {"each task may open 24 files", "enough for 1 task"}),
        (20, {"is 20 (ulimit -Sn), and orch needs 24"}),
    ):
        before = limited(f"nofile={limit}:{limit}")
        findings = orch.start("doctor", "--json", "--workers", "1", "--", *TRUE, before=before).finish()
        about = [each["text"] for each in findings.document["findings"] if each["topic"] == "open files"]
        assert len(about) == len(texts), about
        assert all(any(text in each for each in about) for text in texts), about
    assert orch.start("up", "--", *TRUE, before=limited("nofile=24:24")).finish().code == 0


@pytest.mark.slow
def test_control_group_with_too_few_processes_is_refused(orch: Orch, processes: ProcessGroup) -> None:
    processes.allow(6)
    done = orch.start("up", "-n", "8", "--", *TRUE, before=processes.before).finish()
    assert done.code == 2
    assert "the limit on threads leaves" in done.err and "tasks, not 8 workers" in done.err
    assert orch.run_dirs() == []


def test_memory_limits_beyond_the_machines_memory_are_a_warning(orch: Orch) -> None:
    done = orch("up", "-n", "3", "--memory-limit", "1000TB", "--", *TRUE)
    assert done.code == 0
    assert "--memory-limit 1000 TB for each of 3 tasks is 3000 TB together, more than" in done.err
    assert "--memory-limit" not in orch("up", "-n", "3", "--memory-limit", "1MB", "--", *TRUE).err


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
    agent, preloader = until(orch.agent), until(orch.preloader)
    for pid in (agent, preloader):
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
    spin = ("sh", sys.executable, "-I", "-S", "-c", "while True: pass")
    assert orch("up", "-q", "--", "sh", "-c", 'ulimit -S -t 1; exec "$@"', *spin).code == 128 + 24
    cause = orch.result()["cause"]
    assert (cause["kind"], cause["text"]) == ("limit", "SIGXCPU: over its limit on CPU time (ulimit -t)")


def test_this_process_has_no_low_limit() -> None:
    """A low limit here would make the tests above pass for another reason."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 100
