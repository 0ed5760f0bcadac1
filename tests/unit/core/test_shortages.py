"""The resource that a failed task ran out of, only if it is certain."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from orchestrator.core.diagnosis.cause import advice_on
from orchestrator.core.diagnosis.shortages import (
    FULL_DISK,
    FULL_DISK_OF_HOST,
    NO_FILES,
    NO_PROCESSES,
    describe_kill,
    find_shortage,
    storage_advice,
)
from orchestrator.core.state.events import PlannedTask, SignalRequested, Symptom, SymptomKind
from orchestrator.core.state.state import TaskPhase, TaskState
from orchestrator.core.text.sizes import format_size, parse_size
from orchestrator.supervisor.agent_reports import MemoryWatch

PLAN = PlannedTask(
    task="worker:1",
    role="worker",
    index=1,
    address=None,
    argv=(),
    cwd="/",
    env={},
    log="/x",
    serves=True,
)
KILLED = TaskState(plan=PLAN, phase=TaskPhase.FAILED, signal=signal.SIGKILL, oom_kills=0)
FELL = TaskState(plan=PLAN, phase=TaskPhase.FAILED, exit_code=1)
DISK = "/data: No space left on device"


def sent(number: int) -> SignalRequested:
    return SignalRequested(at=0, mono=0, task="worker:1", signal=number, by="user")


def said(task: TaskState) -> str | None:
    lack = find_shortage(task)
    return None if lack is None else lack.text


def test_memory_over_the_limit_in_the_limits_units() -> None:
    gib = 1 << 30
    over = replace(KILLED, over_limit=int(1.2 * gib), memory_limit=gib)
    assert said(over) == "used 1.2 GiB, over --memory-limit 1 GiB"
    over = replace(KILLED, over_limit=612_000_000, memory_limit=500_000_000)
    assert said(over) == "used 612 MB, over --memory-limit 500 MB"


def test_oom_kill_names_the_memory_used() -> None:
    killed = replace(KILLED, oom_kills=1, peak_bytes=300 << 20)
    assert said(killed) == "killed by the kernel: out of memory (it had used up to 300 MiB)"
    below_a_shell = replace(killed, signal=None, exit_code=137)
    assert said(below_a_shell) == "exit 137: killed by the kernel, out of memory (it had used up to 300 MiB)"


@pytest.mark.parametrize(
    "task",
    [
        KILLED,
        replace(KILLED, oom_kills=None),
        replace(KILLED, oom_kills=2, signals=(sent(signal.SIGKILL),)),
        replace(KILLED, oom_kills=2, signal=signal.SIGSEGV),
        replace(FELL, oom_kills=2),
    ],
)
def test_any_other_end_is_not_taken_for_it(task: TaskState) -> None:
    assert said(task) is None


def test_kill_from_outside_is_described() -> None:
    assert "the kernel counted no out-of-memory kill" in describe_kill(KILLED)
    assert "likely out of memory" in describe_kill(replace(KILLED, oom_kills=None))


def test_full_disk_explains_a_failure_without_a_symptom() -> None:
    full = replace(FELL, exit_code=120, full_disk=DISK)
    assert said(full) == f"exit 120, on a full disk ({DISK})"
    own = Symptom(kind=SymptomKind.OWN, exception="ValueError: x")
    assert said(replace(full, symptom=own)) is None
    assert said(replace(full, symptom=Symptom(kind=SymptomKind.COLLATERAL))) is None
    assert said(replace(full, signals=(sent(signal.SIGTERM),))) is None


def test_full_disk_of_a_host_has_advice_about_that_host() -> None:
    there = replace(PLAN, host="n1")
    raised = Symptom(kind=SymptomKind.OWN, exception="OSError: [Errno 28]", advice=FULL_DISK)
    for full in (replace(FELL, full_disk=DISK), replace(FELL, symptom=raised)):
        assert advice_on(full) == FULL_DISK
        assert advice_on(replace(full, plan=there)) == FULL_DISK_OF_HOST


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "python3: no more processes or threads can be started (Resource temporarily unavailable)",
            NO_PROCESSES,
        ),
        ("[Errno 28] No space left on device: '/x.log'", FULL_DISK),
        ("[Errno 122] Disk quota exceeded: '/x.log'", FULL_DISK),
        ("[Errno 24] Too many open files", NO_FILES),
        ("nosuch: no such file or directory", None),
    ],
)
def test_failed_start_for_lack_of_a_resource(error: str, advice: str | None) -> None:
    lack = find_shortage(replace(FELL, exit_code=126, start_error=error))
    assert (None if lack is None else lack.advice) == advice
    if lack is not None:
        assert lack.text == f"could not be started: {error}"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("/x: No space left on device", "The disk is full: free some space (`orch prune`"),
        ("/x: Disk quota exceeded", "The disk is full: free some space (`orch prune`"),
        ("/x: File too large", "The limit on a file's size was reached: raise it (ulimit -f unlimited)."),
        ("/x: Read-only file system", "Put runs on another disk with --log-dir."),
        ("/x: Input/output error", "Put runs on another disk with --log-dir."),
    ],
)
def test_run_that_cannot_be_stored_has_advice(reason: str, advice: str) -> None:
    assert (storage_advice(reason) or "").startswith(advice)
    assert storage_advice("/x: Permission denied") is None


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGXCPU, "CPU time (ulimit -t)"), (signal.SIGXFSZ, "a file's size (ulimit -f)")],
)
def test_signals_of_limits(number: int, told: str) -> None:
    task = replace(FELL, exit_code=None, signal=number)
    assert told in (said(task) or "")
    assert said(replace(task, signals=(sent(number),))) is None


def test_exceeded_limit_is_reported_once() -> None:
    watch = MemoryWatch(100)
    assert [watch.exceeds("a", used) for used in (50, 100, 101, 200)] == [False, False, True, False]
    assert watch.exceeds("b", 101)
    watch.process_started("a")
    assert watch.exceeds("a", 101) and not watch.exceeds("b", 101)
    assert not MemoryWatch(None).exceeds("a", 1 << 60)


@pytest.mark.parametrize(
    ("size", "like", "text"),
    [
        (0, None, "0 B"),
        (1023, None, "1023 B"),
        (1 << 20, None, "1 MiB"),
        (1_610_612_736, None, "1.5 GiB"),
        (10**10, 10**10, "10 GB"),
        (512 << 20, 10**9, "537 MB"),
        (3 << 50, None, "3072 TiB"),
    ],
)
def test_size_text(size: int, like: int | None, text: str) -> None:
    assert format_size(size, like) == text
    if size:
        assert abs(parse_size(text) - size) <= size * 0.06
