"""The matrix, part 1: every fault at every moment where it makes sense, and how orch must end the run."""

from __future__ import annotations

import signal

from cells import LOST, ORCH_FAILED, Cell, cells, failed, stopped, succeeded
from injections import (
    bind_task_ports,
    downs_at_once,
    in_sequence,
    kill_supervisor_and_agent,
    send,
    send_invalid_orders,
    stop,
    stop_by_force,
    stopping,
    touch,
    wait_for_state,
    wait_until_gone,
)
from matrix_environment import ENVIRONMENT
from matrix_restarts import BETWEEN_ATTEMPTS, LIMITS, RESTARTS
from scene import Moment, Scene, Who

from orchestrator.core.state.result import CauseKind, RunResult

BEFORE_SPAWN, IMPORTING, RENDEZVOUS = Moment.BEFORE_SPAWN, Moment.IMPORTING, Moment.RENDEZVOUS
TRAINING, CHECKPOINTING = Moment.TRAINING, Moment.CHECKPOINTING
FINISHING, STOPPING = Moment.FINISHING, Moment.STOPPING
# Moments at which all tasks run.
RUNNING = (IMPORTING, RENDEZVOUS, TRAINING, CHECKPOINTING)
KILL, STOP, TERM, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT
SHORT = {"grace": "300ms"}
GO = touch("go")
LOSE = touch("lost")
INTERRUPT = send(Who.CLIENT, signal.SIGINT)


def _raised_boom(_: Scene, result: RunResult) -> None:
    assert result.first_failure is not None
    assert result.first_failure.exception == "ValueError: boom"


def _ran_out_of_descriptors(_: Scene, result: RunResult) -> None:
    assert result.first_failure is not None
    assert "Too many open files" in (result.first_failure.exception or "")


def _were_killed(_: Scene, result: RunResult) -> None:
    assert {task.signal for task in result.tasks} == {int(KILL)}


TASKS = (
    *cells("SIGKILL of a worker", (*RUNNING, FINISHING), failed(137), inject=send(Who.VICTIM, KILL)),
    *cells("SIGKILL of a worker", STOPPING, stopped(), inject=in_sequence(send(Who.VICTIM, KILL), GO)),
    *cells("SIGKILL of the chief", RUNNING, failed(137), inject=send(Who.VICTIM, KILL), victim=0),
    *cells("SIGTERM of a worker", (*RUNNING, FINISHING), failed(143), inject=send(Who.VICTIM, TERM)),
    *cells(
        "SIGSTOP of a worker, its peers lose it",
        (RENDEZVOUS, TRAINING, CHECKPOINTING),
        failed(1, Who.VICTIM, CauseKind.STOPPED, Who.PEERS),
        inject=in_sequence(send(Who.VICTIM, STOP), LOSE),
    ),
    *cells(
        "SIGSTOP of a worker",
        STOPPING,
        stopped(),
        inject=in_sequence(send(Who.VICTIM, STOP), GO),
        options=SHORT,
    ),
    *cells(
        "SIGSTOP of a worker, SIGCONT",
        (IMPORTING, TRAINING, FINISHING),
        succeeded(),
        inject=in_sequence(send(Who.VICTIM, STOP), send(Who.VICTIM, CONT), GO),
    ),
    *cells("a worker exits with 3", (*RUNNING, FINISHING), failed(3), breaks="exits 3"),
    *cells("a worker exits with 3", STOPPING, stopped(), breaks="exits 3", inject=GO),
    *cells("a worker raises", (*RUNNING, FINISHING), failed(1), breaks="raises", check=_raised_boom),
    *cells("a worker raises", STOPPING, stopped(), breaks="raises", inject=GO),
    *cells("SIGSEGV in a worker", (*RUNNING, FINISHING), failed(139), breaks="crashes"),
    *cells("SIGSEGV in a worker", STOPPING, stopped(), breaks="crashes", inject=GO),
    *cells(
        "a worker exits with 0, its peers lose it",
        RUNNING,
        failed(1, Who.VICTIM, CauseKind.LEFT_EARLY, Who.PEERS),
        breaks="exits 0",
        inject=in_sequence(wait_for_state("succeeded"), LOSE),
    ),
    *cells(
        "a worker exits with 0, its peers continue",
        (TRAINING, STOPPING),
        succeeded(),
        breaks="exits 0",
        inject=in_sequence(wait_for_state("succeeded"), GO),
    )[:1],
    *cells(
        "two of four workers die at once",
        TRAINING,
        failed(137, Who.PEERS, first=Who.PEERS),
        workers=4,
        inject=send(Who.PEERS, KILL),
    ),
    *cells("a worker closes its output", TRAINING, succeeded(), breaks="closes its output"),
    *cells("a worker floods its output", TRAINING, succeeded(), breaks="floods"),
    *cells("a worker truncates its log", TRAINING, succeeded(), breaks="truncates its log"),
    *cells("a worker closes its progress pipe", TRAINING, succeeded(), breaks="closes its progress"),
    *cells(
        "a worker reports invalid progress",
        (IMPORTING, TRAINING),
        succeeded(),
        breaks="reports invalid progress",
    ),
    *cells(
        "a worker opens too many files",
        TRAINING,
        failed(1),
        breaks="opens too many files",
        check=_ran_out_of_descriptors,
    ),
    *cells(
        "another program wants the ports",
        (RENDEZVOUS, TRAINING),
        succeeded(),
        inject=in_sequence(bind_task_ports, GO),
    ),
)

