"""Records TensorFlow's profiler for some steps: of Keras's `fit`, or of a loop that reports its steps (--profile)."""

from __future__ import annotations

import atexit
import os
import sys

from .messages import PROGRESS_FD, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PART = "the profile"


class Profile:
    """Records the steps `first` to `last` once. The steps are those of this process, over all epochs."""

    def __init__(self, first: int, last: int, directory: str, task: str) -> None:
        """Files are put where TensorBoard finds them below `directory`, with a file of facts beside each."""
        self._first, self._last = first, last
        self._directory, self._task = directory, task
        self._pid = os.getpid()
        self._began_after: int | None = None
        self._done = 0
        self._is_over = False
        self._step: Any = None

    def at(self, done: int) -> None:
        """Start or stop after `done` steps. Never raises."""
        if self._is_over or os.getpid() != self._pid:
            return
        self._done = done
        if self._began_after is None:
            if self._first - 1 <= done < self._last:
                attempt(_PART, self._start)
        elif done >= self._last:
            self.stop()

    def begin_step(self, done: int) -> None:
        """Mark a step for TensorBoard."""
        self.at(done)
        if self._began_after is not None and not self._is_over:
            self._step = _profiler().Trace("train", step_num=done + 1, _r=1)
            self._step.__enter__()

    def end_step(self, done: int) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        self.at(done)

    def _start(self) -> None:
        self._is_over = True  # unless it starts
        os.makedirs(self._directory, mode=0o700, exist_ok=True)  # noqa: PTH103 (pathlib is slow to import)
        _profiler().start(self._own_directory)
        self._began_after, self._is_over = self._done, False
        atexit.register(self.stop)

    def stop(self) -> None:
        """Write what was recorded. A process may end before the last step."""
        if not self._is_over and self._began_after is not None and os.getpid() == self._pid:
            self._is_over = True
            attempt(_PART, self._write)

    @property
    def _own_directory(self) -> str:
        return f"{self._directory}/.{self._task}"

    def _write(self) -> None:
        import json
        import shutil
        from pathlib import Path

        _profiler().stop()
        own = Path(self._own_directory)
        written = sorted(own.glob("plugins/profile/*/*.xplane.pb"))
        place = Path(self._directory, "plugins/profile", f"attempt-{os.environ.get('ORCH_ATTEMPT', '1')}")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = self._task.replace(":", "-")
        if written:
            # TensorFlow names the file after the host, which several tasks share.
            written[-1].replace(place / f"{name}.xplane.pb")
            facts = {"task": self._task, "first": (self._began_after or 0) + 1, "last": self._done}
            (place / f"{name}.json").write_text(json.dumps(facts))
        shutil.rmtree(own, ignore_errors=True)


def _profiler() -> Any:
    return sys.modules["tensorflow"].profiler.experimental


def install(options: Mapping[str, Any], task: str) -> Profile:
    """Return the profile that `options` ask for. A loop reports its steps by os.write to ORCH_PROGRESS_FD."""
    profile = Profile(int(options["first"]), int(options["last"]), str(options["directory"]), task)
    progress = os.environ.get(PROGRESS_FD, "")
    if progress.isdecimal():
        attempt(_PART, lambda: _watch_reports(int(progress), profile))
    return profile


def _watch_reports(progress: int, profile: Profile) -> None:
    write = os.write

    def watched(fd: int, data: Any) -> int:
        written = write(fd, data)
        if fd == progress and isinstance(data, bytes) and b'"step"' in data and "tensorflow" in sys.modules:
            profile.at(_steps_done(data))
        return written

    os.write = watched


def _steps_done(data: bytes) -> int:
    """The steps over all epochs that a report names; -1 if it names none."""
    import json

    try:
        report = json.loads(data.splitlines()[-1])
        step, epoch, steps = (report.get(name) for name in ("step", "epoch", "steps"))
    except (ValueError, AttributeError, IndexError):
        return -1
    if not isinstance(step, int):
        return -1
    earlier = (epoch - 1) * steps if isinstance(epoch, int) and isinstance(steps, int) else 0
    return earlier + step
