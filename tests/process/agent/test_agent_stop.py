"""Signals to tasks, the agent's stop ladder and its dead-man's switch: nothing outlives it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from agent_driving import (
    DAEMONISES,
    FOREVER_S,
    IGNORES_SIGTERM,
    POLITE,
    SLEEPER,
    Driver,
    can_bind,
    python,
    signal_and_wait,
    state_letter,
)
from waiting import lives, until, until_gone

from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths
from worker.wire.messages import Empty, Exited, Started, Stop


def test_signal_reaches_only_the_named_task(agent: Driver) -> None:
    for name in "ab":
        # While it starts, a task can be in any state.
        agent.start(name, python(f"print('up', flush=True); {SLEEPER}"))
        agent.wait_for_line(name)
    pids = {name: agent.pid_of(name) for name in "ab"}
    agent.signal("a", signal.SIGSTOP)
    until(lambda: state_letter(pids["a"]) == "T")
    assert state_letter(pids["b"]) != "T"
    agent.signal("b", signal.SIGKILL)
    assert agent.exited("b").signal == signal.SIGKILL
    for name in ("b", "never-there"):  # without effect
        agent.signal(name, signal.SIGKILL)
    agent.signal("a", signal.SIGCONT)
    until(lambda: state_letter(pids["a"]) == "S")


def test_tasks_that_stop_in_time_are_not_killed(agent: Driver) -> None:
    """One has a child, which gets SIGTERM too; one was stopped; one loses the first SIGTERM, as when a library has just
    installed its own handler."""
    child = "import os, sys, subprocess; subprocess.run([sys.executable, '-I', '-S', '-c', sys.argv[1]])"
    say = "os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{\"sigterm\":\"again\"}\\n')"
    # Without a SIGTERM sent before, the report has no effect.
    loses = f"signal.signal(15, lambda *_: (signal.signal(15, lambda *_: os._exit(7)), {say}))"
    sleeps = "print('up', flush=True)\nwhile True: time.sleep(0.1)"
    agent.start("polite", python(POLITE))
    agent.start("with a child", [*python(child), f"import os; print('pid', os.getpid()); {POLITE}"])
    agent.start("stopped", python(POLITE))
    agent.start("loses", python(f"import os, signal, time\n{say}\n{loses}\n{sleeps}"))
    texts = {name: agent.wait_for_line(name) for name in ("polite", "with a child", "stopped", "loses")}
    signal_and_wait(agent.pid_of("stopped"), signal.SIGSTOP, "T")
    assert agent.end(grace_s=FOREVER_S).swept == 0
    ends = {name: facts.exit_code for name, facts in agent.exits().items()}
    assert (ends["polite"], ends["stopped"], ends["loses"]) == (5, 5, 7)
    words = texts["with a child"].split()
    assert not lives(int(words[words.index("pid") + 1]))


def test_tasks_that_ignore_sigterm_are_killed_with_their_daemons(agent: Driver) -> None:
    grandchild, pids = start_both(agent)
    empty = agent.end(grace_s=0.1)
    # All processes are gone before "empty" is reported.
    assert not any(lives(pid) for pid in (grandchild, *pids))
    assert {facts.signal for facts in agent.exits().values()} == {signal.SIGKILL}
    assert empty.swept == 1


def test_daemon_gets_a_short_grace_after_the_tasks_are_gone(agent: Driver) -> None:
    agent.start(
        "a", python(DAEMONISES.replace('print("up"', 'signal.signal(15, signal.SIG_DFL); print("up"'))
    )
    grandchild = agent.grandchild_of("a")
    assert agent.end(grace_s=FOREVER_S).swept == 1
    assert not lives(grandchild)


def test_second_stop_never_extends_the_deadline_and_no_task_starts_after_the_first(agent: Driver) -> None:
    agent.start("a", python(IGNORES_SIGTERM))
    agent.wait_for_line("a")
    agent.link.send(Stop(FOREVER_S))
    agent.start("b", ["touch", "started"])
    agent.link.send(Stop(0.0))
    agent.link.send(Stop(FOREVER_S))
    agent.wait_for(Empty)
    assert agent.exits()["a"].signal == signal.SIGKILL
    assert [message.task for message in agent.all_of(Started)] == ["a"]
    assert not (agent.directory / "started").exists()


def test_stop_without_tasks_is_empty_immediately_and_releases_the_ports(agent: Driver) -> None:
    ports = agent.hold(3)
    assert not any(can_bind(port) for port in ports)
    assert agent.end(grace_s=FOREVER_S).swept == 0
    # Another program may have taken one for a moment.
    until(lambda: all(can_bind(port) for port in ports))


def test_agent_sleeps_while_tasks_stop(agent: Driver) -> None:
    """Tasks may be saving then. No sample is taken, and one that is due must not keep the agent awake."""
    agent.start("a", python(IGNORES_SIGTERM), memory_limit=1 << 40)
    agent.wait_for_line("a")
    agent.link.send(Stop(FOREVER_S))
    due = time.monotonic() + 1.0
    until(lambda: time.monotonic() > due)
    until(lambda: all(state_letter(agent.pid) == "S" for _ in range(100)))


def start_both(agent: Driver, env: dict[str, str] | None = None) -> tuple[int, list[int]]:
    """Start a task with a daemon and one that ignores SIGTERM. Return the pid of the daemon and those of the tasks."""
    agent.start("a", python(DAEMONISES), env)
    agent.start("b", python(IGNORES_SIGTERM), env)
    agent.wait_for_line("b")
    return agent.grandchild_of("a"), [agent.pid_of(name) for name in "ab"]


def test_end_of_stream_ends_everything(tmp_path: Path) -> None:
    with Driver(tmp_path) as agent:
        grandchild, pids = start_both(agent)
    # The driver has checked that the agent has exited by itself. Nothing may be left at that moment.
    assert not any(lives(pid) for pid in (grandchild, *pids))


def test_sigterm_to_the_agent_ends_all_and_blames_no_task(own_agent: Driver) -> None:
    grandchild, _ = start_both(own_agent)
    os.kill(own_agent.pid, signal.SIGTERM)
    own_agent.receive_all()
    assert not own_agent.all_of(Exited) and not own_agent.all_of(Empty)
    assert not lives(grandchild)


def test_tasks_die_with_a_killed_agent_and_orphans_can_be_swept(own_agent: Driver) -> None:
    run = RunPaths(own_agent.directory / "run-1")
    grandchild, pids = start_both(own_agent, {"ORCH_RUN_ID": run.run_id, "ORCH_RUN_DIR": str(run.root)})
    os.kill(own_agent.pid, signal.SIGKILL)
    until_gone(*pids)
    # The kernel does not kill a daemonised process with the agent, so the sweep must.
    assert lives(grandchild)
    assert end_leftovers(RunPaths(own_agent.directory / "another-run")).ended == 0
    assert lives(grandchild)
    assert end_leftovers(run).ended == 1
    assert not lives(grandchild)


def test_task_without_its_agent_never_starts(own_agent: Driver) -> None:
    """The agent is killed while tasks start. Those that it has started are killed, too."""
    for index in range(20):
        own_agent.start(f"t{index}", python(f"open('{index}', 'w'); {SLEEPER}"))
    own_agent.pid_of("t0")
    signal_and_wait(own_agent.pid, signal.SIGKILL, "ZX")
    own_agent.receive_all()
    pids = [message.pid for message in own_agent.all_of(Started)]
    until_gone(*pids)
