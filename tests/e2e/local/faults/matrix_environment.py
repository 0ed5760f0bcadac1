"""The matrix, part 3: a removed directory, a full disk, a private network, stacks, memory."""

from __future__ import annotations

import signal

from cell_failure import Kind, require
from cells import LOST, ORCH_FAILED, Cell, Ends, cells, failed, stopped, succeeded
from injections import (
    Injection,
    connect_from_outside,
    delete_run_directory,
    fill_disk,
    in_sequence,
    kill_supervisor_and_agent,
    restart,
    send,
    stop,
    take_stacks,
)
from matrix_restarts import GO, RESTART
from scene import Moment, Scene, Who

from orchestrator.core.state.result import CauseKind, RunResult

BEFORE_SPAWN, IMPORTING, RENDEZVOUS = Moment.BEFORE_SPAWN, Moment.IMPORTING, Moment.RENDEZVOUS
TRAINING, CHECKPOINTING, FINISHING = Moment.TRAINING, Moment.CHECKPOINTING, Moment.FINISHING
STOPPING, BACKOFF = Moment.STOPPING, Moment.BACKOFF
KILL, STOP, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
SHORT = {"grace": "300ms"}
# Room for all files of a short run.
DISK_BYTES = 2 << 20
NO_SPACE = "No space left on device"
NO_STORAGE = failed(125, None, CauseKind.LIMIT, None)


def _names_the_directory(scene: Scene, result: RunResult) -> None:
    require(result.cause and str(scene.run.dir) in result.cause.text, Kind.CAUSE, result.cause)
    require(str(scene.run.dir) in scene.client_output(), Kind.CAUSE, scene.client_output())


def _names_the_disk(scene: Scene, result: RunResult) -> None:
    text = result.cause.text if result.cause else ""
    require(NO_SPACE in text and str(scene.run.dir) in text, Kind.CAUSE, result.cause)


def _removed(moments: tuple[Moment, ...], ends: Ends, inject: Injection) -> tuple[Cell, ...]:
    return cells(
        "the run's directory is removed",
        moments,
        ends,
        inject=inject,
        client=ends.exit_code,
        vanishes=True,
        check=_names_the_directory,
    )


REMOVED = (
    # Nothing is sampled before the tasks start: the removal is noticed when a task's log cannot be opened.
    *_removed(
        (BEFORE_SPAWN,),
        failed(126, Who.PEERS, first=Who.PEERS),
        in_sequence(delete_run_directory, GO),
    ),
    *_removed((IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING, FINISHING), NO_STORAGE, delete_run_directory),
)


def _on_small_disk(
    fault: str, moments: tuple[Moment, ...], ends: Ends, inject: Injection, **fields: object
) -> tuple[Cell, ...]:
    return cells(fault, moments, ends, inject=in_sequence(fill_disk, inject), disk_bytes=DISK_BYTES, **fields)


FULL_DISK = (
    *_on_small_disk(
        "the disk is full",
        (IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING, FINISHING),
        NO_STORAGE,
        lambda _: None,
        check=_names_the_disk,
    ),
    *_on_small_disk(
        "the disk is full; --on-failure restart",
        (TRAINING,),
        NO_STORAGE,
        lambda _: None,
        check=_names_the_disk,
        options=RESTART,
    ),
    *_on_small_disk("the disk is full, `down`", (STOPPING,), stopped(), GO),
    *_on_small_disk(
        "the disk is full, SIGKILL of the agent", (TRAINING,), ORCH_FAILED, send(Who.AGENT, KILL)
    ),
    *_on_small_disk(
        "the disk is full, SIGKILL of the supervisor", (TRAINING,), LOST, send(Who.SUPERVISOR, KILL)
    ),
)


def _private(
    fault: str, moments: tuple[Moment, ...], ends: Ends, inject: Injection, **fields: object
) -> tuple[Cell, ...]:
    options = {"network": "private", **fields.pop("options", {})}  # type: ignore[dict-item]
    return cells(f"{fault}; --network private", moments, ends, inject=inject, options=options, **fields)


PRIVATE = (
    *_private("SIGKILL of a worker", (IMPORTING, TRAINING), failed(137), send(Who.VICTIM, KILL)),
    *_private("SIGKILL of the agent", (BEFORE_SPAWN, TRAINING), ORCH_FAILED, send(Who.AGENT, KILL)),
    *_private("SIGKILL of the supervisor", (BEFORE_SPAWN, TRAINING), LOST, send(Who.SUPERVISOR, KILL)),
    *_private("SIGKILL of supervisor and agent", (BEFORE_SPAWN, TRAINING), LOST, kill_supervisor_and_agent),
    *_private(
        "SIGKILL of the agent; daemons that ignore SIGTERM",
        (TRAINING,),
        ORCH_FAILED,
        send(Who.AGENT, KILL),
        breaks="daemonises",
    ),
    *_private(
        "SIGKILL of supervisor and agent; daemons that ignore SIGTERM",
        (TRAINING,),
        LOST,
        kill_supervisor_and_agent,
        breaks="daemonises",
    ),
    *_private(
        "`down`; daemons that ignore SIGTERM",
        (TRAINING,),
        stopped(),
        stop,
        breaks="daemonises",
        options=SHORT,
    ),
    *_private("Ctrl-C", (TRAINING,), stopped(130), send(Who.CLIENT, signal.SIGINT), client=130),
    *_private("`restart`", (TRAINING,), succeeded(attempts=2), restart),
    *_private(
        "a connection from outside",
        (RENDEZVOUS, TRAINING),
        succeeded(),
        in_sequence(connect_from_outside, GO),
    ),
)

STACKS = (
    *cells(
        "`stacks`", (IMPORTING, TRAINING, CHECKPOINTING), succeeded(), inject=in_sequence(take_stacks, GO)
    ),
    *cells("`stacks`", STOPPING, stopped(), inject=in_sequence(take_stacks, GO)),
    *cells(
        "`stacks` of a worker under SIGSTOP, SIGCONT",
        TRAINING,
        succeeded(),
        inject=in_sequence(send(Who.VICTIM, STOP), take_stacks, send(Who.VICTIM, CONT), GO),
    ),
)

MEMORY = (
    *cells(
        "a worker uses too much memory; --memory-limit, --on-failure restart",
        TRAINING,
        succeeded(attempts=2),
        breaks="uses too much memory",
        options={"memory_limit": "100MB", **RESTART},
    ),
    *cells(
        "a worker uses too much memory; --memory-limit",
        IMPORTING,
        failed(137, Who.VICTIM, CauseKind.LIMIT),
        breaks="uses too much memory",
        options={"memory_limit": "100MB"},
    ),
)

ENVIRONMENT: tuple[Cell, ...] = (*REMOVED, *FULL_DISK, *PRIVATE, *STACKS, *MEMORY)
