"""The paths of the state directory and of each run in it, and how they are opened."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import platformdirs

from orchestrator.core.errors import UsageError
from orchestrator.store.directory import Directory
from orchestrator.store.open_files import umask_advice
from orchestrator.store.ownership import accept_owner

# The file in the directory of a warm holder at which it waits for clients.
WARM_SOCKET = "socket"
_UNPUBLISHED_SUFFIX = ".new"
_UNPUBLISHED = re.compile(r"\.(?P<run_id>.+-\d{8}T\d{6}Z-[0-9a-f]{4})\.new\Z", re.DOTALL)


def state_dir() -> Path:
    """Return `${XDG_STATE_HOME:-~/.local/state}/orch`."""
    try:
        path = platformdirs.user_state_path("orch", appauthor=False)
    except RuntimeError as error:
        raise UsageError("there is no home directory to keep runs in; set HOME or XDG_STATE_HOME") from error
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{str(path)!a}: the name of the state directory is not valid UTF-8, which its records need;"
            " set XDG_STATE_HOME to another directory"
        ) from error
    return path


def runs_dir() -> Path:
    """Return the directory with one entry for each run: its directory, or a symbolic link to it (--log-dir)."""
    return state_dir() / "runs"


def names_dir() -> Path:
    """Return the directory with one lock file for each run name. The live run of that name holds the lock."""
    return state_dir() / "names"


def warm_dir() -> Path:
    """Return the directory with one directory for each warm holder (links/kept.py)."""
    return state_dir() / "warm"


def warm_name(directory: str) -> str:
    """Return the name in warm_dir() for the holder of a directory."""
    return sha256(os.fsencode(directory)).hexdigest()[:16]


def has_warm_socket(directory: str) -> bool:
    """Return whether a holder of this directory seems to wait. Quick, and without certainty."""
    try:
        return (warm_dir() / warm_name(directory) / WARM_SOCKET).is_socket()
    except (OSError, UsageError):
        return False


def accept_owner_of_state() -> None:
    """Let root use a state directory that belongs to another user, until the end of this process."""
    state = state_dir()
    for place in (state, *state.parents):
        try:
            accept_owner(place.stat().st_uid)
        except FileNotFoundError:
            continue  # it will be created in its nearest parent
        except OSError:
            pass  # reported when it is opened
        return


def open_runs() -> Directory:
    """Open the directory of the runs. FileNotFoundError without a run; NotOurs, UsageError, OSError."""
    return _open(runs_dir())


def make_runs() -> Directory:
    """Open the directory of the runs, created if it is missing. UsageError."""
    return _make(runs_dir())


def open_names() -> Directory:
    """Open the directory of the names. FileNotFoundError without one; NotOurs, UsageError, OSError."""
    return _open(names_dir())


def make_names() -> Directory:
    """Open the directory of the names, created if it is missing. UsageError."""
    return _make(names_dir())


def open_warm() -> Directory:
    """Open the directory of the warm holders. FileNotFoundError without one; NotOurs, UsageError, OSError."""
    return _open(warm_dir())


def make_warm() -> Directory:
    """Open the directory of the warm holders, created if it is missing. UsageError."""
    return _make(warm_dir())


def _open(path: Path) -> Directory:
    try:
        with Directory.open(path.parent) as state:
            return state.sub(path.name)
    except NotADirectoryError as error:
        _refuse_link(path)
        raise FileNotFoundError(error.errno, error.strerror, error.filename) from error
    except (FileNotFoundError, UsageError):
        raise
    except OSError as error:
        raise UsageError(
            f"{error.filename or path}: cannot be opened: {error.strerror}; make it accessible, or set"
            " XDG_STATE_HOME to another directory"
        ) from error


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UsageError(
            f"{path}: is a symbolic link, which is not followed here; only {path.parent} itself may be one"
        )


def _make(path: Path) -> Directory:
    try:
        with Directory.create(path.parent) as state:
            return state.make(path.name)
    except UsageError:
        raise
    except NotADirectoryError as error:
        _refuse_link(path)
        raise UsageError(f"{error.filename}: {error.strerror}; set XDG_STATE_HOME") from error
    except OSError as error:
        why = error.strerror or str(error)
        advice = umask_advice() or "set XDG_STATE_HOME"
        raise UsageError(f"{error.filename or path}: cannot be made: {why}; {advice}") from error


class _Entry:
    """An entry of the run's directory, as an attribute of RunPaths."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, owner: type[RunPaths]) -> Path:
        return paths.root / self._name


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, below `root`."""

    root: Path

    record = _Entry("run.json")
    events = _Entry("events.jsonl")
    sample = _Entry("sample.json")
    samples = _Entry("samples.jsonl")
    result = _Entry("result.json")
    lock = _Entry("lock")
    control = _Entry("control")
    # Disk space for the result and the last events.
    reserve = _Entry(".reserve")

    logs = _Entry("logs")
    checkpoints = _Entry("checkpoints")
    scratch = _Entry("scratch")
    exceptions = _Entry("exceptions")
    stacks = _Entry("stacks")
    tensorboard = _Entry("tensorboard")
    profile = _Entry("profile")

    preloader_log = _Entry("preloader.log")
    supervisor_log = _Entry("supervisor.log")
    agent_log = _Entry("agent.log")
    tensorboard_log = _Entry("tensorboard.log")
    # Output of the batch job of a detached run under Slurm.
    job_log = _Entry("job.log")

    def open(self) -> Directory:
        """Open the run's directory. NotOurs, OSError."""
        return Directory.at(self.root)

    @property
    def hidden_name(self) -> str:
        """The name of the run's directory before it is published."""
        return f".{self.run_id}{_UNPUBLISHED_SUFFIX}"

    @property
    def run_id(self) -> str:
        return self.root.name

    def task_log(self, task: str) -> Path:
        return self.logs / f"{_file_name(task)}.log"

    def task_exception(self, task: str) -> Path:
        """Return the file for the uncaught exception of a Python task (JSON, written by its bootstrap)."""
        return self.exceptions / f"{_file_name(task)}.json"

    def task_traceback(self, task: str) -> Path:
        """Return the file for the traceback of the uncaught exception, with its causes, as text."""
        return self.exceptions / f"{_file_name(task)}.txt"

    def task_stacks(self, task: str) -> Path:
        """Return the file to which each request appends the stacks of the task's threads."""
        return self.stacks / f"{_file_name(task)}.txt"

    def task_scratch(self, task: str) -> Path:
        return self.scratch / _file_name(task)


# The entries of a run's directory before it is published, and those that are directories, which are empty then.
NEW_RUN_DIRECTORIES = ("logs", "scratch", "checkpoints", "exceptions", "stacks")
NEW_RUN_ENTRIES = frozenset((*NEW_RUN_DIRECTORIES, "lock", "events.jsonl", ".reserve", "run.json"))


def unpublished_run(name: str) -> str | None:
    """Return the id of the run whose directory has this hidden name; None if it is not such a name."""
    match = _UNPUBLISHED.match(name)
    return match["run_id"] if match else None


def _file_name(task: str) -> str:
    return task.replace(":", "-")
