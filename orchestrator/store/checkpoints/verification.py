"""Verify a checkpoint: a subprocess with TensorFlow reads all of it, so that this process needs no TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.core.errors import EngineError, UsageError
from orchestrator.store.checkpoints.listing import CheckpointInfo, inspect_checkpoint
from orchestrator.store.open_files import parse_object

# The import of TensorFlow takes 3 to 30 s. Then a slow disk delivers 100 MB/s.
DEFAULT_TIMEOUT_S = 300.0
_READER = "programs/verify_checkpoint.py"
_LAST_BYTES = 2000
# The reader must not use a GPU, join a cluster, or report progress to a run.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
_NOT_IN_ENVIRONMENT = ("TF_CONFIG", "ORCH_PROGRESS_FD", "PYTEST_CURRENT_TEST")


@dataclass(frozen=True)
class Verification:
    """The outcome of reading a checkpoint.

    `tensors` is the number of tensors read, `bytes` their size in memory. `numbers` are the integer scalars by name
    ({"epoch": 3, "save_counter": 3}). `problems` describe what is wrong.
    """

    info: CheckpointInfo
    tensors: int = 0
    bytes: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    checkpoint: CheckpointInfo | Path | str,
    python: str | Path | Sequence[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Verification:
    """Read one checkpoint completely: a prefix for tf.train.load_checkpoint, a Keras file or a SavedModel.

    `python` is the interpreter, with options if needed (default: the current one). Problems of the checkpoint, also a
    time-out, are in the returned value. UsageError if the checkpoint or the interpreter does not exist; EngineError
    if the interpreter exits without an answer.
    """
    prefix = checkpoint.prefix if isinstance(checkpoint, CheckpointInfo) else Path(checkpoint)
    info = inspect_checkpoint(prefix)
    if info is None:
        raise UsageError(
            f"{prefix}: there is no checkpoint of that name; list_checkpoints() returns the existing ones"
        )
    if info.problems:
        return Verification(info, problems=info.problems)
    argv = [python] if isinstance(python, str | Path) else list(python or (sys.executable,))
    answer = _read(info, [str(word) for word in argv], timeout_s)
    if answer is None:
        return Verification(info, problems=(f"it was not read within {timeout_s:g} s",))
    return Verification(
        info,
        tensors=int(answer["tensors"]),
        bytes=int(answer["bytes"]),
        numbers={str(name): int(number) for name, number in answer["numbers"].items()},
        problems=tuple(str(problem) for problem in answer["problems"]),
    )


def _read(info: CheckpointInfo, python: list[str], timeout_s: float) -> dict[str, Any] | None:
    """Return the reader's answer; None after a time-out."""
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_IN_ENVIRONMENT}
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as words:
        argv = [*python, str(_reader()), str(answer.fileno()), info.kind.value, os.path.abspath(info.prefix)]  # noqa: PTH100
        try:
            process = subprocess.Popen(
                argv,
                env=environ | _ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                pass_fds=(answer.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{python[0]}: the interpreter cannot be started: {error.strerror}; name one that has TensorFlow"
            ) from error
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
        document = parse_object(answer.read() if answer.seek(0) == 0 else b"")
        if document is None:
            raise EngineError(
                f"{python[0]} did not read {info.prefix}: {_exit_description(process.returncode)}{_last_line(words)}"
            )
        return document


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the reader with all processes that it started."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _reader() -> Path:
    """Return the reader's file in the package `worker`, without importing it."""
    spec = find_spec("worker")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if (path := Path(place, _READER)).is_file():
            return path
    raise EngineError(f"orch's own package `worker` lacks {_READER}: reinstall orch")


def _exit_description(code: int) -> str:
    return f"signal {-code} ended it" if code < 0 else f"it exited with code {code}"


def _last_line(words: Any) -> str:
    words.seek(max(0, words.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = words.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
