"""Runs of a drawn state directory before anything is changed: ended, lost and live ones, and files beside them."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from making import exited
from run_records import one_task

from orchestrator.core.state import events
from orchestrator.core.state.events import Event, event_line
from orchestrator.core.state.result import RunResult, TaskEnd
from orchestrator.store.runs.record import RunRecord, boot_id, first_line

IDS = [f"job-2026010{day}T000000Z-{day:04x}" for day in range(1, 7)]
# A run that no draw changes.
GOOD = "good-20260101T000000Z-900d"
_MONO = 1.0


@dataclass(frozen=True)
class Owners:
    """The user who runs orch, other users (empty without root), and processes as (pid, start time in ticks)."""

    victim: int
    others: tuple[int, ...]
    processes: tuple[tuple[int, int], ...]


@dataclass
class Drawn:
    """A drawn directory. `foreign` are trees of other users, `live` the directories of live runs: neither may change.

    `held` are the descriptors that hold the locks of live runs, `steps` describe what was drawn.
    """

    base: Path
    seed: int
    foreign: list[Path] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    live: list[Path] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    roots_are_intact: bool = True

    @property
    def state(self) -> Path:
        return self.base / "state/orch"

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    @property
    def outside(self) -> Path:
        return self.base / "outside"

    @property
    def elsewhere(self) -> Path:
        """The directory of the runs with a --log-dir."""
        return self.base / "elsewhere"

    @property
    def home(self) -> Path:
        return self.base / "home"

    def make_directories(self) -> None:
        self.base.chmod(0o755)
        for directory in (self.runs, self.state / "names", self.outside, self.elsewhere, self.home):
            directory.mkdir(parents=True)
        for directory in (self.state, self.runs, self.state / "names"):
            directory.chmod(0o700)
        self._make_outside()

    def _make_outside(self) -> None:
        """Files that must not change. Some directories look like those of runs, but have no record."""
        for name in ("precious/logs", "precious/scratch", f"{IDS[0]}/logs", f"{IDS[0]}/scratch", "empty"):
            (self.outside / name).mkdir(parents=True)
        files = [".bashrc", "readable", "old", "precious/file", "precious/lock", "precious/scratch/file"]
        for name in (*files, f"{IDS[0]}/scratch/file", f"{IDS[0]}/result.json"):
            (self.outside / name).write_text("precious")
        os.utime(self.outside / "old", (0, 0))

    def make_run(self, root: Path, kind: str, with_checkpoint: bool) -> None:
        """Make an `ended`, `lost` or `live` run."""
        for name in ("logs", "checkpoints", "scratch", "exceptions", "stacks"):
            (root / name).mkdir(mode=0o700, parents=True)
        root.chmod(0o700)
        record = self.record(root.name)
        (root / "run.json").write_text(record.model_dump_json())
        happened = [first_line(record), *map(event_line, one_task(_MONO))]
        if kind == "ended":
            happened += map(event_line, _END)
            (root / "result.json").write_text(_result(record.id).model_dump_json())
        (root / "events.jsonl").write_bytes(b"".join(happened))
        (root / "logs/worker-0.log").write_text("a line\n" * 3)
        (root / "scratch/left").write_text("x")
        (root / "lock").touch(mode=0o600)
        if with_checkpoint:
            (root / "checkpoints/ckpt-1").write_text("x")
        if kind == "live":
            fd = os.open(root / "lock", os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self.held.append(fd)
            self.live.append(root)

    def record(self, run_id: str) -> RunRecord:
        return RunRecord(
            id=run_id,
            name=run_id.partition("-")[0],
            directory=str(self.home),
            started_at=time.time() - 1000,
            started_mono=_MONO,
            boot_id=boot_id(),
            supervisor_pid=0,
            supervisor_start_ticks=0,
            checkpoint_dir=str(self.runs / run_id / "checkpoints"),
            versions={},
            spec={},
        )


_END: list[Event] = [
    exited(0, 3, mono=_MONO),
    events.RunEndedEvent(at=1, mono=_MONO, outcome="failed", exit_code=3),
]


def _result(run_id: str) -> RunResult:
    task = TaskEnd(task="worker:0", state="failed", exit_code=3, signal=None, end="failed")
    return RunResult(
        run_id=run_id,
        outcome="failed",
        exit_code=3,
        attempts=1,
        cause=None,
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=(task,),
    )