DAEMONS = (
    *cells(
        "SIGKILL of a worker; daemons that ignore SIGTERM",
        TRAINING,
        failed(137),
        breaks="daemonises",
        inject=send(Who.VICTIM, KILL),
    ),
    *cells(
        "`down`; daemons that ignore SIGTERM",
        TRAINING,
        stopped(),
        breaks="daemonises",
        inject=stop,
        options=SHORT,
    ),
    *cells(
        "SIGKILL of the agent; daemons that ignore SIGTERM",
        TRAINING,
        ORCH_FAILED,
        breaks="daemonises",
        inject=send(Who.AGENT, KILL),
    ),
    *cells(
        "SIGKILL of the supervisor; daemons that ignore SIGTERM",
        TRAINING,
        LOST,
        breaks="daemonises",
        inject=send(Who.SUPERVISOR, KILL),
    ),
    *cells(
        "SIGKILL of supervisor and agent; daemons that ignore SIGTERM",
        TRAINING,
        LOST,
        breaks="daemonises",
        inject=kill_supervisor_and_agent,
    ),
)

OWN_PROCESSES = (
    *cells(
        "SIGKILL of the agent",
        (BEFORE_SPAWN, *RUNNING, FINISHING, STOPPING),
        ORCH_FAILED,
        inject=send(Who.AGENT, KILL),
    ),
    *cells("SIGTERM of the agent", (BEFORE_SPAWN, TRAINING), ORCH_FAILED, inject=send(Who.AGENT, TERM)),
    *cells(
        "SIGSTOP of the agent, then `down`",
        (BEFORE_SPAWN, TRAINING),
        ORCH_FAILED,
        inject=in_sequence(send(Who.AGENT, STOP), stop),
        options={"grace": "0s"},
    ),
    *cells(
        "SIGKILL of the supervisor",
        (BEFORE_SPAWN, *RUNNING, FINISHING, STOPPING),
        LOST,
        inject=send(Who.SUPERVISOR, KILL),
    ),
    *cells(
        "SIGTERM of the supervisor",
        (BEFORE_SPAWN, *RUNNING, FINISHING),
        stopped(),
        inject=send(Who.SUPERVISOR, TERM),
    ),
    *cells("SIGTERM of the supervisor", STOPPING, stopped(), inject=send(Who.SUPERVISOR, TERM)),
    *cells(
        "SIGSTOP of the supervisor, a worker dies, SIGCONT",
        (IMPORTING, TRAINING),
        failed(137),
        inject=in_sequence(
            send(Who.SUPERVISOR, STOP),
            send(Who.VICTIM, KILL),
            wait_until_gone(Who.VICTIM),
            send(Who.SUPERVISOR, CONT),
        ),
    ),
    *cells(
        "SIGKILL of supervisor and agent",
        (BEFORE_SPAWN, RENDEZVOUS, CHECKPOINTING, STOPPING),
        LOST,
        inject=kill_supervisor_and_agent,
    ),
    *cells(
        "SIGKILL of the preloader",
        BEFORE_SPAWN,
        succeeded(),
        inject=in_sequence(send(Who.PRELOADER, KILL), GO),
    ),
    *cells(
        "SIGSTOP of the preloader, then `down`",
        BEFORE_SPAWN,
        stopped(),
        inject=in_sequence(send(Who.PRELOADER, STOP), stop),
    ),
    *cells(
        "a preloaded module cannot be imported",
        BEFORE_SPAWN,
        succeeded(),
        breaks="fails to import",
        inject=GO,
    ),
    *cells(
        "invalid orders to the control socket",
        TRAINING,
        succeeded(),
        inject=in_sequence(send_invalid_orders, GO),
    ),
)

