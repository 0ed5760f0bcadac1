"""The matrix, part 2: restarts, and limits that end a run."""

from __future__ import annotations

import signal
from dataclasses import replace

from cell_failure import Kind, require
from cells import LOST, ORCH_FAILED, Cell, Ends, cells, failed, stopped, succeeded, timed_out
from injections import (
    Injection,
    in_sequence,
    kill_order,
    kill_supervisor_and_agent,
    restart,
    restart_is_refused,
    send,
    stop,
    stop_by_force,
    touch,
    wait_for_planned_stop,
)
from scene import Moment, Scene, Who

from orchestrator.core.state.result import CauseKind, RunResult

IMPORTING, RENDEZVOUS, TRAINING = Moment.IMPORTING, Moment.RENDEZVOUS, Moment.TRAINING
CHECKPOINTING, FINISHING, STOPPING = Moment.CHECKPOINTING, Moment.FINISHING, Moment.STOPPING
BEFORE_SPAWN, BACKOFF = Moment.BEFORE_SPAWN, Moment.BACKOFF
KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
GO = touch("go")
RESTART = {"on_failure": "restart"}
# Longer than a busy machine needs to reach the moment.
STALL = {"stall_timeout": "4s"}


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


def _fault_was_injected(_: Scene, result: RunResult) -> None:
    require([fault.at_s is not None for fault in result.faults] == [True], Kind.CAUSE, result.faults)


RESTARTS = (
    *cells(
        "SIGKILL of a worker; --on-failure restart",
        (TRAINING, CHECKPOINTING, FINISHING),
        succeeded(attempts=2),
        inject=send(Who.VICTIM, KILL),
        options=RESTART,
        check=_is_in_the_history,
    ),
    *cells(
        "SIGKILL of a worker before the first step; --on-failure restart",
        (IMPORTING, RENDEZVOUS),
        failed(137),
        inject=send(Who.VICTIM, KILL),
        options=RESTART,
    ),
    *cells(
        "SIGKILL of the chief; --on-failure restart",
        (TRAINING, CHECKPOINTING),
        succeeded(attempts=2),
        victim=0,
        inject=send(Who.VICTIM, KILL),
        options=RESTART,
        check=_is_in_the_history,
    ),
    *cells(
        "SIGTERM of a worker (exit 143); --on-failure restart",
        (IMPORTING, TRAINING),
        succeeded(attempts=2),
        inject=send(Who.VICTIM, TERM),
        options=RESTART,
    ),
    *cells(
        "a worker exits with 42; --on-failure restart",
        (RENDEZVOUS, TRAINING),
        succeeded(attempts=2),
        breaks="exits 42",
        options=RESTART,
    ),
    *cells(
        "a worker raises each time; --max-restarts 1",
        TRAINING,
        failed(1, attempts=2),
        breaks="raises",
        times=2,
        options={**RESTART, "max_restarts": 1},
    ),
    *cells(
        "SIGKILL of the agent; --on-failure restart",
        TRAINING,
        ORCH_FAILED,
        inject=send(Who.AGENT, KILL),
        options=RESTART,
    ),
    *cells(
        "`down`; --on-failure restart",
        (TRAINING, STOPPING),
        stopped(),
        inject=in_sequence(stop, GO),
        options=RESTART,
    ),
    *cells(
        "`restart`",
        (IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING, FINISHING),
        succeeded(attempts=2),
        inject=restart,
        check=_was_requested,
    ),
    *cells(
        "`restart`",
        BEFORE_SPAWN,
        succeeded(attempts=2),
        inject=in_sequence(restart, GO),
        check=_was_requested,
    ),
    *cells("`restart`: refused", STOPPING, stopped(), inject=in_sequence(restart_is_refused, GO)),
    *cells(
        "SIGKILL of a worker; --on-failure restart-task",
        (TRAINING, CHECKPOINTING),
        succeeded(),
        inject=in_sequence(send(Who.VICTIM, KILL), GO),
        options={"on_failure": "restart-task"},
    ),
    *cells(
        "a worker exits with 3; --on-failure continue",
        (TRAINING, CHECKPOINTING),
        failed(3),
        breaks="exits 3",
        inject=GO,
        options={"on_failure": "continue"},
    ),
)


