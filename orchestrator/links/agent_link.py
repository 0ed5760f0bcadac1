"""The agent protocol: JSON lines over the byte stream that an engine opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.hosts import Address
from orchestrator.core.progress.reported import parse_progress
from orchestrator.core.state.events import ProcessOrigin, Progress
from orchestrator.core.state.result import LeftProcess
from orchestrator.links.client_link import Descriptor
from orchestrator.links.stream import LinkBack, LinkSilent, Stream


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    run_id: str


class TaskMessage(_Message):
    """A report about one task."""

    task: str


class HostGpu(BaseModel):
    """A GPU, as Gpu in core/job/gpus.py."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    name: str
    uuid: str
    model: str
    memory_bytes: int | None


class Hello(_Message):
    """The rest is known of another host only. `directory`: the agent's own, in which all files of its tasks are.

    `addresses`: {interface: address}. `ssh_address`: the one at which ssh reached the host. `allowed_cores`: of this
    process. `gpu_lack`: why the GPUs cannot be listed."""

    type: Literal["hello"]
    host: str
    pid: int
    cores: int
    directory: str | None = None
    addresses: dict[str, Address] = {}
    ssh_address: Address | None = None
    memory_bytes: int | None = None
    gpus: tuple[HostGpu, ...] = ()
    gpu_lack: str | None = None
    python: str | None = None
    allowed_cores: tuple[int, ...] = ()


class Held(_Message):
    type: Literal["held"]
    attempt: int
    ports: tuple[int, ...]


class HoldFailed(_Message):
    type: Literal["hold_failed"]
    reason: str


class Preloaded(_Message):
    """`seconds` since the preload order; 0 if an earlier run had preloaded these modules."""

    type: Literal["preloaded"]
    modules: tuple[str, ...]
    seconds: float


class NotPreloaded(_Message):
    """Tasks are spawned. With `again`, the modules are preloaded again: those of an earlier run do not fit."""

    type: Literal["not_preloaded"]
    reason: str
    again: bool = False


class Started(TaskMessage):
    type: Literal["started"]
    pid: int
    start_ticks: int
    method: ProcessOrigin = "spawn"


class StartFailed(TaskMessage):
    type: Literal["start_failed"]
    exit_code: int
    reason: str
    order: int | None = None


class Listening(TaskMessage):
    type: Literal["listening"]


class ProgressMade(TaskMessage):
    """`progress` is JSON text as the task wrote it; checked() is None if it is not valid progress."""

    type: Literal["progress"]
    progress: str

    def checked(self) -> Progress | None:
        return parse_progress(self.progress)


class Usage(BaseModel):
    """CPU in percent of one core, memory in bytes (PSS), GPUs in percent of one (None: not known). `stop_signal`: the
    signal that has stopped the task."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    cpu_percent: float
    memory_bytes: int
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    stop_signal: int | None = None


class Sampled(_Message):
    type: Literal["sample"]
    mono: float
    tasks: dict[str, Usage]


class Exited(TaskMessage):
    """`oom_kills`, `peak_bytes` and `cpu_limit_s` as in TaskExited.

    `asked`: the agent had sent it a signal. `exception`: the text of its exception file, from another host only, where
    this message follows the last byte of the task's log."""

    type: Literal["exited"]
    exit_code: int | None
    signal: int | None
    order: int
    mono: float
    peers: dict[str, str]
    oom_kills: int | None = None
    peak_bytes: int | None = None
    cpu_limit_s: int | None = None
    asked: bool = False
    exception: str | None = None


class DiskFull(TaskMessage):
    """As the event DiskFull."""

    type: Literal["disk_full"]
    reason: str


class Stacked(TaskMessage):
    """The stacks of one task, at most about 2 s after they were asked for.

    `native`: as asked for. `text` is cut at 256 KiB; if a file on the task's host already contains it, `file`, `offset`
    and `length` locate it.
    """

    type: Literal["stacked"]
    native: bool = False
    how: Literal["signal", "py-spy", "none"]
    state: str | None = None
    text: str = ""
    note: str | None = None
    file: str | None = None
    offset: int = 0
    length: int = 0


class LogBytes(_Message):
    """Bytes of a log on another host, in the order of the file. `is_cut`: the task has shortened its log to `offset`.

    `task` is also "@agent" or "@preloader", for the log of these."""

    type: Literal["log"]
    task: str
    offset: int = Field(ge=0)
    data: Base64Bytes
    is_cut: bool = False


class StepEnds(_Message):
    """Slurm will end the step that the agent is in."""

    type: Literal["notice"]


class Empty(_Message):
    """No process of the attempt is left on the host, but for those in `left`, which run under another user.

    `unsent`: {task: bytes at the end of its log that another host left out, because the link was too slow}."""

    type: Literal["empty"]
    swept: int
    left: tuple[LeftProcess, ...] = ()
    unsent: dict[str, int] = {}


_Sent = (
    Hello
    | Held
    | HoldFailed
    | Preloaded
    | NotPreloaded
    | Started
    | StartFailed
    | Listening
    | ProgressMade
    | Sampled
    | Exited
    | DiskFull
    | Stacked
    | LogBytes
    | StepEnds
    | Empty
)
# Messages of an agent, and reports of its link about itself.
AgentMessage = _Sent | LinkSilent | LinkBack
# Each run of a session has its own id, and pydantic would cache the last 16,384 of them.
_ADAPTER: TypeAdapter[_Sent] = TypeAdapter(
    Annotated[_Sent, Field(discriminator="type")], config=ConfigDict(cache_strings="keys", defer_build=True)
)


