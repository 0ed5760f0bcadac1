"""A question that goes wrong is answered, and harms neither the agent nor the other questions."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from worker.agent import stack_sources
from worker.agent.run_logs import RunFile
from worker.agent.stack_taking import StackTaking
from worker.agent.task_process import TaskProcess

# Answers as the bootstrap has it.
ANSWERS = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGURG, open(sys.argv[1], "a"))
print("up", flush=True)
time.sleep(600)
"""


@contextmanager
def task(name: str, directory: Path) -> Iterator[TaskProcess]:
    file = directory / name
    argv = [sys.executable, "-I", "-S", "-c", ANSWERS, str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as child:
        pidfd = os.pidfd_open(child.pid)
        try:
            assert child.stdout is not None and child.stdout.readline()
            made = TaskProcess(name, child.pid, pidfd, 0, None, False, -1, time.monotonic())
            made.stacks_file, made.stacks_signal = RunFile(str(file)), signal.SIGURG
            yield made
        finally:
            child.kill()
            os.close(pidfd)


def test_unreadable_stacks_file_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaked_descriptors: None
) -> None:
    """No disk here fails on demand: the read does."""
    answers: dict[str, dict[str, Any]] = {}
    read = os.pread

    def failing(fd: int, count: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "broken":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, count, offset)

    monkeypatch.setattr(os, "pread", failing)
    monkeypatch.setattr(stack_sources, "_DUMP_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(stack_sources, "find_py_spy", lambda: None)
    with task("broken", tmp_path) as broken, task("whole", tmp_path) as whole, select.epoll() as poller:
        taking = StackTaking(poller, lambda **fields: answers.__setitem__(fields["task"], fields))
        tasks = {each.name: each for each in (broken, whole)}

        def answered(count: int) -> bool:
            taking.advance(time.monotonic())
            return len(answers) == count

        taking.ask((), tasks, native=False, ending=False)
        until(lambda: answered(2))
        assert answers["whole"]["how"] == "signal"
        assert "<module>" in answers["whole"]["text"]
        assert answers["broken"]["how"] == "none"
        assert "signal: [Errno 5] Input/output error" in answers["broken"]["note"]
        # Its next question is not in the way of anything that the last one left.
        monkeypatch.undo()
        monkeypatch.setattr(stack_sources, "_DUMP_TIMEOUT_S", PATIENCE_S)
        answers.clear()
        taking.ask(("broken",), tasks, native=False, ending=False)
        until(lambda: answered(1))
        assert answers["broken"]["how"] == "signal"
        assert taking.due == float("inf")
