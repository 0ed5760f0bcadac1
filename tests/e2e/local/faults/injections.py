"""The faults that are injected into a run from outside. Each waits until it has taken effect."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from pathlib import Path

from cells import Injection, Moment, Who
from kept_scene import (
    fill_disk,
    make_room,
    remove_place,
    run_beside,
    run_is_refused,
    show_pressure,
    take_memory,
)
from scene import Scene
from waiting import PATIENCE_S, lives, until

from orchestrator.client import api
from orchestrator.core.state.events import SignalRequested
from orchestrator.core.state.state import RunPhase
from orchestrator.links import control
from orchestrator.links.orders import KillOrder, RestartOrder

_TASKS = (Who.VICTIM, Who.PEERS)


def injection_of(fault: str) -> Injection:
    """The steps before the semicolon, one after another. KeyError if one is unknown."""
    steps = [_step(words) for words in fault.partition("; ")[0].split(", ")]

    def inject(scene: Scene) -> None:
        for step in steps:
            step(scene)

    return inject


def _step(words: str) -> Injection:
    if words not in _STEPS and (found := re.fullmatch(r"(SIG[A-Z]+) of (.*)", words)):
        return send(_WHO[found[2]], signal.Signals[found[1]])
    if found := re.fullmatch(r"(the \w+) gets no more memory", words):
        return take_memory(_WHO[found[1]])
    return _do_nothing if words.startswith("a worker ") and words not in _STEPS else _STEPS[words]


def _do_nothing(_: Scene) -> None:
    """The fault is one of the task itself."""


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
            elif number == signal.SIGKILL and scene.moment is Moment.BETWEEN:
                until(lambda pid=pid: not lives(pid))  # type: ignore[misc]

    return inject


def kill_a_worker(scene: Scene) -> None:
    pids = scene.task_pids(Who.VICTIM)
    send(Who.VICTIM, signal.SIGKILL)(scene)
    until(lambda: not any(lives(pid) for pid in pids))


def kill_supervisor_and_agent(scene: Scene) -> None:
    """Kill supervisor and agent so that neither can react to the other's exit."""
    pids = [scene.pid_of(Who.AGENT), scene.pid_of(Who.SUPERVISOR)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            assert pid is not None
            os.kill(pid, number)


def press_ctrl_c(scene: Scene) -> None:
    if scene.terminal is None:
        send(Who.CLIENT, signal.SIGINT)(scene)
    else:
        os.write(scene.terminal, b"\x03")


def press_ctrl_c_twice(scene: Scene) -> None:
    press_ctrl_c(scene)
    until(lambda: scene.run.status().run.state == RunPhase.STOPPING or scene.has_ended())
    press_ctrl_c(scene)


def lose_the_victim(scene: Scene) -> None:
    """Let the peers fail as TensorFlow's do, once the victim has exited and orch knows it, or is stopped."""

    def is_away() -> bool:
        states = {task.task: task.state for task in scene.run.status().tasks}
        return states[scene.victim_name] == "succeeded" or all(
            _letter(pid) == "T" for pid in scene.task_pids(Who.VICTIM)
        )

    until(lambda: is_away() or scene.has_ended())
    scene.touch("lost")


def downs_at_once(scene: Scene) -> None:
    """Run four `orch down` at the same time, and wait for all."""
    runs = [api.find(scene.run.id) for _ in range(4)]
    threads = [threading.Thread(target=run.down) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def order(name: str, is_taken: bool = True) -> Injection:
    """Send an order to restart the tasks or to kill the victim."""

    def inject(scene: Scene) -> None:
        kill = KillOrder(task=scene.victim_name, signal=signal.SIGKILL)
        sent = RestartOrder() if name == "restart" else kill
        answer = control.ask(scene.run.view.paths.control, sent, PATIENCE_S)
        assert answer is not None and bool(answer["ok"]) == is_taken

    return inject


def wait_for_planned_stop(scene: Scene) -> None:
    """Wait until a planned fault has stopped a task and continued it: the stop itself may be too short to see."""
    sent = lambda: [event.signal for event in scene.events() if isinstance(event, SignalRequested)]  # noqa: E731
    until(lambda: signal.SIGCONT in sent() or scene.has_ended())


def delete_run_directory(scene: Scene) -> None:
    # A file may be written into it meanwhile.
    until(lambda: shutil.rmtree(scene.run.dir, ignore_errors=True) or not scene.run.dir.exists())


def take_stacks(scene: Scene) -> None:
    """Check that `orch stacks` shows where the script makes each task wait.

    A stopped task can only be read by py-spy, where that is installed and allowed; otherwise it is reported as stopped.
    """
    stacks = scene.run.stacks()
    assert len(stacks) == scene.cell.workers, stacks
    for task, stack in stacks.items():
        is_shown = any("staged_task.py" in frame for frame in stack.frames)
        assert is_shown or (stack.how, stack.state) == ("none", "T"), f"{task}: {stack}"


_WHO = {
    "a worker": Who.VICTIM,
    "the chief": Who.VICTIM,
    "three of four workers": Who.PEERS,
    **{f"the {who}": who for who in (Who.AGENT, Who.SUPERVISOR, Who.CLIENT, Who.PRELOADER)},
}
_STEPS: dict[str, Injection] = {
    "a worker dies": kill_a_worker,
    "its peers lose it": lose_the_victim,
    "SIGKILL of supervisor and agent": kill_supervisor_and_agent,
    "Ctrl-C": press_ctrl_c,
    "Ctrl-C twice": press_ctrl_c_twice,
    "the terminal is closed": Scene.close_terminal,
    "`down`": Scene.order_stop,
    "`down --force`": lambda scene: scene.order_stop(force=True),
    "four `down` at once": downs_at_once,
    "`restart`": order("restart"),
    "`restart` is refused": order("restart", is_taken=False),
    "`kill` of a worker": order("kill"),
    "`stacks`": take_stacks,
    "a planned stop is over": wait_for_planned_stop,
    "the run's directory is removed": delete_run_directory,
    "the disk is full": fill_disk,
    "the disk has room again": make_room,
    "no run starts": run_is_refused,
    "another run": run_beside,
    "the files of the kept processes are removed": remove_place,
    "all processes of the machine wait for memory": show_pressure,
    **dict.fromkeys(
        ("a preloaded module cannot be imported", "no fault", "--timeout", "--chaos"), _do_nothing
    ),
}


def _letter(pid: int) -> str:
    """The state of a process (man 5 proc); X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
