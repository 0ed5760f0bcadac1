"""Resources that a failed task ran out of (memory, disk, processes), with the advice for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGKILL, SIGXCPU, SIGXFSZ

from orchestrator.core.state.events import SymptomKind
from orchestrator.core.state.result import exit_text, signal_name
from orchestrator.core.state.state import TaskState
from orchestrator.core.text.sizes import format_size

FULL_DISK = (
    "The disk is full: free some space (`orch prune` removes old runs), or move checkpoints and logs with"
    " --checkpoint-dir and --log-dir."
)
FULL_DISK_OF_HOST = (
    "The disk of the task's host is full: free some space there, let TMPDIR name another directory there (logs wait in"
    " it until they are sent), or move checkpoints with --checkpoint-dir."
)
NO_PROCESSES = (
    "No more processes or threads can be started: raise the limit (ulimit -u, or pids.max of the control group), or"
    " ask for fewer workers or --threads."
)
NO_FILES = (
    "The limit on open files was reached: raise it (ulimit -n), or close files that are no longer read."
)
_LESS_MEMORY = "a smaller batch, prefetch or shuffle buffer"
_OVER_LIMIT = f"Raise --memory-limit, or use less memory: {_LESS_MEMORY}."
_OUT_OF_MEMORY = (
    f"The machine (or its control group) ran out of memory: fewer workers, {_LESS_MEMORY}. --memory-limit ends the task"
    " that uses too much before the kernel picks one."
)
_LIMIT_SIGNALS: dict[int, tuple[str, str]] = {
    SIGXCPU: ("its limit on CPU time (ulimit -t)", "Raise the limit: ulimit -t unlimited."),
    SIGXFSZ: ("the limit on a file's size (ulimit -f)", "Raise the limit: ulimit -f unlimited."),
}
_STORAGE = (
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full: free some space (`orch prune` removes old runs), or put runs on a larger one with"
        " --log-dir.",
    ),
    (r"File too large", "The limit on a file's size was reached: raise it (ulimit -f unlimited)."),
    (r"Read-only file system|Input/output error", "Put runs on another disk with --log-dir."),
)
_START_LACKS = (
    ("Resource temporarily unavailable", NO_PROCESSES),
    ("Too many open files", NO_FILES),
    ("Cannot allocate memory", _OUT_OF_MEMORY),
    ("No space left on device|Disk quota exceeded", FULL_DISK),
)


@dataclass(frozen=True)
class Shortage:
    """A resource that ran out, and the advice."""

    text: str
    advice: str


def find_shortage(task: TaskState) -> Shortage | None:
    """Return the resource that certainly ran out; None otherwise. The task's output is not read here."""
    if task.exit.over_limit is not None:
        return Shortage(over_limit_text(*task.exit.over_limit), _OVER_LIMIT)
    if (error := task.exit.start_error) is not None:
        advice = next((advice for pattern, advice in _START_LACKS if re.search(pattern, error)), None)
        return None if advice is None else Shortage(f"could not be started: {error}", advice)
    if task.exit.oom_kills and _ended_by(task, SIGKILL):
        return Shortage(_killed_by_the_kernel(task), _OUT_OF_MEMORY)
    if task.signal in _LIMIT_SIGNALS and not _was_sent(task, task.signal):
        what, advice = _LIMIT_SIGNALS[task.signal]
        return Shortage(f"{signal_name(task.signal)}: over {what}", advice)
    if task.full_disk is not None and not task.signals and _has_no_symptom(task):
        ended = exit_text(task.exit_code, task.signal)
        return Shortage(f"{ended}, on a full disk ({task.full_disk})", FULL_DISK)
    return None


def over_limit_text(used: int, limit: int) -> str:
    """Return the text, such as `used 1.2 GiB, over --memory-limit 1 GiB`."""
    return f"used {format_size(used, like=limit)}, over --memory-limit {format_size(limit, like=limit)}"


def storage_advice(reason: str) -> str | None:
    """Return the advice if orch's own files cannot be written for this reason (a system error, maybe with a path)."""
    return next((advice for pattern, advice in _STORAGE if re.search(pattern, reason)), None)


def describe_kill(task: TaskState) -> str:
    """Describe a SIGKILL that orch did not send, without a certain shortage."""
    if task.exit.oom_kills is None:
        return "SIGKILL, likely out of memory (or a kill -9)"
    return "SIGKILL, sent from outside orch (kill -9?): the kernel counted no out-of-memory kill where it ran"


def _killed_by_the_kernel(task: TaskState) -> str:
    peak_bytes = task.exit.peak_bytes
    used = f" (it had used up to {format_size(peak_bytes)})" if peak_bytes else ""
    if task.signal is not None:
        return f"killed by the kernel: out of memory{used}"
    return f"exit {task.exit_code}: killed by the kernel, out of memory{used}"


def _ended_by(task: TaskState, *numbers: int) -> bool:
    """True if one of these signals that orch did not send ended the task, or the child of its shell."""
    return any(
        (task.signal == number or task.exit_code == 128 + number) and not _was_sent(task, number)
        for number in numbers
    )


def _was_sent(task: TaskState, number: int) -> bool:
    return any(each.signal == number for each in task.signals)


def _has_no_symptom(task: TaskState) -> bool:
    return task.symptom is None or task.symptom.kind is SymptomKind.UNKNOWN
