"""The messages between the supervisor and an agent, and the facts in them. Times are monotonic seconds of the sender's
host, sizes bytes.

An agent begins with Hello. Each run begins with Run, which it answers with Begun: what it sent before belongs to an
earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from worker.wire.codec import BadMessage, Matches, Within, decoder


class IsUnicode:
    """The text has no lone surrogates, so that it can be written anywhere."""

    def check(self, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadMessage(f"{value[:60]!r} is not Unicode") from None


class IsAddress:
    """The text is an IP address, without a zone."""

    def check(self, value: str) -> None:
        # Only the supervisor reads addresses, and the agent starts sooner without this import.
        from ipaddress import ip_address

        try:
            is_plain = ip_address(value).compressed and "%" not in value
        except ValueError:
            is_plain = False
        if not is_plain:
            raise BadMessage(f"{value[:60]!r} is not an IP address")


Count = Annotated[int, Within(0, 2**62)]
Few = Annotated[int, Within(0, 1 << 20)]
# As large as Linux makes them.
Pid = Annotated[int, Within(1, 1 << 22)]
Port = Annotated[int, Within(1, 65535)]
ExitCode = Annotated[int, Within(0, 255)]
SignalNumber = Annotated[int, Within(1, 64)]
Seconds = Annotated[float, Within(0, 1e12)]
# Of an agent. Orders may have any bytes in names of files and in variables.
Text = Annotated[str, IsUnicode()]
Address = Annotated[str, IsAddress()]
# The supervisor refuses a name that it has not given to this agent.
TaskName = Text
# Logs of a host that are not those of a task.
AGENT_LOG, PRELOADER_LOG = "@agent", "@preloader"
HoldMode = Literal["reuse_port", "reuse_addr"]
StacksSource = Literal["signal", "py-spy", "none"]
StartMethod = Literal["spawn", "fork"]
# Device and inode of a directory.
Identity = tuple[int, int]


# -- to an agent


@dataclass(frozen=True)
class Run:
    """Serve this run from now on.

    `log`: the file that gets the agent's own messages; "": they stay where they are. `directory`: that of the run; the
    agent opens no file of the run in another one. None: not checked. `environ` is what the run's tasks inherit, each
    byte as one character. `descriptors`: (name, task or None for all) of those that come with this message."""

    run_id: str
    failure_grace_s: Seconds
    log: str
    directory: Identity | None
    environ: Mapping[str, str]
    network: str
    descriptors: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class PreloadOrder:
    """Import `modules` in the interpreter `argv` (with its options), so that tasks can be forked from it.

    `env` is added to that of the run; `script_env` is what the script sets before it imports them. `runs_worker`: it
    gets the built-in program on its PYTHONPATH on another host. `installed_only`: without those that no package manager
    has installed."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    modules: tuple[str, ...]
    script_env: Mapping[str, str]
    log: str
    runs_worker: bool = False
    installed_only: bool = False


@dataclass(frozen=True)
class Hold:
    """Hold `count` ports for an attempt. The answer has the same number, which grows with each order."""

    number: Count
    count: Few
    mode: HoldMode


@dataclass(frozen=True)
class Plan:
    """The addresses of an attempt by role, in the order of their indexes."""

    cluster: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TaskOrder:
    """Start one task. With `role` and `index` it gets a TF_CONFIG made of the last Plan.

    `env` is added to that of the run. `bootstrap` holds the options of the code that is injected into the task's Python
    (None: nothing is injected). `fork`: from the preloader. `memory_limit`: of its PSS. `scratch`: a directory that the
    agent of another host creates. `runs_worker`: as in PreloadOrder. `is_helper`: it runs beside the tasks, and is
    neither measured nor a peer of them."""

    task: TaskName
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: str
    port: Port | None
    serves: bool
    bootstrap: Mapping[str, object] | None = None
    fork: bool = False
    memory_limit: Count | None = None
    scratch: str | None = None
    runs_worker: bool = False
    role: str | None = None
    index: Few | None = None
    is_helper: bool = False


@dataclass(frozen=True)
class Signal:
    """Send a signal to the process group of a task, unless it has just ended."""

    task: TaskName
    number: SignalNumber


@dataclass(frozen=True)
class TakeStacks:
    """Answer with one Stacked for each task; without tasks, for all. `native`: with py-spy if it is installed."""

    tasks: tuple[TaskName, ...]
    native: bool


@dataclass(frozen=True)
class Stop:
    """End all tasks of the attempt: SIGTERM, and SIGKILL after `grace_s`."""

    grace_s: Seconds


@dataclass(frozen=True)
class Credit:
    """So many bytes of logs have arrived: another host may send as many more."""

    count: Count


# -- in both directions, to and from another host


@dataclass(frozen=True)
class Ping:
    """`echo`: `mono` of the newest ping that the sender has received, `held_s` seconds before this one; None before the
    first."""

    mono: Seconds
    echo: Seconds | None = None
    held_s: Seconds = 0.0


# -- from an agent


@dataclass(frozen=True)
class Gpu:
    """A GPU of another host. `name` is its index."""

    name: Text
    uuid: Text
    model: Text
    memory_bytes: Count | None


