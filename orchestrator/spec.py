"""What the user asked for: the job as a checked, frozen value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from orchestrator.configuration.durations import check_duration
from orchestrator.cpu_budget import Cores
from orchestrator.start_method import KerasOption, StartMethod, StartOption
from orchestrator.tf_config import ROLES, WORKER, Role, TaskRef

DEFAULT_WORKERS = 1
DEFAULT_GRACE_S = 10.0
# Peers of a failed task sit in dead collectives: waiting for them to be polite is time lost.
DEFAULT_FAILURE_GRACE_S = 0.5
NOT_FORKED = StartMethod(fork=False, reason="it is no Python script")
# More is a slip: each of a task's pools gets so many.
MOST_THREADS = 4096
MASK = "***"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SET_BY_ORCH = "TF_CONFIG"
_ORCH_PREFIX = "ORCH_"


class CommandKind(StrEnum):
    """What a task runs: the built-in program, a Python script, a Python module, or anything executable."""

    BUILTIN = "builtin"
    SCRIPT = "script"
    MODULE = "module"
    EXECUTABLE = "executable"


def _plain_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a process")
    return text


def _checked_name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(
            f'"{name}" is not a name; use 1 to 63 of A-Z a-z 0-9 . _ - and begin with a letter or digit'
        )
    return name


def _checked_variable(name: str) -> str:
    _plain_text(name)
    if not name or "=" in name:
        raise ValueError(f'"{name}" is not the name of an environment variable')
    if name == _SET_BY_ORCH or name.startswith(_ORCH_PREFIX):
        raise ValueError(f"{name} is set by orch for each task and cannot be given; leave it out")
    return name


def _checked_count(count: int) -> int:
    if count < 1:
        raise ValueError(f"must be at least 1, not {count}")
    return count


def _checked_threads(threads: int) -> int:
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"must be between 1 and {MOST_THREADS:,}, not {threads}")
    return threads


def _checked_timeout(seconds: float) -> float:
    if seconds == 0:
        raise ValueError("a time-out of 0 would end the run at once; leave it out for no limit")
    return check_duration(seconds)


def _absolute(path: Path) -> Path:
    _plain_text(str(path))
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return path


def _module_name(name: str) -> str:
    if not name.isascii() or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f'"{name}" is not the name of a Python module; write numpy or scipy.linalg')
    return name


def _frozen_env(env: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(env))


def _frozen_roles(roles: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType({role: roles[role] for role in ROLES if role in roles})


Word = Annotated[str, AfterValidator(_plain_text)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
ModuleName = Annotated[str, AfterValidator(_module_name)]
Seconds = Annotated[float, AfterValidator(check_duration)]
Roles = Annotated[
    Mapping[Role, Annotated[int, AfterValidator(_checked_count)]],
    AfterValidator(_frozen_roles),
    PlainSerializer(dict, return_type=dict[str, int]),
]
Environment = Annotated[
    Mapping[Annotated[str, AfterValidator(_checked_variable)], Word],
    AfterValidator(_frozen_env),
    PlainSerializer(dict, return_type=dict[str, str]),
]


class Command(BaseModel):
    """What each task runs. `words` is what the user wrote (options only for the built-in program), `argv`
    what is executed, `serves` whether the task is expected to start a TensorFlow server on its port.

    `interpreter` is the Python that runs it with that Python's own options (empty: no Python program), `start` how
    its tasks come to be, `legacy_keras` whether they get tf_keras for Keras, `notes` lines to be said once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: CommandKind
    words: tuple[Word, ...]
    argv: tuple[Word, ...] = Field(min_length=1)
    serves: bool
    interpreter: tuple[Word, ...] = ()
    start: StartMethod = NOT_FORKED
    legacy_keras: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind is CommandKind.BUILTIN:
            return shlex.join(("python", "-m", "worker", *self.words))
        return shlex.join(self.words)


class JobSpec(BaseModel):
    """A job: how many tasks of each role, what they run and where, and how long they may take.

    Times are in seconds (`timeout_s` None: no limit). Paths are absolute; `directory` is where `up` was
    called; `checkpoint_dir` and `log_dir` None mean the run's own; `env` goes on top of the caller's.
    `name_is_explicit`: the user chose it, so a live run of that name is in the way. `preload` are modules the user
    vouches for, `fixes` whether a Keras known to be broken is mended, `threads` what each task's pools get (None: left
    to orch), `cores` what this machine lets the tasks use together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    roles: Roles = Field(min_length=1)
    name: Annotated[str, AfterValidator(_checked_name)]
    name_is_explicit: bool = False
    command: Command
    directory: AbsolutePath
    cwd: AbsolutePath
    env: Environment = Field(default_factory=lambda: MappingProxyType({}))
    timeout_s: Annotated[float, AfterValidator(_checked_timeout)] | None = None
    grace_s: Seconds = DEFAULT_GRACE_S
    failure_grace_s: Seconds = DEFAULT_FAILURE_GRACE_S
    checkpoint_dir: AbsolutePath | None = None
    log_dir: AbsolutePath | None = None
    inherited_tf_config: bool = False
    start: StartOption = StartOption.AUTO
    preload: tuple[ModuleName, ...] = ()
    fixes: bool = True
    keras: KerasOption = KerasOption.AUTO
    threads: Annotated[int, AfterValidator(_checked_threads)] | None = None
    cores: Cores = Cores(machine=1, allowed=1)

    @model_validator(mode="after")
    def _has_a_leader(self) -> Self:
        if WORKER not in self.roles:
            raise ValueError("a job needs at least one worker")
        return self

    @property
    def workers(self) -> int:
        return self.roles[WORKER]

    @property
    def tasks(self) -> tuple[TaskRef, ...]:
        """Every task of the job, in the order they are listed, held ports for, and started."""
        return tuple(
            TaskRef(type=role, index=index) for role, count in self.roles.items() for index in range(count)
        )

    def masked(self) -> JobSpec:
        """The same job with secret-looking values hidden: the only form that may be written down or shown."""
        return self.model_copy(update={"env": MappingProxyType(mask_secrets(self.env))})


def default_name(directory: Path) -> str:
    """A run's name from the directory's: what a name cannot hold becomes a dash; `run` if nothing is left."""
    name = _NOT_IN_NAMES.sub("-", directory.name).lstrip("._-")[:63].rstrip("-")
    return name or "run"


def mask_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Values of secret-looking names become `***`, and so does the login in a URL."""
    return {
        name: MASK if _SECRET.search(name) else _URL_LOGIN.sub(MASK, value) for name, value in env.items()
    }
