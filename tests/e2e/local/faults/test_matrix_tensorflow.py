"""Cells with real TensorFlow: the built-in program on two workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cells import LOST, ORCH_FAILED, Cell, cells, failed, run_cell, stopped, succeeded, timed_out
from injections import in_sequence, kill_supervisor_and_agent, send, stop
from scene import Moment, Scene, Who
from waiting import until

from orchestrator.core.state.result import CauseKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Seconds; two workers import TensorFlow on a busy machine.
_START_S = 180.0
_SHORT = "a short training"
KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
RESTART = {"on_failure": "restart"}


class Training(Scene):
    """A scene with the built-in program; `breaks` is how long it trains without a fault."""

    def flags(self) -> dict[str, object]:
        start = "auto" if self.moment is Moment.BEFORE_SPAWN else "spawn"
        return {"grace": "30s", "start": start, **self.options}

    def command(self) -> list[str]:
        epochs = "3" if self.breaks == _SHORT else "1000"
        return ["--epochs", epochs, "--steps-per-epoch", "20", "--batch-size", "16"]

    def reach_the_moment(self) -> None:
        until(self._is_there, _START_S)
        assert not self.has_ended(), self.run.view.result()
        self.note_pids()

    def _is_there(self) -> bool:
        if self.has_ended():
            return True
        self.run.view.refresh()
        state = self.run.view.state
        phases = {task.name: task.progress.phase for task in state.tasks.values()}
        steps = [
            task.progress.step or 0 for task in state.tasks.values() if task.progress.phase == "training"
        ]
        match self.moment:
            case Moment.BEFORE_SPAWN:
                return bool(state.preloading) and bool(state.tasks)
            case Moment.IMPORTING:
                return bool(state.tasks) and all(task.pid is not None for task in state.tasks.values())
            case Moment.RENDEZVOUS:
                return self._hold_the_victim() and phases.get("worker:0") == "waiting"
            case Moment.CHECKPOINTING:
                return any(self.run.checkpoint_dir.iterdir())
            case _:
                return len(steps) == self.workers and min(steps) >= 3

    def _hold_the_victim(self) -> bool:
        """Stop the victim during its imports; True once it is stopped."""
        for pid in self.task_pids(Who.VICTIM):
            os.kill(pid, STOP)
            return True
        return False


_CELLS = (
    *cells(
        "SIGKILL of the agent",
        (Moment.BEFORE_SPAWN, Moment.TRAINING),
        ORCH_FAILED,
        inject=send(Who.AGENT, KILL),
    ),
    *cells("SIGKILL of the supervisor", Moment.BEFORE_SPAWN, LOST, inject=send(Who.SUPERVISOR, KILL)),
    *cells("SIGKILL of supervisor and agent", Moment.TRAINING, LOST, inject=kill_supervisor_and_agent),
    *cells(
        "SIGKILL of a worker",
        (Moment.IMPORTING, Moment.RENDEZVOUS, Moment.TRAINING),
        failed(137),
        inject=send(Who.VICTIM, KILL),
    ),
    *cells("SIGKILL of the chief", Moment.TRAINING, failed(137), victim=0, inject=send(Who.VICTIM, KILL)),
    *cells("SIGTERM of a worker", Moment.TRAINING, failed(143), inject=send(Who.VICTIM, TERM)),
    *cells("`down`", (Moment.RENDEZVOUS, Moment.TRAINING), stopped(), inject=stop),
    *cells("Ctrl-C", Moment.TRAINING, stopped(130), client=130, inject=send(Who.CLIENT, signal.SIGINT)),
    *cells(
        "SIGSTOP of a worker; --stall-timeout",
        Moment.TRAINING,
        timed_out(Who.VICTIM, CauseKind.STOPPED),
        inject=send(Who.VICTIM, STOP),
        options={"stall_timeout": "5s"},
        # Its TensorFlow peers lose it after 7 to 20 s; on a busy machine that may be first.
        or_ends=failed(1, Who.VICTIM, CauseKind.STOPPED, Who.PEERS),
    ),
    *cells(
        "a worker never comes; --start-timeout",
        Moment.RENDEZVOUS,
        timed_out(Who.VICTIM, CauseKind.STOPPED),
        options={"start_timeout": "3s"},
    ),
    *cells(
        "SIGKILL of a worker; --on-failure restart",
        Moment.CHECKPOINTING,
        succeeded(attempts=2),
        breaks=_SHORT,
        inject=in_sequence(send(Who.VICTIM, KILL)),
        options=RESTART,
    ),
)


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name) for cell in _CELLS])
def test_cell(cell: Cell, tmp_path: Path) -> None:
    directory = tmp_path / "cell"
    directory.mkdir()
    run_cell(cell, directory, Training)