@dataclass(frozen=True)
class HostFacts:
    """What is known of another host only.

    `directory`: the agent's own, in which all files of its tasks are. `addresses`: {interface: address}. `reached`: the
    address at which ssh or srun reached the host. `allowed_cores`: of the agent. `gpu_lack`: why the GPUs cannot be
    listed."""

    directory: Text
    addresses: Mapping[Text, Address]
    reached: Address | None
    memory_bytes: Count
    gpus: tuple[Gpu, ...]
    gpu_lack: Text | None
    python: Text
    allowed_cores: tuple[Few, ...]


@dataclass(frozen=True)
class Hello:
    """`cores`: of this host. `facts`: None on the supervisor's own."""

    host: Text
    pid: Pid
    cores: Annotated[int, Within(1, 1 << 20)]
    facts: HostFacts | None = None


@dataclass(frozen=True)
class Begun:
    run_id: Text


@dataclass(frozen=True)
class Held:
    number: Count
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class HoldFailed:
    reason: Text


@dataclass(frozen=True)
class Preloaded:
    """`seconds` since the order; 0 if an earlier run had preloaded these modules."""

    modules: tuple[Text, ...]
    seconds: Seconds


@dataclass(frozen=True)
class NotPreloaded:
    """Tasks are spawned. With `again`, the modules are preloaded again: those of an earlier run do not fit."""

    reason: Text
    again: bool = False


@dataclass(frozen=True)
class Started:
    """`start_ticks` of the process: clock ticks since boot."""

    task: TaskName
    pid: Pid
    start_ticks: Count
    method: StartMethod


@dataclass(frozen=True)
class StartFailed:
    """`exit_code`: the one that a shell would return."""

    task: TaskName
    exit_code: ExitCode
    reason: Text


@dataclass(frozen=True)
class Listening:
    task: TaskName


@dataclass(frozen=True)
class ProgressMade:
    """`progress` is JSON text as the task wrote it, so that invalid progress cannot break a message."""

    task: TaskName
    progress: Text


@dataclass(frozen=True)
class Usage:
    """CPU and GPU in percent of one, memory as PSS. None: not known. `stop_signal` has stopped the task."""

    cpu_percent: Annotated[float, Within(0, 1e9)]
    memory_bytes: Count
    gpu_percent: Annotated[float, Within(0, 1e9)] | None = None
    gpu_memory_bytes: Count | None = None
    stop_signal: SignalNumber | None = None


@dataclass(frozen=True)
class Sampled:
    tasks: Mapping[TaskName, Usage]


@dataclass(frozen=True)
class ExitFacts:
    """The end of a task's process.

    mono: when the agent saw it
    asked: the agent had sent it a signal
    peers: {task: state letter (man 5 proc)} of the other tasks at the first failure
    oom_kills: processes that the kernel killed for lack of memory while it ran; None if unknown
    peak_bytes: the largest RSS of one of its processes
    """

    exit_code: ExitCode | None
    signal: SignalNumber | None
    mono: Seconds
    asked: bool = False
    peers: Mapping[TaskName, Annotated[str, Matches(r"[A-Za-z?]?")]] = field(default_factory=dict)
    oom_kills: Count | None = None
    peak_bytes: Count | None = None


@dataclass(frozen=True)
class Exited:
    """`exception`: the text of the task's exception file. From another host only, where this message follows the last
    byte of the task's log."""

    task: TaskName
    exit: ExitFacts
    exception: Text | None = None


@dataclass(frozen=True)
class DiskFull:
    """A task failed, and its disk is full: `reason` names the directory."""

    task: TaskName
    reason: Text


@dataclass(frozen=True)
class Stacked:
    """The stacks of one task, at most about 2 s after they were asked for.

    `native`: as asked for. `state`: the letter of the process. `text` is cut at 256 KiB; if a file on the supervisor's
    host contains it already, `file`, `offset` and `length` locate it."""

    task: TaskName
    native: bool
    how: StacksSource
    state: Text | None = None
    text: Text = ""
    note: Text | None = None
    file: Text | None = None
    offset: Count = 0
    length: Count = 0


@dataclass(frozen=True)
class Log:
    """Bytes of a log on another host, in the order of the file. `is_cut`: the task has shortened it to `offset`."""

    task: TaskName
    offset: Count
    data: bytes
    is_cut: bool = False


@dataclass(frozen=True)
class Notice:
    """Slurm will end the step that the agent is in."""


@dataclass(frozen=True)
class LeftProcess:
    """A process that was not ended, because it runs under another user."""

    pid: Pid
    start_ticks: Count
    user: Text
    command: Text


@dataclass(frozen=True)
class Empty:
    """No process of the attempt is left on the host, but for those in `left`. `swept`: that had outlived their tasks.

    `unsent`: {task: bytes at the end of its log that another host left out, because the link was too slow}."""

    swept: Few
    left: tuple[LeftProcess, ...] = ()
    unsent: Mapping[TaskName, Count] = field(default_factory=dict)


ToAgent = Run | PreloadOrder | Hold | Plan | TaskOrder | Signal | TakeStacks | Stop | Credit | Ping
AboutTask = Started | StartFailed | Listening | ProgressMade | Exited | DiskFull | Stacked
FromAgent = (
    Hello
    | Begun
    | Held
    | HoldFailed
    | Preloaded
    | NotPreloaded
    | Sampled
    | AboutTask
    | Log
    | Notice
    | Empty
    | Ping
)

decode_order = decoder(*get_args(ToAgent))
decode_report = decoder(*get_args(FromAgent))
