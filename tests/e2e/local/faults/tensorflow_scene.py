"""The scene of a run with real TensorFlow: the example of orch."""

from __future__ import annotations

import os
import signal

from cells import Moment, Who
from scene import Scene
from waiting import until

# Seconds; two workers import TensorFlow on a busy machine.
_START_S = 180.0
# The program trains so many epochs if the run must succeed, else until it is stopped.
_SHORT, _LONG = "3", "1000"


class TensorFlowScene(Scene):
    def flags(self) -> dict[str, object]:
        # A forked task has imported TensorFlow: it passes the moments of spawned ones too quickly.
        spawns = self.moment in (Moment.IMPORTING, Moment.RENDEZVOUS)
        return {"grace": "60s", "start": "spawn" if spawns else "auto"}

    def command(self, moment: Moment | None = None) -> list[str]:
        ends = self.cell.expect is not None and self.cell.expect.outcome == "succeeded"
        return ["--epochs", _SHORT if ends else _LONG, "--steps-per-epoch", "20", "--batch-size", "16"]

    def reach_the_moment(self) -> None:
        until(self._is_there, _START_S)
        if not self.cell.options.get("chaos"):
            assert not self.has_ended(), self.run.view.result()
        self.note_pids()

    def _is_there(self) -> bool:
        if self.has_ended():
            return True
        self.run.view.refresh()
        state = self.run.view.state
        phases = {task.name: task.progress.phase for task in state.tasks.values()}
        counts = [task.progress.fit for task in state.tasks.values() if task.progress.phase == "training"]
        steps = [0 if count is None else count.done for count in counts]
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
                return len(steps) == self.cell.workers and min(steps) >= 3

    def _hold_the_victim(self) -> bool:
        """Stop the victim during its imports; True once it is stopped."""
        for pid in self.task_pids(Who.VICTIM):
            os.kill(pid, signal.SIGSTOP)
            return True
        return False
