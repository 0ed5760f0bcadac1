"""Faults that are injected into a run from outside. Each waits until it has taken effect."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from scene import Scene, Who
from waiting import PATIENCE_S, lives, until

from orchestrator.client import api
from orchestrator.core.state.events import SignalRequested
from orchestrator.core.state.state import RunPhase
from orchestrator.links import control
from orchestrator.links.control import KillOrder, RestartOrder

Injection = Callable[[Scene], None]
_TASKS = (Who.VICTIM, Who.PEERS)


def send(who: Who, number: signal.Signals) -> Injection:
    """Send a signal to a process; for tasks to the leader, not the group."""

    def inject(scene: Scene) -> None:
        pids = scene.task_pids(who) if who in _TASKS else [scene.pid_of(who)]
        assert pids and None not in pids, f"there is no {who}"
        for nth, pid in enumerate(pids):
            assert pid is not None
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                assert nth > 0  # the first exit may have caused the others
            if number == signal.SIGSTOP:
                until(lambda pid=pid: _letter(pid) in "TtZX")  # type: ignore[misc]

    return inject


def wait_until_gone(who: Who) -> Injection:
    """Wait until those tasks have exited."""

    def inject(scene: Scene) -> None:
        pids = scene.task_pids(who)
        until(lambda: not any(lives(pid) for pid in pids))

    return inject


def kill_supervisor_and_agent(scene: Scene) -> None:
    """Kill supervisor and agent so that neither can react to the other's exit."""
    pids = [scene.pid_of(Who.AGENT), scene.pid_of(Who.SUPERVISOR)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            assert pid is not None
            os.kill(pid, number)


def touch(name: str) -> Injection:
    return lambda scene: scene.touch(name)


def stopping(scene: Scene) -> None:
    """Wait until orch is stopping the run."""
    until(lambda: scene.run.status().run.state == RunPhase.STOPPING or scene.has_ended())


def wait_for_state(task_state: str) -> Injection:
    """Wait until orch knows that the victim is in this state."""

    def inject(scene: Scene) -> None:
        def is_so() -> bool:
            states = {task.task: task.state for task in scene.run.status().tasks}
            return states[scene.victim_name] == task_state

        until(lambda: is_so() or scene.has_ended())

    return inject


def stop(scene: Scene) -> None:
    scene.order_stop()


def stop_by_force(scene: Scene) -> None:
    scene.order_stop(force=True)


def downs_at_once(scene: Scene) -> None:
    """Run four `orch down` at the same time, and wait for all."""
    runs = [api.find(scene.run.id) for _ in range(4)]
    threads = [threading.Thread(target=run.down) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def restart(scene: Scene) -> None:
    """`orch restart`."""
    answer = control.ask(scene.run.view.paths.control, RestartOrder(), PATIENCE_S)
    assert answer is not None and answer["ok"], answer


def restart_is_refused(scene: Scene) -> None:
    answer = control.ask(scene.run.view.paths.control, RestartOrder(), PATIENCE_S)
    assert answer is not None and not answer["ok"], answer


def kill_order(scene: Scene) -> None:
    """`orch kill` of the victim."""
    order = KillOrder(task=scene.victim_name, signal=signal.SIGKILL)
    answer = control.ask(scene.run.view.paths.control, order, PATIENCE_S)
    assert answer is not None and answer["ok"], answer


def wait_for_planned_stop(scene: Scene) -> None:
    """Wait until a planned fault has stopped a task and continued it: the stop itself may be too short to see."""

    def is_so() -> bool:
        return any(
            isinstance(event, SignalRequested) and event.signal == signal.SIGCONT for event in scene.events()
        )

    until(lambda: is_so() or scene.has_ended())


def bind_task_ports(scene: Scene) -> None:
    """Check that another program cannot bind the tasks' ports."""
    for address in scene.addresses():
        host, _, port = address.rpartition(":")
        with socket.socket() as other:
            try:
                other.bind((host, int(port)))
            except OSError:
                continue
        raise AssertionError(f"{address} could be bound")


def delete_run_directory(scene: Scene) -> None:
    def is_gone() -> bool:
        # A file may be written into it meanwhile.
        shutil.rmtree(scene.run.dir, ignore_errors=True)
        return not scene.run.dir.exists()

    until(is_gone)


def fill_disk(_: Scene) -> None:
    """Fill the disk with orch's own files."""
    state = Path(os.environ["XDG_STATE_HOME"])
    with (state / "filler").open("ab", buffering=0) as filler:
        while (found := os.statvfs(state)).f_bavail:
            try:
                filler.write(b"\0" * min(found.f_bavail * found.f_frsize, 1 << 16))
            except OSError:
                return


def connect_from_outside(scene: Scene) -> None:
    """Check that the tasks' addresses refuse connections from outside their network."""
    addresses = scene.addresses()
    assert addresses
    for address in addresses:
        host, _, port = address.rpartition(":")
        with socket.socket() as caller:
            caller.settimeout(60.0)
            refused = caller.connect_ex((host, int(port)))
        assert refused == errno.ECONNREFUSED, f"{address}: {os.strerror(refused)}"


def take_stacks(scene: Scene) -> None:
    """Check that `orch stacks` shows where the script makes each task wait.

    A stopped task can only be read by py-spy, where that is installed and allowed; otherwise it is reported as stopped.
    """
    stacks = scene.run.stacks()
    assert len(stacks) == scene.workers, stacks
    for task, stack in stacks.items():
        is_shown = any("staged_task.py" in frame for frame in stack.frames)
        assert is_shown or (stack.how, stack.state) == ("none", "T"), f"{task}: {stack}"


def send_invalid_orders(scene: Scene) -> None:
    """Send to the control socket an invalid, an incomplete and an overlong order."""
    directory = os.open(scene.run.dir, os.O_PATH | os.O_DIRECTORY)
    try:
        for data in (b"\xff\xfe\n", b'{"op": "stop"', b"x" * 100_000, b'{"op": "format disk"}\n', b""):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(60.0)
                client.connect(f"/proc/self/fd/{directory}/control")
                try:
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    client.recv(1 << 16)
                except OSError:
                    continue
    finally:
        os.close(directory)


def in_sequence(*injections: Injection) -> Injection:
    def inject(scene: Scene) -> None:
        for each in injections:
            each(scene)

    return inject


def _letter(pid: int) -> str:
    """The state of a process (man 5 proc); X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
