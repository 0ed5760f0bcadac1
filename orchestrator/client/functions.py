"""`FunctionCall`: a function of this process that every task of a run calls, and what the tasks return.

worker/programs/call_function.py is the other end, and describes both files.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.client.api import Run, error_of
from orchestrator.client.function_pickle import NotImportedHere, ReturnUnpickler, name_of, pickle_call
from orchestrator.client.launch import load_request
from orchestrator.core.errors import RunEnded, TaskFailed, UsageError
from orchestrator.core.state.result import CauseKind, RunResult
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.links.client_link import Descriptor
from orchestrator.request.command.function_command import Function, function_words, with_function
from orchestrator.request.settings.keywords import Directory
from orchestrator.request.settings.request import UpRequest

# As in worker/programs/call_function.py.
_LENGTH_BYTES = 8
ROOM = 128 << 20
_VALUE = b"v"


class FunctionCall:
    """A call in every task. `up` and `descriptors` start the run, values() reads what came back. To be closed."""

    def __init__(
        self,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        workers: int | None,
        directory: Directory | None,
        options: Mapping[str, object],
    ) -> None:
        """UsageError for wrong options, and for what cannot be pickled."""
        if not callable(function):
            raise UsageError(safe(f"{function!r:.80} cannot be called; pass a function"))
        if isinstance(args, str | bytes):
            raise UsageError(f"args={args!r:.80} is one text; write args=({args!r:.80},)")
        self._name = name_of(function)
        asked = load_request(workers, function_words(), directory, options)
        pickled, self._contents = pickle_call(function, args, kwargs or {})
        self.up = self._request(asked, pickled)
        self._tasks = [str(task) for task in self.up.spec.tasks]
        self.descriptors: dict[Descriptor, int] = {}
        for name in ("call", "return"):
            opened = os.memfd_create(f"orch-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self.descriptors[Descriptor(name=name)] = opened
        self._call, self._return = self.descriptors.values()
        try:
            self._write(pickled)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FunctionCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory, also if another process still has a descriptor. Idempotent."""
        while self.descriptors:
            _, opened = self.descriptors.popitem()
            os.truncate(opened, 0)
            os.close(opened)

    def _request(self, asked: UpRequest, pickled: memoryview) -> UpRequest:
        names_keras = re.search(b"keras", pickled) is not None
        function = Function(self._name, self._contents.modules, names_keras)
        return replace(asked, spec=with_function(asked.spec, function, os.environ))

    def _write(self, pickled: memoryview) -> None:
        header = {
            "function": self._name,
            "tasks": self._tasks,
            "path": [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)],
            "argv": sys.argv,
            "sources": self._contents.sources,
        }
        text = json.dumps(header).encode()
        with open(self._call, "wb", closefd=False) as file:
            file.writelines((len(text).to_bytes(_LENGTH_BYTES, "little"), text, pickled))
        # Not against shrinking, by which close() frees the memory.
        fcntl.fcntl(self._call, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def values(self, run: Run) -> list[Any]:
        """Wait for the run's end, and return what each task returned, in task order. A task that orch stopped, because
        the others had ended, has None. Raises the exception of the task that the failure began with, else RunEnded."""
        result = run.wait(check=False)
        if not result.succeeded:
            self._raise(error_of(result), blamed(result))
        codes = {end.task: end.exit_code for end in result.tasks}
        values: list[Any] = []
        for task in self._tasks:
            failed = partial(_task_failed, run, result, task, codes.get(task))
            match self._returned(task):
                case _Raised():  # with on_failure="continue"
                    self._raise(failed("failed"), (task,))
                case bytes(pickled):
                    values.append(self._load(pickled, failed))
                case None if codes.get(task) == 0:
                    raise failed(f"exited before {self._name} returned; return in place of an exit")
                case None:
                    values.append(None)
        return values

    def _raise(self, failed: RunEnded, tasks: Sequence[str]) -> NoReturn:
        """Raise the exception that the first of these tasks has sent, or else `failed`."""
        for task in tasks:
            raised = self._returned(task)
            if isinstance(raised, _Raised):
                failed.add_note(f"{task}:\n{safe_lines(raised.text)}")
                error = self._exception(raised.pickled)
                if error is None:
                    break
                with suppress(AttributeError):
                    error.task = task  # type: ignore[attr-defined]
                error.add_note(f"raised by {self._name} in {task}")
                raise error from failed
        raise failed

    def _exception(self, pickled: bytes) -> BaseException | None:
        """The exception; None if it cannot be made here: its class may need more than it is pickled with."""
        try:
            error = self._unpickled(pickled)
        except Exception:
            return None
        return error if isinstance(error, BaseException) else None

    def _load(self, pickled: bytes, failed: Callable[[str], TaskFailed]) -> Any:
        try:
            return self._unpickled(pickled)
        except Exception as error:
            why = str(error) if isinstance(error, NotImportedHere) else f"{type(error).__name__}: {error}"
            raise failed(f"the value of {self._name} cannot be read here: {why}") from error

    def _unpickled(self, pickled: bytes) -> Any:
        return ReturnUnpickler(pickled, self._contents.classes).load()

    def _returned(self, task: str) -> bytes | _Raised | None:
        """The pickled value of a task, its exception, or None if it has sent nothing."""
        start = self._tasks.index(task) * ROOM
        data = self._read(start)
        if not data:
            return None
        if data[:1] == _VALUE:
            return data[1:]
        length = int.from_bytes(data[1 : 1 + _LENGTH_BYTES], "little")
        text, pickled = data[1 + _LENGTH_BYTES :][:length], data[1 + _LENGTH_BYTES + length :]
        return _Raised(pickled, text.decode(errors="replace"))

    def _read(self, start: int) -> bytes:
        length = int.from_bytes(os.pread(self._return, _LENGTH_BYTES, start), "little")
        return os.pread(self._return, min(length, ROOM - _LENGTH_BYTES), start + _LENGTH_BYTES)


@dataclass(frozen=True)
class _Raised:
    """An exception in a task: pickled (empty if that failed), and as text with its traceback."""

    pickled: bytes
    text: str


def _task_failed(run: Run, result: RunResult, task: str, exit_code: int | None, text: str) -> TaskFailed:
    log = run.log(task)
    return TaskFailed(safe(f"{task}: {text}; see {log}"), result, task, exit_code, log)


def blamed(result: RunResult) -> tuple[str, ...]:
    """The tasks whose exception says best why a run failed."""
    cause, first = result.cause, result.first_failure
    if result.outcome != "failed" or first is None:
        return ()
    named = () if cause is None else tuple(filter(None, (cause.task, *cause.tasks)))
    # A task that ended before the others has raised nothing itself.
    others = (first.task,) if not named or (cause and cause.kind is CauseKind.LEFT_EARLY) else ()
    return (*named, *others)