USERS = (
    *cells("Ctrl-C", (BEFORE_SPAWN, *RUNNING, FINISHING), stopped(130), client=130, inject=INTERRUPT),
    *cells(
        "Ctrl-C twice; the tasks ignore SIGTERM",
        TRAINING,
        stopped(130),
        client=130,
        breaks="all ignore SIGTERM",
        inject=in_sequence(INTERRUPT, stopping, INTERRUPT),
    ),
    *cells("SIGTERM of the client", TRAINING, stopped(), client=143, inject=send(Who.CLIENT, TERM)),
    *cells(
        "SIGHUP of the client",
        (BEFORE_SPAWN, TRAINING),
        stopped(),
        client=143,
        inject=send(Who.CLIENT, signal.SIGHUP),
    ),
    *cells(
        "SIGKILL of the client",
        (BEFORE_SPAWN, IMPORTING, TRAINING, STOPPING),
        stopped(),
        options={"grace": "1s"},
        client=-9,
        inject=send(Who.CLIENT, KILL),
    ),
    *cells(
        "SIGSTOP of the client, a worker dies, SIGCONT",
        TRAINING,
        failed(137),
        client=137,
        inject=in_sequence(
            send(Who.CLIENT, STOP),
            send(Who.VICTIM, KILL),
            wait_until_gone(Who.VICTIM),
            send(Who.CLIENT, CONT),
        ),
    ),
    *cells("`down`", (BEFORE_SPAWN, *RUNNING, FINISHING), stopped(), inject=stop),
    *cells("`down`", STOPPING, stopped(), inject=in_sequence(stop, GO)),
    *cells("four `down` at once", TRAINING, stopped(), inject=downs_at_once),
    *cells(
        "`down`; the tasks ignore SIGTERM",
        TRAINING,
        stopped(),
        breaks="all ignore SIGTERM",
        inject=stop,
        options=SHORT,
        check=_were_killed,
    ),
    *cells("`down --force`", (BEFORE_SPAWN, TRAINING, STOPPING), stopped(), inject=stop_by_force),
)

MATRIX: tuple[Cell, ...] = (
    *TASKS,
    *DAEMONS,
    *OWN_PROCESSES,
    *USERS,
    *RESTARTS,
    *BETWEEN_ATTEMPTS,
    *LIMITS,
    *ENVIRONMENT,
)
BY_NAME = {cell.name: cell for cell in MATRIX}
assert len(BY_NAME) == len(MATRIX), "two cells have the same name"

# The cells of the quick gate: one of every kind of fault, each moment at least once.
REPRESENTATIVE = frozenset(
    {
        "a worker raises | importing",
        "SIGTERM of a worker | rendezvous",
        "SIGKILL of the chief | checkpointing",
        "SIGSTOP of a worker, its peers lose it | training",
        "SIGSEGV in a worker | finishing",
        "a worker exits with 3 | stopping",
        "a worker reports invalid progress | training",
        "SIGKILL of the agent; daemons that ignore SIGTERM | training",
        "SIGKILL of the supervisor | before spawn",
        "SIGKILL of the client | training",
        "Ctrl-C twice; the tasks ignore SIGTERM | training",
        "SIGKILL of the preloader | before spawn",
        "SIGKILL of a worker; --on-failure restart | training",
        "`restart` | importing",
        "SIGSTOP of a worker; --stall-timeout | training",
        "--chaos kill at a step | training",
    }
)
assert set(BY_NAME) >= REPRESENTATIVE
