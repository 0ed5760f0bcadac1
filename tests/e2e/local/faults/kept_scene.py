"""The scene of a run through kept processes, as `orch up --warm` leaves them, and the faults that hit these."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cells import Injection, Kind, Moment, NotAvailable, Who, require
from control_groups import MemoryGroup, NoGroup
from scene import Scene
from waiting import lives, until

from orchestrator import Run, UsageError
from orchestrator.client.launch import create_run, load_request
from orchestrator.client.warm import choose_start
from orchestrator.client.warm_list import stop_holders, warm_rows
from orchestrator.store.runs.paths import warm_name

_NO_PRESSURE = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)


class KeptScene(Scene):
    """A run that uses the processes of an earlier run. For a fault between two runs, only the earlier run is started.

    `until_the_end`: the resources that a fault needs until the run has ended."""

    holder: int

    @contextmanager
    def started(self) -> Iterator[None]:
        try:
            self._run = self.run_once()
            self.holder = self._run.view.record.supervisor_pid
            self.note_pids()
            with ExitStack() as self.until_the_end:
                if self.moment is not Moment.BETWEEN:
                    self.until_the_end.enter_context(super().started())
                    assert self.run.view.record.supervisor_pid == self.holder
                yield
        except BaseException:
            stop_holders()
            raise

    @contextmanager
    def start(self, moment: Moment | None = None) -> Iterator[Run]:  # type: ignore[override]
        options: dict[str, object] = {**self.flags(), **(self.cell.options if moment is None else {})}
        up = load_request(self.cell.workers, self.command(moment), self.directory, options)  # type: ignore[arg-type]
        # With --watch it needs no terminal.
        up = replace(up, display=replace(up.display, warm_s=600.0, watch="sources"))
        start = choose_start(up, None)
        with start.supervisor:
            yield create_run(start.supervisor, up, warm=start.warm)

    def run_once(self) -> Run:
        """A run without a fault, which must succeed. Returns when its processes wait for the next."""
        with self.start(Moment.BETWEEN) as run:
            result = run.wait(check=False)
            require(result.succeeded, Kind.OUTCOME, result)
            for worker in range(self.cell.workers):
                log = run.log(f"worker:{worker}").read_text()
                require(f"worker:{worker} is done\n" in log, Kind.OTHER, log)
        # The description of a killed supervisor stays until the next one replaces it.
        until(lambda: any(row.until is not None and lives(row.pid) for row in warm_rows()))
        return run

    def check_next_run(self) -> None:
        """CellFailure unless the next run is right, and nothing is left when its processes are stopped."""
        self._run = self.run_once()
        serves = self._run.view.record.supervisor_pid == self.holder
        require(self.cell.serves in (serves, None), Kind.OTHER, f"the same processes serve: {serves}")
        self.note_pids()
        stop_holders()
        until(lambda: not any(self._places().iterdir()))

    @staticmethod
    def _places() -> Path:
        return Path(os.environ["XDG_STATE_HOME"], "orch", "warm")

    @property
    def place(self) -> Path:
        return self._places() / warm_name(str(self.directory))


def _kept(scene: Scene) -> KeptScene:
    assert isinstance(scene, KeptScene)
    return scene


def run_beside(scene: Scene) -> None:
    """Check that another run in the directory works meanwhile."""
    with _kept(scene).start(Moment.BETWEEN) as run:
        assert run.wait().succeeded


def remove_place(scene: Scene) -> None:
    shutil.rmtree(_kept(scene).place)


def run_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError, match="No space left on device"):
        _kept(scene).run_once()


def show_pressure(scene: Scene) -> None:
    """Let the supervisor read that all processes of the machine wait for memory, and wait until it has left."""
    shown, target = scene.directory.parent / "pressure", "/proc/pressure/memory"
    shown.write_text(_NO_PRESSURE.replace("full avg10=0.00", "full avg10=60.00"))
    done = subprocess.run(["mount", "--bind", str(shown), target], capture_output=True, check=False)
    if done.returncode != 0:
        raise NotAvailable(f"{target} cannot be replaced here: {done.stderr.decode().strip()}")
    scene.touch("go")
    until(lambda: not lives(_kept(scene).holder))
    shown.write_text(_NO_PRESSURE)


def fill_disk(scene: Scene) -> None:
    """Fill the disk with orch's own files, for kept processes until the end of the run."""
    with _filler().open("ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"\0" * (1 << 12))
    if isinstance(scene, KeptScene) and scene.moment is not Moment.BETWEEN:
        scene.until_the_end.callback(make_room, scene)


def make_room(_: Scene) -> None:
    _filler().unlink()


def _filler() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "filler")


def take_memory(who: Who) -> Injection:
    """Let the kernel give a process no more memory until the end of the run. Between two runs: during another run,
    which may fail but must end."""

    def inject(scene: Scene) -> None:
        pid = scene.pid_of(who)
        assert pid is not None
        with ExitStack() as stack:
            try:
                group = stack.enter_context(MemoryGroup(64 << 10))
            except NoGroup as reason:
                raise NotAvailable(str(reason)) from reason
            before = group.of(pid)
            group.take(pid)
            stack.callback(group.give_back, before)
            if scene.moment is Moment.BETWEEN:
                with _kept(scene).start(Moment.BETWEEN) as run:
                    assert run.wait(check=False).exit_code in (0, 125, 137)
            else:
                _kept(scene).until_the_end.push(stack.pop_all())

    return inject
