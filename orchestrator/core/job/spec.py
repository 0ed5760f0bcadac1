"""The job that the user asks for, as a checked, frozen value."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import PurePath
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from orchestrator.core.job.choices import (
    DEFAULT_EVALUATOR_TIMEOUT_S,
    DEFAULT_FAILURE_GRACE_S,
    DEFAULT_GRACE_S,
    DEFAULT_LINK_TIMEOUT_S,
    DEFAULT_MAX_RESTARTS,
    DEFAULT_NOTICE_S,
    DEFAULT_START_TIMEOUT_S,
    SILENCE_NOTICE_S,
    EngineName,
    FailurePolicy,
    KerasOption,
    NetworkOption,
    Placement,
    StartOption,
)
from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.fault import Fault
from orchestrator.core.job.gpus import GpuChoice, GpuInventory
from orchestrator.core.job.hosts import Host, check_role_hosts, distinct
from orchestrator.core.job.profiled_steps import ProfiledSteps
from orchestrator.core.job.roles import MOST_TASKS, check_counts
from orchestrator.core.job.run_name import RunName
from orchestrator.core.job.start_method import StartMethod
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.core.job.tensorboard import TensorBoard
from orchestrator.core.job.tf_config import EVALUATOR, WORKER, Role, TaskRef
from orchestrator.core.job.values import (
    START_TIMEOUT,
    AbsolutePath,
    Environment,
    ModuleName,
    Roles,
    Seconds,
    Word,
    between,
    checked_count,
    checked_interface,
    checked_link_timeout,
    checked_ssh,
    checked_timeout,
    frozen,
)
from orchestrator.core.text.secrets import mask_secrets, mask_words

NOT_FORKED = StartMethod(fork=False, reason="it is not a Python script")
# Threads in each pool of a task. Larger numbers are typing errors.
MOST_THREADS = 4096
MOST_RESTARTS = 10_000
# Examples in a step: a 32-bit number.
MOST_EXAMPLES = 2**31 - 1


class CommandKind(StrEnum):
    """The kind of program that a task runs."""

    EXAMPLE = "example"  # of orch
    SCRIPT = "script"
    MODULE = "module"
    EXECUTABLE = "executable"
    FUNCTION = "function"  # of the Python process that starts the run


class Command(BaseModel):
    """The program of a task. `words` is as the user wrote it (only options for an example, `train()` for a
    function), `argv` as it is executed. `serves`: the task is expected to start a TensorFlow server on its port.

    `interpreter` is the Python command with its own options (empty for other programs), `start` how the tasks are
    started, `legacy_keras` whether they get tf_keras as Keras, `notes` lines to show once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: CommandKind
    words: tuple[Word, ...]
    argv: tuple[Word, ...] = Field(min_length=1)
    serves: bool
    interpreter: tuple[Word, ...] = ()
    start: StartMethod = NOT_FORKED
    legacy_keras: bool = False
    notes: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of the program in messages: `train.py`, `pkg.mod`."""
        if self.kind is CommandKind.EXAMPLE:
            return f"the example {PurePath(self.argv[len(self.interpreter)]).name}"
        if self.kind is CommandKind.FUNCTION:
            return self.words[0]
        match self.argv[len(self.interpreter) :]:
            case ("-m", str(module), *_):
                return module
            case ("-c", *_):
                return "the code after -c"
            case (str(script), *_) if self.interpreter:
                return script
        return self.words[0]

    def __str__(self) -> str:
        if self.kind is CommandKind.EXAMPLE:
            return shlex.join(("example", PurePath(self.argv[len(self.interpreter)]).name, *self.words))
        if self.kind is CommandKind.FUNCTION:
            return self.words[0]
        return shlex.join(self.words)


class RoleSettings(BaseModel):
    """Settings of one role that replace those of the job. None means: as for the other roles. `env` is added."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    command: Command | None = None
    env: Environment = Field(default_factory=lambda: MappingProxyType({}))
    on_failure: FailurePolicy | None = None
    gpus: GpuChoice | None = None
    # Names of the hosts that its tasks run on.
    hosts: tuple[str, ...] | None = None


@cache
def _no_settings() -> RoleSettings:
    return RoleSettings()


RoleTable = Annotated[
    Mapping[Role, RoleSettings],
    AfterValidator(frozen),
    PlainSerializer(lambda table: {role: settings.model_dump() for role, settings in table.items()}),
]