def _between(inject: Injection | None, ends: Ends, fault: str, client: int | None = None) -> tuple[Cell, ...]:
    return cells(
        fault, BACKOFF, ends, breaks="exits 3", times=2, options=RESTART, inject=inject, client=client
    )


# The first failure is that of the last attempt.
STOPPED_BETWEEN = Ends("stopped", 143, first=Who.VICTIM, attempts=2)
BETWEEN_ATTEMPTS = (
    *_between(stop, STOPPED_BETWEEN, "`down`"),
    *_between(stop_by_force, STOPPED_BETWEEN, "`down --force`"),
    *_between(restart, succeeded(attempts=3), "`restart`"),
    *_between(None, succeeded(attempts=3), "nothing"),
    *_between(send(Who.SUPERVISOR, TERM), STOPPED_BETWEEN, "SIGTERM of the supervisor"),
    *_between(send(Who.SUPERVISOR, KILL), replace(LOST, attempts=2), "SIGKILL of the supervisor"),
    *_between(kill_supervisor_and_agent, replace(LOST, attempts=2), "SIGKILL of supervisor and agent"),
    *_between(
        send(Who.AGENT, KILL), replace(ORCH_FAILED, first=Who.VICTIM, attempts=2), "SIGKILL of the agent"
    ),
    *_between(send(Who.CLIENT, KILL), STOPPED_BETWEEN, "SIGKILL of the client", client=-9),
    *_between(send(Who.CLIENT, signal.SIGINT), replace(STOPPED_BETWEEN, exit_code=130), "Ctrl-C", client=130),
)

LIMITS = (
    *cells(
        "SIGSTOP of a worker; --stall-timeout",
        TRAINING,
        timed_out(Who.VICTIM, CauseKind.STOPPED),
        breaks="keeps printing",
        inject=send(Who.VICTIM, STOP),
        options=STALL,
    ),
    *cells(
        "a worker falls silent; --stall-timeout",
        TRAINING,
        timed_out(Who.VICTIM, CauseKind.STALLED),
        options=STALL,
    ),
    *cells(
        "SIGSTOP of a worker; --stall-timeout, --on-failure restart",
        TRAINING,
        succeeded(attempts=2),
        breaks="keeps printing",
        inject=send(Who.VICTIM, STOP),
        options={**STALL, **RESTART},
    ),
    *cells(
        "a worker never listens; --start-timeout",
        RENDEZVOUS,
        timed_out(Who.VICTIM, CauseKind.LIMIT),
        options={"start_timeout": "4s"},
    ),
    *cells(
        "SIGSTOP of a worker; --start-timeout",
        RENDEZVOUS,
        timed_out(Who.VICTIM, CauseKind.STOPPED),
        inject=send(Who.VICTIM, STOP),
        options={"start_timeout": "4s"},
    ),
    *cells(
        "--timeout",
        (BEFORE_SPAWN, IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING, FINISHING),
        timed_out(None, CauseKind.LIMIT),
        options={"timeout": "8s"},
    ),
    *cells(
        "a worker uses too much memory; --memory-limit",
        TRAINING,
        failed(137, Who.VICTIM, CauseKind.LIMIT),
        breaks="uses too much memory",
        options={"memory_limit": "100MB"},
    ),
    *cells("`kill` of a worker", (TRAINING, CHECKPOINTING), failed(137), inject=kill_order),
    *cells(
        "--chaos kill at a step",
        TRAINING,
        failed(137, Who.PEERS, first=Who.PEERS),
        options={"chaos": "kill worker:0 at step 8"},
        check=_fault_is_reported,
    ),
    *cells(
        "--chaos kill at a step; --on-failure restart",
        TRAINING,
        succeeded(attempts=2),
        options={"chaos": "kill worker:0 at step 8", **RESTART},
        check=_fault_is_reported,
    ),
    *cells(
        "--chaos stop for a while",
        TRAINING,
        succeeded(),
        inject=in_sequence(wait_for_planned_stop, GO),
        options={"chaos": "stop worker:0 at step 8 for 300ms"},
        check=_fault_was_injected,
    ),
)
