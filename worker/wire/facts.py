"""Facts in an agent's messages that the report shows, too, and the types of their fields. Times are monotonic seconds
of the agent's host, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from worker.wire.codec import BadMessage, Within


class IsUnicode:
    """The text has no lone surrogates, so that it can be written anywhere."""

    def check(self, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadMessage(f"{value[:60]!r} is not Unicode") from None


class IsLetter:
    """The text is a letter, a question mark, or empty."""

    def check(self, value: str) -> None:
        if value not in ("", "?") and not (len(value) == 1 and value.isascii() and value.isalpha()):
            raise BadMessage(f"{value[:60]!r} is not a letter")


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
Cores = Annotated[int, Within(1, 1 << 20)]
# The largest pid of Linux.
Pid = Annotated[int, Within(1, 1 << 22)]
Port = Annotated[int, Within(1, 65535)]
ExitCode = Annotated[int, Within(0, 255)]
SignalNumber = Annotated[int, Within(1, 64)]
Seconds = Annotated[float, Within(0, 1e12)]
# Text from an agent. Orders may have any bytes in names of files and in variables.
Text = Annotated[str, IsUnicode()]
Address = Annotated[str, IsAddress()]
# The supervisor refuses a name that it has not given to this agent.
TaskName = Text
HoldMode = Literal["reuse_port", "reuse_addr"]
StacksSource = Literal["signal", "py-spy", "none"]
StartMethod = Literal["spawn", "fork"]
# Device and inode of a directory.
Identity = tuple[int, int]


@dataclass(frozen=True)
class Gpu:
    """A GPU of another host. `name` is its index."""

    name: Text
    uuid: Text
    model: Text
    memory_bytes: Count | None


@dataclass(frozen=True)
class HostFacts:
    """The facts that an agent reports about another host only.

    directory: that of the agent, with all files of its tasks
    machine: equal for two names of one host
    addresses: {interface: address}
    reached: the address at which ssh or srun reached the host
    gpu_lack: why the GPUs cannot be listed
    allowed_cores: of the agent
    """

    directory: Text
    machine: tuple[Text, ...]
    addresses: Mapping[Text, Address]
    reached: Address | None
    memory_bytes: Count
    gpus: tuple[Gpu, ...]
    gpu_lack: Text | None
    python: Text
    allowed_cores: tuple[Few, ...]


@dataclass(frozen=True)
class Usage:
    """CPU and GPU in percent of one, memory as PSS. None: not known. `stop_signal` has stopped the task."""

    cpu_percent: Annotated[float, Within(0, 1e9)]
    memory_bytes: Count
    gpu_percent: Annotated[float, Within(0, 1e9)] | None = None
    gpu_memory_bytes: Count | None = None
    stop_signal: SignalNumber | None = None


@dataclass(frozen=True)
class ExitFacts:
    """The end of a task's process.

    mono: when the agent saw it; in the records of a run, by the supervisor's clock, within `clock_error_s`
    start_error: why no process could be started; `exit_code` is then the one that a shell would return
    asked: the agent had sent it a signal
    peers: {task: state letter (man 5 proc)} of the other tasks at the first failure
    oom_kills: processes that the kernel killed for lack of memory while it ran; None if unknown
    peak_bytes: the largest RSS of one of its processes
    over_limit: (memory in PSS, limit), both in bytes, if the agent killed it because it used more than its limit
    """

    exit_code: ExitCode | None
    signal: SignalNumber | None
    mono: Seconds
    clock_error_s: Seconds = 0.0
    start_error: Text | None = None
    asked: bool = False
    peers: Mapping[TaskName, Annotated[str, IsLetter()]] = field(default_factory=dict)
    oom_kills: Count | None = None
    peak_bytes: Count | None = None
    over_limit: tuple[Count, Count] | None = None


@dataclass(frozen=True)
class LeftProcess:
    """A process that was not ended, because it runs under another user."""

    pid: Pid
    start_ticks: Count
    user: Text
    command: Text