class JobSpec(BaseModel):
    """A job: its tasks, their commands, and its limits.

    `command`, `env` and `on_failure` apply to every role, except where `role_settings` has another value. Times
    are in seconds, paths are absolute. None turns a limit off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    roles: Roles = Field(min_length=1)
    # The workers in `roles` are the most of an elastic job, and these the fewest. None: it is not elastic.
    fewest_workers: Annotated[int, between(1, MOST_TASKS)] | None = None
    # Examples in a step of all workers. None: the program decides.
    global_batch: Annotated[int, between(1, MOST_EXAMPLES)] | None = None
    role_settings: RoleTable = Field(default_factory=lambda: MappingProxyType({}))
    name: RunName
    # The user chose the name, so that a live run of that name is a conflict.
    name_is_explicit: bool = False
    command: Command
    # Where `up` was called.
    directory: AbsolutePath
    cwd: AbsolutePath
    # Added to the caller's environment.
    env: Environment = Field(default_factory=lambda: MappingProxyType({}))
    timeout_s: Annotated[float, AfterValidator(checked_timeout)] | None = None
    # From the first ready task to the last.
    start_timeout_s: Annotated[float, START_TIMEOUT] | None = DEFAULT_START_TIMEOUT_S
    # Without output or progress of a task.
    stall_timeout_s: Annotated[float, AfterValidator(checked_timeout)] | None = None
    # After it, without a stall_timeout_s, a task that is silent and idle is reported once. Not an option.
    silence_notice_s: Seconds | None = SILENCE_NOTICE_S
    # For the evaluator after the end of the training.
    evaluator_timeout_s: Seconds | None = DEFAULT_EVALUATOR_TIMEOUT_S
    # End the run when a loss is NaN or infinite.
    stop_on_nan: bool = False
    on_failure: FailurePolicy = FailurePolicy.ABORT
    max_restarts: Annotated[int, between(0, MOST_RESTARTS)] = DEFAULT_MAX_RESTARTS
    # PSS of each task with all its processes.
    memory_limit_bytes: Annotated[int, AfterValidator(checked_count)] | None = None
    chaos: tuple[Fault, ...] = ()
    network: NetworkOption = NetworkOption.HOST
    grace_s: Seconds = DEFAULT_GRACE_S
    failure_grace_s: Seconds = DEFAULT_FAILURE_GRACE_S
    # From a notice to the end of the machines, if the notice does not say.
    notice_s: Seconds = DEFAULT_NOTICE_S
    # None: in the run's own directory.
    checkpoint_dir: AbsolutePath | None = None
    # None: in the state directory.
    log_dir: AbsolutePath | None = None
    inherited_tf_config: bool = False
    # A script that sets TF_CONFIG changes it.
    script_tf_config: bool = False
    # The run fails if no task joins a cluster.
    expect_cluster: bool = False
    start: StartOption = StartOption.AUTO
    # Modules that the user declares safe to import before a fork.
    preload: tuple[ModuleName, ...] = ()
    # The tasks that a debugger can attach to, and whether they run before it does.
    debug: tuple[TaskRef, ...] = ()
    debug_no_wait: bool = False
    # The task that has the user's terminal, and whether the first one that fails gets it.
    interactive: TaskRef | None = None
    pdb: bool = False
    # Repair known faults of Keras.
    fixes: bool = True
    keras: KerasOption = KerasOption.AUTO
    # Threads in each pool of a task. None: TensorFlow decides.
    threads: Annotated[int, between(1, MOST_THREADS)] | None = None
    # The cores that this machine lets all tasks use together.
    cores: Cores = Cores(machine=1, allowed=1)
    strategy: StrategyChoice = StrategyChoice()
    # None: auto.
    gpus: GpuChoice | None = None
    # Bytes on each GPU that a task sees, or allocation on demand. None: all of it.
    gpu_memory: Literal["grow"] | Annotated[int, AfterValidator(checked_count)] | None = None
    gpu_inventory: GpuInventory = GpuInventory()
    # COLUMNS of the tasks: the room for a line on the terminal that shows the run. None: not set.
    columns: Annotated[int, between(1, 100_000)] | None = None
    # None: no event files.
    tensorboard: TensorBoard | None = None
    # None: no profile.
    profile: ProfiledSteps | None = None
    engine: EngineName = EngineName.LOCAL
    # Empty: this machine alone.
    hosts: Annotated[tuple[Host, ...], AfterValidator(distinct)] = ()
    # Slots of a host that was given without a number. None: the tasks are split equally.
    tasks_per_host: Annotated[int, between(1, MOST_TASKS)] | None = None
    placement: Placement = Placement.PACK
    # The network interface whose address the tasks' servers have. None: the one that the host is reached by.
    interface: Annotated[str, AfterValidator(checked_interface)] | None = None
    link_timeout_s: Annotated[float, AfterValidator(checked_link_timeout)] = DEFAULT_LINK_TIMEOUT_S
    # The interpreter on the hosts. None: the path of the one here.
    remote_python: Word | None = None
    # Copy the working directory to the hosts before the start.
    sync: bool = False
    ssh_command: Annotated[tuple[Word, ...], AfterValidator(checked_ssh)] = ("ssh",)
    # orch asks Slurm for these in a new allocation. None: the cluster's defaults.
    nodes: Annotated[int, between(1, MOST_TASKS)] | None = None
    partition: Annotated[Word, Field(min_length=1)] | None = None
    account: Annotated[Word, Field(min_length=1)] | None = None
    time_s: Annotated[float, AfterValidator(checked_timeout)] | None = None
    slurm: tuple[Word, ...] = ()
    # The id of the allocation, once there is one. Then `hosts` are its nodes.
    slurm_job: str | None = None
    # Its end (Unix seconds), and the seconds from its SIGTERM to SIGKILL. None: no limit, or not known.
    slurm_ends_at: float | None = None
    kill_wait_s: Seconds | None = None

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        check_counts(self.roles)
        wanted = {role: its.hosts for role, its in self.role_settings.items() if its.hosts is not None}
        check_role_hosts(wanted, self.hosts)
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the tasks run on hosts, which may not be known yet."""
        return bool(self.hosts) or self.engine is EngineName.SLURM

    @property
    def workers(self) -> int:
        return self.roles.get(WORKER, 0)

    @property
    def is_elastic(self) -> bool:
        """Whether an attempt can have other workers or hosts than the one before."""
        return self.fewest_workers is not None and self.is_remote

    @property
    def tasks(self) -> tuple[TaskRef, ...]:
        """Every task of the job, in the order of listing, of holding ports and of starting."""
        return _tasks_of(tuple(self.roles.items()))

    @property
    def has_cluster(self) -> bool:
        """Whether two tasks or more can join a cluster. An evaluator does not."""
        trained = sum(count for role, count in self.roles.items() if role != EVALUATOR)
        return trained > 1 and self.strategy.starts_servers

    @property
    def commands(self) -> tuple[Command, ...]:
        """The different commands of the tasks."""
        return tuple(dict.fromkeys(self.command_of(role) for role in self.roles))

    def command_of(self, role: str) -> Command:
        return self._settings_of(role).command or self.command

    def env_of(self, role: str) -> Mapping[str, str]:
        """The variables added to the caller's environment; the role's own replace those of the job."""
        return {**self.env, **self._settings_of(role).env}

    def policy_of(self, role: str) -> FailurePolicy:
        return self._settings_of(role).on_failure or self.on_failure

    def gpus_of(self, role: str) -> GpuChoice | None:
        return self._settings_of(role).gpus or self.gpus

    def hosts_of(self, role: str) -> tuple[str, ...]:
        """The names of the hosts that tasks of this role may run on."""
        own = self._settings_of(role).hosts
        return tuple(host.name for host in self.hosts) if own is None else own

    def serves(self, role: str) -> bool:
        """Whether its tasks are expected to start a TensorFlow server. An evaluator does not join the cluster."""
        return role != EVALUATOR and self.strategy.starts_servers and self.command_of(role).serves

    def _settings_of(self, role: str) -> RoleSettings:
        return self.role_settings.get(role) or _no_settings()

    def masked(self) -> JobSpec:
        """Return the job with secrets hidden: the only form that may be shown or written to disk."""
        settings = {
            role: its.model_copy(
                update={
                    "env": MappingProxyType(mask_secrets(its.env)),
                    "command": None if its.command is None else _masked(its.command),
                }
            )
            for role, its in self.role_settings.items()
        }
        return self.model_copy(
            update={
                "env": MappingProxyType(mask_secrets(self.env)),
                "command": _masked(self.command),
                "role_settings": MappingProxyType(settings),
            }
        )


@lru_cache(maxsize=16)
def _tasks_of(counts: tuple[tuple[str, int], ...]) -> tuple[TaskRef, ...]:
    """The tasks of these roles. Kept, because plans of many hosts ask for them once a host."""
    return tuple(TaskRef(type=role, index=index) for role, count in counts for index in range(count))


def _masked(command: Command) -> Command:
    set_by_script = dict(command.start.preload_env)
    return command.model_copy(
        update={
            "words": mask_words(command.words),
            "argv": mask_words(command.argv),
            "start": replace(command.start, preload_env=tuple(mask_secrets(set_by_script).items())),
        }
    )
