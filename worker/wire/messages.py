"""The messages between the supervisor and an agent. Times are monotonic seconds of the sender's host, sizes bytes.

An agent begins with Hello. Each run begins with Run, which it answers with Begun: what it sent before belongs to an
earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from worker.wire.checks import Checked, Question
from worker.wire.codec import decoder
from worker.wire.facts import (
    Cores,
    Count,
    ExitFacts,
    Few,
    HoldMode,
    HostFacts,
    Identity,
    LeftProcess,
    Pid,
    Port,
    Seconds,
    SignalNumber,
    StacksSource,
    StartMethod,
    TaskName,
    Text,
    Usage,
)

# Logs of a host that are not those of a task.
AGENT_LOG, PRELOADER_LOG = "@agent", "@preloader"


# -- to an agent

# On another host: the rest of such a word is a path in what orch has sent there.
IN_BUNDLE = "orch-bundle:"


@dataclass(frozen=True)
class Run:
    """Serve this run from now on.

    `log`: the file for the agent's own messages; "": they stay where they are. `directory`: that of the run; the agent
    opens no file of the run in another one. None: not checked. `environ` is what the run's tasks inherit, each
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

    `env` is added to that of the run; `script_env` is what the script sets before it imports them.
    `installed_only`: only modules that a package manager has installed."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    modules: tuple[str, ...]
    script_env: Mapping[str, str]
    log: str
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
    agent of another host creates. `is_helper`: it runs beside the tasks, and is neither measured nor a
    peer of them. A word of `argv` that begins with IN_BUNDLE names a file of the bundle."""

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
    """`count` bytes of logs have arrived: the agent of another host may send as many more."""

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
class Hello:
    """`cores`: of this host. `facts`: None on the supervisor's own."""

    host: Text
    pid: Pid
    cores: Cores
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
class Listening:
    task: TaskName


@dataclass(frozen=True)
class ProgressMade:
    """`progress` is JSON text as the task wrote it, so that invalid progress cannot break a message."""

    task: TaskName
    progress: Text


@dataclass(frozen=True)
class Sampled:
    tasks: Mapping[TaskName, Usage]


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
class Empty:
    """No process of the attempt is left on the host, but for those in `left`. `swept`: number that had outlived tasks.

    `unsent`: {task: bytes at the end of its log that another host left out, because the link was too slow}."""

    swept: Few
    left: tuple[LeftProcess, ...] = ()
    unsent: Mapping[TaskName, Count] = field(default_factory=dict)


ToAgent = Run | Question | PreloadOrder | Hold | Plan | TaskOrder | Signal | TakeStacks | Stop | Credit | Ping
AboutTask = Started | Listening | ProgressMade | Exited | DiskFull | Stacked
FromAgent = (
    Hello
    | Begun
    | Checked
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
