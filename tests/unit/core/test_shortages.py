"""The resource that a failed task ran out of, only if it is certain."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import Any

from making import event, exited, planned_task

from orchestrator.core.diagnosis import shortages
from orchestrator.core.diagnosis.cause import advice_on
from orchestrator.core.diagnosis.shortages import FULL_DISK, find_shortage
from orchestrator.core.state.events import SignalRequested, Symptom, SymptomKind
from orchestrator.core.state.state import TaskPhase, TaskState
from orchestrator.core.text.sizes import format_size, parse_size


def failed(code: int | None = 1, number: int | None = None, **fields: Any) -> TaskState:
    """worker:1 after its exit. `fields`: of its state, and of its exit."""
    own = {name: fields.pop(name) for name in ("signals", "full_disk") if name in fields}
    ended = exited(1, code, number, **fields)
    return TaskState(plan=planned_task(1), phase=TaskPhase.FAILED, ended=ended, **own)


def killed(**fields: Any) -> TaskState:
    return failed(number=signal.SIGKILL, **{"oom_kills": 0} | fields)


DISK = "/data: No space left on device"
OWN = Symptom(kind=SymptomKind.OWN, exception="ValueError: x")


def sent(number: int) -> tuple[SignalRequested, ...]:
    return (event(SignalRequested, task=1, signal=number, by="user"),)


def test_what_a_task_ran_out_of() -> None:
    gib = 1 << 30
    started = "could not be started: "
    refused = "python3: no more processes or threads can be started (Resource temporarily unavailable)"
    full, quota = "[Errno 28] No space left on device: '/x.log'", "[Errno 122] Disk quota exceeded: '/x.log'"
    files, missing = "[Errno 24] Too many open files", "nosuch: no such file or directory"
    not_started = partial(failed, 126)
    oom = "killed by the kernel: out of memory (it had used up to 300 MiB)"
    rows: list[tuple[TaskState, str | None]] = [
        # The memory in the units of the limit.
        (killed(over_limit=(int(1.2 * gib), gib)), "used 1.2 GiB, over --memory-limit 1 GiB"),
        (killed(over_limit=(612_000_000, 500_000_000)), "used 612 MB, over --memory-limit 500 MB"),
        (killed(oom_kills=1, peak_bytes=300 << 20), oom),
        # The killed process was below a shell.
        (failed(137, oom_kills=1, peak_bytes=300 << 20), "exit 137: " + oom.replace(":", ",")),
        (killed(), None),
        (killed(oom_kills=None), None),
        (killed(oom_kills=2, signals=sent(signal.SIGKILL)), None),
        (failed(number=signal.SIGSEGV, oom_kills=2), None),
        (failed(oom_kills=2), None),
        # A full disk explains a failure without a symptom.
        (failed(120, full_disk=DISK), f"exit 120, on a full disk ({DISK})"),
        (failed(full_disk=DISK, symptom=OWN), None),
        (failed(full_disk=DISK, symptom=Symptom(kind=SymptomKind.COLLATERAL)), None),
        (failed(full_disk=DISK, signals=sent(signal.SIGTERM)), None),
        *((not_started(start_error=error), f"{started}{error}") for error in (refused, full, quota, files)),
        (not_started(start_error=missing), None),
        (failed(number=signal.SIGXCPU, signals=sent(signal.SIGXCPU)), None),
    ]
    found = [lack and lack.text for lack in (find_shortage(task) for task, _ in rows)]
    assert found == [text for _, text in rows]
    advised = {refused: shortages.NO_PROCESSES, full: FULL_DISK, quota: FULL_DISK, files: shortages.NO_FILES}
    assert {error: advice_on(not_started(start_error=error)) for error in advised} == advised


def test_signals_of_limits_and_from_outside_are_explained() -> None:
    rows = {signal.SIGXCPU: "CPU time (ulimit -t)", signal.SIGXFSZ: "a file's size (ulimit -f)"}
    lacks = {number: find_shortage(failed(number=number)) for number in rows}
    assert not [number for number, lack in lacks.items() if lack is None or rows[number] not in lack.text]
    assert "the kernel counted no out-of-memory kill" in shortages.describe_kill(killed())
    assert "likely out of memory" in shortages.describe_kill(killed(oom_kills=None))


def test_full_disk_of_a_host_has_advice_about_that_host() -> None:
    there = planned_task(1, host="n1")
    raised = Symptom(kind=SymptomKind.OWN, exception="OSError: [Errno 28]", advice=FULL_DISK)
    for full in (failed(full_disk=DISK), failed(symptom=raised)):
        assert advice_on(full) == FULL_DISK
        assert advice_on(replace(full, plan=there)) == shortages.FULL_DISK_OF_HOST


def test_run_that_cannot_be_stored_has_advice() -> None:
    elsewhere = "Put runs on another disk with --log-dir."
    rows = {
        "Disk quota exceeded": "The disk is full: free some space (`orch prune`",
        "File too large": "The limit on a file's size was reached: raise it",
        "Input/output error": elsewhere,
        "Permission denied": "",
    }
    found = {reason: shortages.storage_advice(f"/x: {reason}") or "" for reason in rows}
    wrong = {reason: advice for reason, advice in found.items() if not advice.startswith(rows[reason])}
    assert not wrong and not found["Permission denied"], wrong


def test_formatted_size_can_be_read_back() -> None:
    rows: dict[tuple[int, int | None], str] = {
        (0, None): "0 B",
        (1023, None): "1023 B",
        (1 << 20, None): "1 MiB",
        (1_610_612_736, None): "1.5 GiB",
        (10**10, 10**10): "10 GB",
        (512 << 20, 10**9): "537 MB",
        (3 << 50, None): "3072 TiB",
    }
    assert {(size, like): format_size(size, like) for size, like in rows} == rows
    assert all(abs(parse_size(text) - size) <= size * 0.06 for (size, _), text in rows.items() if size)
