"""The matrix: every fault at every moment where it makes sense, and how the run must end.

A row's words say what happens. The steps before the semicolon are injected one after another (injections.py); of "a
worker ..." the task itself does the rest (staged_task.py). Options and other conditions follow the semicolon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cells import (
    LOST,
    NO_STORAGE,
    ORCH_FAILED,
    Cell,
    Check,
    Ends,
    Kind,
    Moment,
    Way,
    Who,
    failed,
    require,
    stopped,
    succeeded,
    timed_out,
)
from injections import injection_of
from scene import Scene

from orchestrator.core.state.result import CauseKind, RunResult

JUST_STARTED, BEFORE_SPAWN, IMPORTING, RENDEZVOUS, TRAINING, *_later = Moment
CHECKPOINTING, FINISHING, STOPPING, BACKOFF, BETWEEN = _later
COLD, FORKED, KEPT, TERMINAL, TENSORFLOW = Way
VICTIM, PEERS = Who.VICTIM, Who.PEERS
RUNNING = (IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING)
STARTED = (*RUNNING, FINISHING)
ALL = (BEFORE_SPAWN, *STARTED)
EARLY, LATER = (IMPORTING, TRAINING), (TRAINING, CHECKPOINTING)
FIRST = (BEFORE_SPAWN, TRAINING)
TEARDOWN = (TRAINING, STOPPING)
_TASKS_DO = {
    "daemons that ignore SIGTERM": "daemonises",
    "children without environment": "leaves a bare child",
    "the tasks ignore SIGTERM": "all ignore SIGTERM",
    "the worker prints": "keeps printing",
    "each time": "raises",
}


def rows(
    fault: str,
    moments: Iterable[Moment] | Moment,
    expect: Ends | None,
    way: Way = COLD,
    gate: Moment | None = None,
    go: bool | None = None,
    **fields: Any,
) -> Iterator[Cell]:
    """A cell for each moment. `gate`: the moment that runs in the gate. `go`: whether the tasks continue after the
    fault. By default they do if the run must succeed in its first attempt."""
    steps, _, conditions = fault.partition("; ")
    first = steps.split(", ")[0]
    given: dict[str, Any] = (
        {"breaks": first.removeprefix("a worker ")} if first.startswith("a worker ") else {}
    )
    options: dict[str, object] = {}
    for words in filter(None, conditions.split(", ")):
        if words.startswith("--"):
            name, _, value = words[2:].partition(" ")
            options[name.replace("-", "_")] = value
        else:
            given["breaks"] = _TASKS_DO[words]
    given |= {"options": options, "times": 2 if "each time" in fault else 1} | fields
    if "the chief" in fault:
        given["victim"] = 0
    injection = injection_of(fault)
    goes = expect in (succeeded(), None) if go is None else go

    def inject(scene: Scene) -> None:
        injection(scene)
        if goes:
            scene.touch("go")

    for moment in (moments,) if isinstance(moments, Moment) else moments:
        yield Cell(fault, moment, expect, way, moment is gate, inject=inject, **given)


# -- further checks


def _raised(text: str) -> Check:
    def check(_: Scene, result: RunResult) -> None:
        assert result.first_failure is not None and text in (result.first_failure.exception or "")

    return check


def _were_killed(_: Scene, result: RunResult) -> None:
    assert {task.signal for task in result.tasks} == {9}


def _is_in_the_history(scene: Scene, result: RunResult) -> None:
    """Check that the history has the failed attempt, and that the next one had other ports."""
    (ended,) = result.earlier_attempts
    cause = ended.cause
    require(cause is not None and cause.task == scene.victim_name, Kind.CAUSE, ended)
    addresses = scene.addresses()
    require(len(set(addresses)) == len(addresses), Kind.PORT, addresses)


def _was_requested(_: Scene, result: RunResult) -> None:
    require([ended.cause for ended in result.earlier_attempts] == [None], Kind.CAUSE, result.earlier_attempts)


def _fault_is_reported(_: Scene, result: RunResult) -> None:
    (fault,) = result.faults
    require(fault.at_s is not None and fault.detection_s is not None, Kind.CAUSE, fault)


def _names_the_directory(scene: Scene, result: RunResult) -> None:
    for text in ((result.cause and result.cause.text) or "", scene.client_output()):
        require(str(scene.run.dir) in text, Kind.CAUSE, text)


def _names_the_disk(scene: Scene, result: RunResult) -> None:
    text = result.cause.text if result.cause else ""
    require("No space left on device" in text and str(scene.run.dir) in text, Kind.CAUSE, text)


# -- the cells

PEER_LOST_IT = failed(1, VICTIM, CauseKind.STOPPED, PEERS)
STOPPED_ITSELF = timed_out(VICTIM, CauseKind.STOPPED)
OVER_LIMIT = failed(137, VICTIM, CauseKind.LIMIT)
PEER_KILLED = failed(137, PEERS, first=PEERS)
LEFT_EARLY = failed(1, VICTIM, CauseKind.LEFT_EARLY, PEERS)
LATE = timed_out(None, CauseKind.LIMIT)

TASKS = (
    *rows("SIGKILL of a worker", STARTED, failed(137)),
    *rows("SIGKILL of a worker", STOPPING, stopped(), go=True),
    *rows("SIGKILL of the chief", RUNNING, failed(137), gate=CHECKPOINTING),
    *rows("SIGKILL of three of four workers", TRAINING, PEER_KILLED, workers=4),
    *rows("SIGTERM of a worker", STARTED, failed(143), gate=RENDEZVOUS),
    *rows("SIGSTOP of a worker, its peers lose it", RUNNING[1:], PEER_LOST_IT, gate=TRAINING),
    *rows("SIGSTOP of a worker; --grace 300ms", STOPPING, stopped(), go=True),
    *rows("SIGSTOP of a worker, SIGCONT of a worker", (IMPORTING, TRAINING, FINISHING), succeeded()),
    *rows("a worker exits with 3", STARTED, failed(3)),
    *rows("a worker exits with 3", STOPPING, stopped(), gate=STOPPING, go=True),
    *rows("a worker raises", STARTED, failed(1), gate=IMPORTING, check=_raised("ValueError: boom")),
    *rows("a worker raises", STOPPING, stopped(), go=True),
    *rows("a worker crashes with SIGSEGV", STARTED, failed(139), gate=FINISHING),
    *rows("a worker crashes with SIGSEGV", STOPPING, stopped(), go=True),
    *rows("a worker exits with 0, its peers lose it", RUNNING, LEFT_EARLY),
    *rows("a worker exits with 0", TRAINING, succeeded()),
    *rows("a worker closes its output", TRAINING, succeeded()),
    *rows("a worker floods its output", TRAINING, succeeded()),
    *rows("a worker truncates its log", TRAINING, succeeded()),
    *rows("a worker closes its progress pipe", TRAINING, succeeded()),
    *rows("a worker reports invalid progress", EARLY, succeeded()),
    *rows("a worker floods its progress; --timeout 8s", TRAINING, LATE),
    *rows("a worker opens too many files", TRAINING, failed(1), check=_raised("Too many open files")),
    *rows("a worker uses too much memory; --memory-limit 100MB", EARLY, OVER_LIMIT),
)

DAEMONS = "; daemons that ignore SIGTERM"
OWN_PROCESSES = (
    *rows(f"SIGKILL of a worker{DAEMONS}", TRAINING, failed(137)),
    *rows(f"`down`{DAEMONS}, --grace 300ms", TRAINING, stopped()),
    *rows(f"`down --force`{DAEMONS}", TRAINING, stopped()),
    *rows(f"--timeout{DAEMONS}, --timeout 8s, --grace 300ms", TRAINING, LATE),
    *rows(f"SIGKILL of the client{DAEMONS}, --grace 1s", TRAINING, stopped()),
    *rows(f"SIGKILL of the agent{DAEMONS}", TRAINING, ORCH_FAILED, gate=TRAINING),
    *rows(f"SIGTERM of the agent{DAEMONS}", TRAINING, ORCH_FAILED),
    *rows(f"SIGKILL of the supervisor{DAEMONS}", TRAINING, LOST),
    *rows(f"SIGKILL of supervisor and agent{DAEMONS}", TRAINING, LOST),
    *rows("SIGKILL of the agent; children without environment", TRAINING, ORCH_FAILED),
    *rows("SIGKILL of the agent", (*ALL, STOPPING), ORCH_FAILED),
    *rows("SIGTERM of the agent", FIRST, ORCH_FAILED),
    *rows("SIGSTOP of the agent, `down`; --grace 0s", FIRST, ORCH_FAILED),
    *rows("SIGKILL of the supervisor", (*ALL, STOPPING), LOST, gate=BEFORE_SPAWN),
    *rows("SIGTERM of the supervisor", (*ALL, STOPPING), stopped()),
    *rows("SIGINT of the supervisor", TRAINING, stopped()),
    *rows("SIGHUP of the supervisor", TRAINING, stopped()),
    *rows("SIGSTOP of the supervisor, a worker dies, SIGCONT of the supervisor", EARLY, failed(137)),
    *rows("SIGKILL of supervisor and agent", (BEFORE_SPAWN, RENDEZVOUS, CHECKPOINTING, STOPPING), LOST),
    *rows("SIGKILL of the preloader", BEFORE_SPAWN, succeeded(), gate=BEFORE_SPAWN),
    *rows("SIGSTOP of the preloader, `down`", BEFORE_SPAWN, stopped()),
    *rows("a preloaded module cannot be imported", BEFORE_SPAWN, succeeded()),
    *rows("SIGKILL of the preloader", EARLY, succeeded(), FORKED, gate=TRAINING),
    *rows("SIGKILL of the agent", TRAINING, ORCH_FAILED, FORKED),
    *rows("SIGKILL of the supervisor", TRAINING, LOST, FORKED),
    *rows("SIGKILL of a worker", TRAINING, failed(137), FORKED),
    *rows("`down`", TRAINING, stopped(), FORKED),
)

CLIENT = "SIGKILL of the client"
USERS = (
    *rows("Ctrl-C", (JUST_STARTED, *ALL), stopped(130)),
    *rows("Ctrl-C twice; the tasks ignore SIGTERM", TRAINING, stopped(130)),
    *rows("SIGTERM of the client", (JUST_STARTED, TRAINING), stopped()),
    *rows("SIGHUP of the client", FIRST, stopped()),
    *rows(f"{CLIENT}; --grace 1s", (BEFORE_SPAWN, IMPORTING, *TEARDOWN), stopped(), gate=TRAINING),
    *rows("SIGSTOP of the client, a worker dies, SIGCONT of the client", TRAINING, failed(137)),
    *rows("SIGSTOP of the supervisor, SIGKILL of the client, SIGCONT of the supervisor", TRAINING, stopped()),
    *rows("`down`", (JUST_STARTED, *ALL), stopped(), gate=JUST_STARTED),
    *rows("`down`", STOPPING, stopped(), go=True),
    *rows("four `down` at once", TRAINING, stopped()),
    *rows("`down`; the tasks ignore SIGTERM, --grace 300ms", TRAINING, stopped(), check=_were_killed),
    *rows("`down --force`", (BEFORE_SPAWN, *TEARDOWN), stopped()),
    *rows("Ctrl-C", FIRST, stopped(130), TERMINAL),
    *rows("Ctrl-C twice; the tasks ignore SIGTERM", TRAINING, stopped(130), TERMINAL),
    *rows("the terminal is closed", TRAINING, stopped(), TERMINAL),
    *rows("SIGKILL of the client; --grace 1s", TRAINING, stopped(), TERMINAL, gate=TRAINING),
)

AGAIN = "; --on-failure restart"
RESTARTS = (
    *rows(f"SIGKILL of a worker{AGAIN}", TRAINING, succeeded(2), gate=TRAINING, check=_is_in_the_history),
    *rows(f"SIGKILL of a worker{AGAIN}", (CHECKPOINTING, FINISHING), succeeded(2), check=_is_in_the_history),
    *rows(f"SIGKILL of a worker{AGAIN}", (IMPORTING, RENDEZVOUS), failed(137)),
    *rows(f"SIGKILL of the chief{AGAIN}", LATER, succeeded(2), check=_is_in_the_history),
    *rows(f"SIGTERM of a worker{AGAIN}", EARLY, succeeded(2)),
    *rows(f"a worker exits with 42{AGAIN}", (RENDEZVOUS, TRAINING), succeeded(2)),
    *rows(f"a worker raises{AGAIN}, --max-restarts 1, each time", TRAINING, failed(1, attempts=2)),
    *rows(f"a worker uses too much memory{AGAIN}, --memory-limit 100MB", TRAINING, succeeded(2)),
    *rows(f"SIGKILL of the agent{AGAIN}", TRAINING, ORCH_FAILED),
    *rows(f"`down`{AGAIN}", TEARDOWN, stopped(), go=True),
    *rows("`restart`", STARTED, succeeded(2), gate=IMPORTING, check=_was_requested),
    *rows("`restart`", BEFORE_SPAWN, succeeded(2), go=True, check=_was_requested),
    *rows("`restart` is refused", STOPPING, stopped(), go=True),
    *rows("SIGKILL of a worker; --on-failure restart-task", LATER, succeeded()),
    *rows("a worker exits with 3; --on-failure continue", LATER, failed(3), go=True),
)

# The first failure is that of the last attempt.
_STOPPED = Ends("stopped", 143, first=VICTIM, attempts=2)
_LOST = replace(LOST, attempts=2)
BETWEEN_ATTEMPTS = tuple(
    replace(cell, breaks="exits with 3", times=2, options={"on_failure": "restart", **cell.options})
    for cell in (
        *rows("`down`", BACKOFF, _STOPPED),
        *rows("`down --force`", BACKOFF, _STOPPED),
        *rows("`restart`", BACKOFF, succeeded(3)),
        *rows("no fault", BACKOFF, succeeded(3)),
        *rows("SIGTERM of the supervisor", BACKOFF, _STOPPED),
        *rows("SIGKILL of the supervisor", BACKOFF, _LOST),
        *rows("SIGKILL of supervisor and agent", BACKOFF, _LOST),
        *rows("SIGKILL of the agent", BACKOFF, replace(ORCH_FAILED, first=VICTIM, attempts=2)),
        *rows("SIGKILL of the client", BACKOFF, _STOPPED),
        *rows("Ctrl-C", BACKOFF, replace(_STOPPED, exit_code=130)),
    )
)

# Longer than a busy machine needs to reach the moment.
STALL = "--stall-timeout 4s"
CHAOS = "--chaos kill worker:0 at step 8"
STOP_IS_OVER = "a planned stop is over; --chaos stop"
LIMITS = (
    *rows(f"SIGSTOP of a worker; the worker prints, {STALL}", TRAINING, STOPPED_ITSELF, gate=TRAINING),
    *rows(f"SIGSTOP of a worker; the worker prints, {STALL}, --on-failure restart", TRAINING, succeeded(2)),
    *rows(f"a worker falls silent; {STALL}", TRAINING, timed_out(VICTIM, CauseKind.STALLED)),
    *rows("a worker never listens; --start-timeout 4s", RENDEZVOUS, timed_out(VICTIM, CauseKind.LIMIT)),
    *rows("SIGSTOP of a worker; --start-timeout 4s", RENDEZVOUS, STOPPED_ITSELF),
    *rows("--timeout; --timeout 8s", ALL, LATE),
    *rows("`kill` of a worker", LATER, failed(137)),
    *rows(f"--chaos; {CHAOS}", TRAINING, PEER_KILLED, gate=TRAINING, check=_fault_is_reported),
    *rows(f"--chaos; {CHAOS}, --on-failure restart", TRAINING, succeeded(2), check=_fault_is_reported),
    *rows(f"{STOP_IS_OVER} worker:0 at step 8 for 300ms", TRAINING, succeeded()),
)

PRIVATE = "--network private"
DISK = "the disk is full"
GONE = "the run's directory is removed"
ENVIRONMENT = (
    # Nothing is sampled before the tasks start: the removal is noticed when a task's log cannot be opened.
    *rows(GONE, BEFORE_SPAWN, failed(126, PEERS, first=PEERS), go=True, check=_names_the_directory),
    *rows(GONE, STARTED, NO_STORAGE, gate=TRAINING, check=_names_the_directory),
    *rows(DISK, STARTED, NO_STORAGE, gate=TRAINING, check=_names_the_disk),
    *rows(f"{DISK}{AGAIN}", TRAINING, NO_STORAGE, check=_names_the_disk),
    *rows(f"{DISK}, `down`", STOPPING, stopped(), go=True),
    *rows(f"{DISK}, SIGKILL of the agent", TRAINING, ORCH_FAILED, or_ends=(NO_STORAGE,)),
    *rows(f"{DISK}, SIGKILL of the supervisor", TRAINING, LOST),
    *rows(f"SIGKILL of a worker; {PRIVATE}", EARLY, failed(137)),
    *rows(f"SIGKILL of the agent; {PRIVATE}", FIRST, ORCH_FAILED),
    *rows(f"SIGKILL of the supervisor; {PRIVATE}", FIRST, LOST),
    *rows(f"SIGKILL of supervisor and agent; {PRIVATE}", FIRST, LOST),
    *rows(f"SIGKILL of the agent{DAEMONS}, {PRIVATE}", TRAINING, ORCH_FAILED),
    *rows(f"SIGKILL of supervisor and agent{DAEMONS}, {PRIVATE}", TRAINING, LOST),
    *rows(f"`down`{DAEMONS}, --grace 300ms, {PRIVATE}", TRAINING, stopped()),
    *rows(f"Ctrl-C; {PRIVATE}", TRAINING, stopped(130)),
    *rows(f"`restart`; {PRIVATE}", TRAINING, succeeded(2)),
    *rows("`stacks`", (IMPORTING, TRAINING, CHECKPOINTING), succeeded()),
    *rows("`stacks`", STOPPING, stopped(), go=True),
    *rows("SIGSTOP of a worker, `stacks`, SIGCONT of a worker", TRAINING, succeeded()),
)

OTHER = " of the supervisor, another run"
_MEMORY = "gets no more memory"
_PRESSURE = "all processes of the machine wait for memory"
KEPT_PROCESSES = (
    *rows("SIGKILL of the supervisor", BETWEEN, None, KEPT, gate=BETWEEN, serves=False),
    *rows("SIGKILL of the agent", BETWEEN, None, KEPT, serves=False),
    *rows("SIGKILL of the preloader", BETWEEN, None, KEPT, serves=True),
    *rows("SIGSTOP of the supervisor", BETWEEN, None, KEPT, serves=False),
    *rows("SIGSTOP of the agent", BETWEEN, None, KEPT, serves=False),
    *rows("SIGSTOP of the preloader", BETWEEN, None, KEPT, gate=BETWEEN, serves=False),
    *rows(f"the supervisor {_MEMORY}", BETWEEN, None, KEPT),
    *rows(f"the agent {_MEMORY}", BETWEEN, None, KEPT),
    *rows(f"the preloader {_MEMORY}", BETWEEN, None, KEPT),
    *rows(_PRESSURE, BETWEEN, None, KEPT, serves=False),
    *rows("the files of the kept processes are removed", BETWEEN, None, KEPT, serves=False),
    *rows(f"{DISK}, no run starts, the disk has room again", BETWEEN, None, KEPT),
    *rows("SIGKILL of a worker", TRAINING, failed(137), KEPT, serves=True),
    *rows(f"SIGKILL of a worker{DAEMONS}", TRAINING, failed(137), KEPT, serves=True),
    *rows("a worker exits with 3", TRAINING, failed(3), KEPT, serves=True),
    *rows("SIGKILL of the client; --grace 1s", TRAINING, stopped(), KEPT, gate=TRAINING, serves=True),
    *rows("`down`", TRAINING, stopped(), KEPT, serves=True),
    *rows("SIGKILL of the supervisor", TRAINING, LOST, KEPT, serves=False),
    *rows("SIGKILL of the agent", TRAINING, ORCH_FAILED, KEPT, gate=TRAINING, serves=False),
    *rows("SIGKILL of the preloader", TRAINING, succeeded(), KEPT, serves=True),
    *rows(f"SIGSTOP{OTHER}, SIGCONT of the supervisor", TRAINING, succeeded(), KEPT, serves=True),
    *rows("SIGSTOP of the agent, `down`; --grace 0s", TRAINING, ORCH_FAILED, KEPT, serves=False),
    *rows("SIGSTOP of the preloader", TRAINING, succeeded(), KEPT, serves=False),
    *rows(f"the supervisor {_MEMORY}", TRAINING, succeeded(), KEPT, or_ends=(LOST,)),
    *rows(f"the agent {_MEMORY}", TRAINING, succeeded(), KEPT, or_ends=(ORCH_FAILED,)),
    *rows(f"the preloader {_MEMORY}", TRAINING, succeeded(), KEPT, or_ends=(ORCH_FAILED,)),
    *rows(_PRESSURE, TRAINING, succeeded(), KEPT, serves=False),
    *rows("the files of the kept processes are removed", TRAINING, succeeded(), KEPT, serves=False),
    *rows(GONE, TRAINING, NO_STORAGE, KEPT),
    *rows(DISK, TRAINING, NO_STORAGE, KEPT),
)

# The example of orch on two workers.
TENSORFLOW_CELLS = (
    *rows("SIGKILL of the agent", FIRST, ORCH_FAILED, TENSORFLOW),
    *rows("SIGKILL of the supervisor", BEFORE_SPAWN, LOST, TENSORFLOW),
    *rows("SIGKILL of supervisor and agent", TRAINING, LOST, TENSORFLOW),
    *rows("SIGKILL of a worker", RUNNING[:3], failed(137), TENSORFLOW, gate=TRAINING),
    *rows("SIGKILL of the chief", TRAINING, failed(137), TENSORFLOW),
    *rows("SIGTERM of a worker", TRAINING, failed(143), TENSORFLOW),
    # Its TensorFlow peers lose it after 7 to 20 s.
    *rows("SIGSTOP of a worker", TRAINING, PEER_LOST_IT, TENSORFLOW),
    *rows("`down`", RUNNING[:3], stopped(), TENSORFLOW),
    *rows("Ctrl-C", (BEFORE_SPAWN, *RUNNING[:3]), stopped(130), TENSORFLOW),
    *rows(f"SIGSTOP of a worker; {STALL}", TRAINING, STOPPED_ITSELF, TENSORFLOW, or_ends=(PEER_LOST_IT,)),
    *rows("a worker never joins; --start-timeout 3s", RENDEZVOUS, STOPPED_ITSELF, TENSORFLOW),
    *rows(f"SIGKILL of a worker{AGAIN}", CHECKPOINTING, succeeded(2), TENSORFLOW),
    *rows(f"{STOP_IS_OVER} worker:1 at step 20 for 3s", TRAINING, succeeded(), TENSORFLOW),
    *rows("--chaos; --chaos kill worker:1 at step 20", TRAINING, failed(137), TENSORFLOW),
)

MATRIX: tuple[Cell, ...] = (
    *TASKS,
    *OWN_PROCESSES,
    *USERS,
    *RESTARTS,
    *BETWEEN_ATTEMPTS,
    *LIMITS,
    *ENVIRONMENT,
    *KEPT_PROCESSES,
    *TENSORFLOW_CELLS,
)
BY_NAME = {cell.name: cell for cell in MATRIX}
assert len(BY_NAME) == len(MATRIX), "two cells have the same name"


def table() -> str:
    """The matrix in Markdown. Moments of a fault with the same end share a row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    serves = {True: "warm", False: "cold", None: "warm or cold"}
    for cell in MATRIX:
        ends = [str(cell.expect)] if cell.expect is not None else []
        ends += [f"or {other}" for other in cell.or_ends]
        ends += [f"the next run is {serves[cell.serves]}"] if cell.way is Way.KEPT else []
        found.setdefault((cell.fault, cell.way, "; ".join(ends)), []).append(cell.moment)
    lines = ["| fault | start | at | how the run ends |", "|---|---|---|---|"]
    lines += [
        f"| {fault} | {way} | {', '.join(moments)} | {ends} |"
        for (fault, way, ends), moments in found.items()
    ]
    return "\n".join(lines)