@dataclass(frozen=True)
class StartOrder:
    """Start one task. With `role` and `index` it gets a TF_CONFIG made of the last `plan`.

    `env` is added to the agent's environment; `bootstrap` holds the options of the code that is injected into the
    task's Python (None: nothing is injected); `fork`: from the preloader; `memory_limit`: bytes (PSS), None for none.
    `scratch`: a directory that the agent of another host creates; `runs_worker`: it puts the built-in program on the
    task's PYTHONPATH."""

    task: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: str
    port: int | None
    serves: bool
    bootstrap: Mapping[str, object] | None = None
    fork: bool = False
    memory_limit: int | None = None
    scratch: str | None = None
    runs_worker: bool = False
    role: str | None = None
    index: int | None = None


@dataclass(frozen=True)
class PreloadOrder:
    """Import `modules` in the interpreter `argv` (with its options), so that tasks can be forked from it.

    `runs_worker`: as in StartOrder. `installed_only`: without those that no package manager has installed."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    modules: tuple[str, ...]
    script_env: Mapping[str, str]
    log: str
    runs_worker: bool = False
    installed_only: bool = False


class PlanOrder:
    """The addresses of an attempt by role. Every agent gets the same bytes, which are made once."""

    def __init__(self, attempt: int, cluster: Mapping[str, Sequence[str]]) -> None:
        self._fields = {"attempt": attempt, "cluster": cluster}
        self._lines: dict[str, bytes] = {}

    def line(self, run_id: str) -> bytes:
        if run_id not in self._lines:
            self._lines[run_id] = _line("plan", run_id, self._fields)
        return self._lines[run_id]


class AgentLink:
    """The supervisor's end of one agent's stream. Neither reading nor writing blocks.

    Call read() when `fileno()` is readable, or at `due` (monotonic seconds; None: only when readable). Each order
    returns False if the agent is gone; read() then returns the end of the stream, and `lost_reason` says why it ended
    if that is known.
    """

    def __init__(self, stream: Stream, run_id: str) -> None:
        self._stream = stream
        self._run_id = run_id
        self._fault: str | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def due(self) -> float | None:
        return self._stream.due

    @property
    def clock(self) -> tuple[float, float]:
        """The agent's monotonic clock minus ours, and the largest error of that: seconds."""
        return self._stream.clock

    @property
    def lost_reason(self) -> str | None:
        """Why the stream has ended; None if it is open, or ended without a known reason."""
        return self._fault or self._stream.lost_reason

    def leave(self) -> None:
        """Order the agent to end everything and to exit. read() returns the end of the stream when it has."""
        self._stream.leave()

    def close(self) -> None:
        """Close the stream. An agent on this machine then kills everything it started and exits."""
        self._stream.close()

    def serve(
        self,
        run_id: str,
        failure_grace_s: float,
        log: str,
        run_directory: tuple[int, int] | None,
        environ: Mapping[str, str],
        network: NetworkOption,
        descriptors: Sequence[Descriptor] = (),
    ) -> bool:
        """Give a run to an agent that has none, or whose last run has ended.

        `run_directory`: device and inode. The agent opens no file of the run in another one. None: not checked.
        `environ` (packed) is what the run's tasks inherit. An agent can enter a private network but not leave it.
        `descriptors` are those that the stream passes with this order.
        """
        if not self._stream.is_open:
            return False
        self._run_id = run_id
        return self._send(
            "run",
            failure_grace_s=failure_grace_s,
            log=log,
            run_directory=run_directory,
            environ=environ,
            network=network.value,
            descriptors=[(each.name, each.task) for each in descriptors],
        )

    def read(self) -> tuple[list[AgentMessage], bool]:
        """Return (messages that have arrived, whether the stream is open). Messages of other runs are dropped.

        A message that cannot be read ends the stream; those before it are returned.
        """
        if self._fault is not None:
            return [], False
        messages: list[AgentMessage] = []
        try:
            lines, is_open = self._stream.read()
            for line in lines:
                if not isinstance(line, bytes):
                    messages.append(line)
                    continue
                message = _ADAPTER.validate_json(line)
                # An agent of another host introduces itself before it knows its run.
                if message.run_id == self._run_id or isinstance(message, Hello):
                    messages.append(message)
        except ValueError as error:
            self._fault = f"the agent sent a message that this version cannot read: {error}"
            is_open = False
        return messages, is_open

    def hold(self, attempt: int, count: int, mode: str) -> bool:
        """Hold `count` ports for an attempt."""
        return self._send("hold", attempt=attempt, count=count, mode=mode)

    def plan(self, order: PlanOrder) -> bool:
        """Give the addresses, before the tasks of an attempt are started."""
        return self._send_line(order.line(self._run_id))

    def start(self, order: StartOrder) -> bool:
        return self._send("start", **vars(order))

    def preload(self, order: PreloadOrder) -> bool:
        return self._send("preload", **vars(order))

    def signal(self, task: str, number: int) -> bool:
        """Send a signal to the task's process group; ignored if the task has just ended."""
        return self._send("signal", task=task, signal=number)

    def stacks(self, tasks: tuple[str, ...], native: bool) -> bool:
        """Ask for the stacks of tasks, one `stacked` for each. `native`: with py-spy if it is installed."""
        return self._send("stacks", tasks=tasks, native=native)

    def stop(self, grace_s: float) -> bool:
        return self._send("stop", grace_s=grace_s)

    def _send(self, kind: str, **fields: object) -> bool:
        return self._send_line(_line(kind, self._run_id, fields))

    def _send_line(self, line: bytes) -> bool:
        return self._fault is None and self._stream.send(line)


def _line(kind: str, run_id: str, fields: Mapping[str, object]) -> bytes:
    # default=dict: json does not know read-only mappings.
    return json.dumps({"type": kind, "run_id": run_id, **fields}, default=dict).encode() + b"\n"
