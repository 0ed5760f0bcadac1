"""Runs a command as a task, with the bootstrap or without it, and returns its output, files and reports."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.agent.task_start import injected_env

# Only a test that hangs takes that long.
LONGEST_RUN_S = 90.0


@dataclass
class Task:
    """A started process, its output, the files of its run and its reports on the progress pipe."""

    process: subprocess.Popen[bytes]
    log: Path
    exception_file: Path
    stacks_file: Path
    progress_fd: int
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def exception(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.exception_file.read_text())
        return found

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        return self.process.wait(LONGEST_RUN_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait_for_line(self, text: str) -> None:
        """Wait until the log has a whole line with `text`; AssertionError if the task exits before."""
        deadline = time.monotonic() + LONGEST_RUN_S
        while text not in self.output.rpartition("\n")[0]:
            ended = self.process.poll() is not None
            assert not ended or text in self.output, f"ended without {text!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.output}"
            select.select([], [], [], 0.01)

    def wait_for_report(self, **facts: object) -> None:
        """Wait until one line on the progress pipe has reported all of `facts`."""
        self._wait_for_line_of_pipe(lambda line: facts.items() <= line.items())

    def wait_for_first(self, name: str) -> Any:
        """Wait until a line on the progress pipe has this name; return its value in the first one."""
        return self._wait_for_line_of_pipe(lambda line: name in line)[name]

    def _wait_for_line_of_pipe(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + LONGEST_RUN_S
        while not (found := [line for line in self.reports if is_wanted(line)]):
            assert time.monotonic() < deadline, f"reported only {self.reports}:\n{self.output}"
            ended = self.process.poll() is not None
            if not self._read(0.05):
                assert not ended, f"ended, and reported only {self.reports}:\n{self.output}"
        return found[0]

    @property
    def phases(self) -> list[str]:
        """All phases that it reported, in their order, once it has exited."""
        while self._read(0):
            pass
        return [line["phase"] for line in self.reports if "phase" in line]

    def _read(self, patience_s: float) -> bool:
        if self.progress_fd < 0 or not select.select([self.progress_fd], [], [], patience_s)[0]:
            return False
        data = os.read(self.progress_fd, 1 << 16)
        self.reports += [json.loads(line) for line in data.splitlines()]
        return bool(data)


@contextmanager
def running(
    directory: Path,
    command: Sequence[str | Path],
    *,
    python: str = sys.executable,
    bootstrap: bool = True,
    env: Mapping[str, str | None] | None = None,
    name: str = "worker:0",
    **options: object,
) -> Iterator[Task]:
    """Run `python *command` as a task, and kill it at the end. None removes a variable from the environment."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "0", **(env or {})}
    environ = {key: value for key, value in whole.items() if value is not None}
    run = directory / "run"
    run.mkdir(exist_ok=True)
    file = name.replace(":", "-") + ".txt"
    exception_file, stacks_file = run / "exceptions" / file, run / "stacks" / file
    if bootstrap:
        settings = {
            "task": name,
            "exception_file": str(exception_file),
            "stacks_file": str(stacks_file),
            "fixes": False,
            **options,
        }
        environ |= injected_env(settings, environ)
    log = directory / f"{name.replace(':', '-')}.log"
    progress_out, progress_in = os.pipe()
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [python, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**environ, "ORCH_PROGRESS_FD": str(progress_in)},
                start_new_session=True,
                pass_fds=(progress_in,),
            )
    finally:
        os.close(progress_in)
    task = Task(process, log, exception_file, stacks_file, progress_out)
    try:
        yield task
    finally:
        os.close(progress_out)
        task.progress_fd = -1
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LONGEST_RUN_S)


def finished(directory: Path, command: Sequence[str | Path], **settings: Any) -> Task:
    """Run a task until it exits."""
    with running(directory, command, **settings) as task:
        task.wait()
        assert task.phases is not None  # reads what the pipe holds
    return task
