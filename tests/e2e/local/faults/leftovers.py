"""Checks that a run that has ended left no process, port, lock or file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from cells import Kind, Who, require
from scene import Scene
from waiting import lives

from orchestrator.core.state import events as kinds
from orchestrator.store.logs.merge import LogReader
from orchestrator.store.runs import locks
from orchestrator.store.runs.paths import names_dir, runs_dir

# Seconds for a process to exit on a busy machine.
GONE_WITHIN_S = 60.0
_LOOK_S = 0.01
_OWN_PROCESSES = ("orchestrator.supervisor", "worker.agent.agent", "preloader")

T = TypeVar("T")


def require_no_task_left(scene: Scene) -> None:
    """CellFailure if a task is left right at the end of the run. orch's own processes may still be exiting."""
    own = {scene.pid_of(Who.SUPERVISOR), scene.pid_of(Who.AGENT), scene.pid_of(Who.CLIENT)}
    left = [describe(pid) for pid in scene.seen - own if lives(pid) and not _is_orchs(pid)]
    require(not left, Kind.PROCESS, f"at the end: {left}")


def require_nothing_left(scene: Scene) -> None:
    """CellFailure if anything of the run is left after a while."""
    _until_none(lambda: [describe(pid) for pid in scene.seen if lives(pid)], Kind.PROCESS)
    _until_none(lambda: list(of_the_run(scene.run.id)), Kind.PROCESS)
    _until_none(lambda: [each for each in _held_here(scene) if not _is_free(each)], Kind.PORT)
    paths = scene.run.view.paths
    require(not paths.scratch.exists(), Kind.FILE, paths.scratch)
    require(not paths.control.exists(), Kind.FILE, paths.control)
    # A supervisor that was killed while it made a run leaves its directory, which a later command removes.
    hidden = [] if "no more memory" in scene.cell.fault else list(runs_dir().glob(".*"))
    require(not hidden, Kind.FILE, hidden)
    # The supervisor releases its locks when it exits.
    locked = [paths.lock, *names_dir().glob("*")]
    _until_none(lambda: [lock for lock in locked if locks.is_held(lock)], Kind.LOCK)
    temporary = os.environ.get("TMPDIR")
    left = list(Path(temporary).iterdir()) if temporary is not None else []
    require(not left, Kind.FILE, left)


def _until_none(look: Callable[[], list[T]], kind: Kind) -> None:
    """Wait until `look` returns nothing; CellFailure with what is left."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := look():
        require(time.monotonic() < deadline, kind, left)
        time.sleep(_LOOK_S)


def _held_here(scene: Scene) -> set[str]:
    """The run's addresses on this machine's network.

    A private network is gone with its last process, and the same port outside belongs to another program.
    """
    if scene.cell.options.get("network") == "private":
        return set()
    last_addresses = scene.addresses() if scene.run.view.paths.events.exists() else []
    return scene.seen_addresses.union(last_addresses)


def require_whole_events(scene: Scene) -> None:
    """CellFailure unless there is one end event, and one exit for each start while the agent was there."""
    events = scene.events()
    types = [event.type for event in events]
    require(types.count("run_ended") == 1 and types[-1] == "run_ended", Kind.EVENTS, types)
    _require_times_in_order(events)
    if any(isinstance(event, kinds.AgentLost) for event in events):
        return
    began = [event.task for event in events if isinstance(event, kinds.TaskStarted)]
    ended = [event.task for event in events if isinstance(event, kinds.TaskExited)]
    require(sorted(began) == sorted(ended), Kind.EVENTS, f"started {began}, exited {ended}")


def require_whole_logs(scene: Scene) -> None:
    """CellFailure unless the reader returns each task's log as it was written."""
    logs = scene.run.view.paths.root / "logs"
    is_plain = scene.run.view.result() is not None and "truncates" not in scene.cell.breaks
    if not is_plain or not logs.exists() or scene.run.status().run.attempt != 1:
        return
    replayed: dict[str, bytes] = {}
    with closing(LogReader(logs)) as reader:
        while chunks := reader.read(1 << 20) or reader.read_unindexed(1 << 20):
            for chunk in chunks:
                replayed[chunk.task] = replayed.get(chunk.task, b"") + chunk.data
    written = {task.task: scene.run.log(task.task) for task in scene.run.status().tasks}
    for task, log in written.items():
        data = log.read_bytes() if log.exists() else b""
        require(replayed.get(task, b"") == data, Kind.EVENTS, f"the log of {task} is read in another way")


def _require_times_in_order(events: Sequence[kinds.Event]) -> None:
    times: set[float] = set()
    latest = 0.0
    for event in events:
        # An event that follows from another one has exactly its time, although others may come between them.
        is_in_order = event.mono >= latest or event.mono in times
        require(is_in_order, Kind.EVENTS, f"{latest - event.mono} s before an earlier one: {event}")
        times.add(event.mono)
        # They are written before the event of the exit, which has the time when the exit was noticed.
        if not isinstance(event, kinds.StacksTaken):
            latest = max(latest, event.mono)


def of_the_run(run_id: str) -> Iterator[str]:
    """Describe every process that has the run's id in its environment."""
    mark = os.fsencode(f"ORCH_RUN_ID={run_id}\0")
    for pid in psutil.pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and lives(pid):
                yield describe(pid)


def describe(pid: int) -> str:
    try:
        return f"{pid} {psutil.Process(pid).cmdline()}"
    except psutil.Error:
        return str(pid)


def _is_orchs(pid: int) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return True
    return not words or any(name in word for word in words for name in _OWN_PROCESSES)


def _is_free(address: str) -> bool:
    """Whether the run has released the port; another program may already use it."""
    port = int(address.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return _is_used_by_another_program(port)
    return True


def _is_used_by_another_program(port: int) -> bool:
    state = os.fsencode(f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}\0")
    for connection in psutil.net_connections("inet"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            with suppress(OSError):
                return state not in Path(f"/proc/{connection.pid}/environ").read_bytes()
    # The kernel's list does not show the owner of a port that is only bound.
    return False
