"""The agent's stop ladder and its dead-man's switch: nothing outlives it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from agent_driving import (
    DAEMONISES,
    DEAF,
    FOREVER_S,
    POLITE,
    SLEEPER,
    Driver,
    can_bind,
    python,
    signal_and_wait,
    state_letter,
)
from waiting import lives, until, until_gone

from orchestrator.links.agent_link import Empty, Exited, Started
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths


def test_tasks_that_stop_in_time_are_not_killed(agent: Driver) -> None:
    agent.start("a", python(POLITE))
    agent.wait_for_line("a")
    empty = agent.end(grace_s=FOREVER_S)
    assert [(exit.exit_code, exit.signal) for exit in agent.exits()] == [(5, None)]
    assert empty.swept == 0


def test_tasks_that_ignore_sigterm_are_killed_with_their_daemons(agent: Driver) -> None:
    agent.start("a", python(DAEMONISES))
    agent.start("b", python(DEAF))
    agent.wait_for_line("b")
    grandchild = agent.grandchild_of("a")
    empty = agent.end(grace_s=0.1)
    # "Empty" is a promise: by then they are gone, not about to go.
    assert not lives(grandchild)
    assert not any(lives(agent.pid_of(name)) for name in "ab")
    assert {exit.signal for exit in agent.exits()} == {signal.SIGKILL}
    assert empty.swept == 1


def test_daemon_gets_a_short_grace_after_the_tasks_are_gone(agent: Driver) -> None:
    program = DAEMONISES.replace('print("up"', 'signal.signal(15, signal.SIG_DFL); print("up"')
    agent.start("a", python(program))
    grandchild = agent.grandchild_of("a")
    assert agent.end(grace_s=FOREVER_S).swept == 1
    assert not lives(grandchild)


def test_children_in_the_group_get_sigterm(agent: Driver) -> None:
    child = "import os, sys, subprocess; subprocess.run([sys.executable, '-I', '-S', '-c', sys.argv[1]])"
    agent.start("a", [*python(child), f"import os; print('pid', os.getpid()); {POLITE}"])
    words = agent.wait_for_line("a").split()
    agent.end(grace_s=FOREVER_S)
    assert not lives(int(words[words.index("pid") + 1]))


def test_task_under_sigstop_gets_sigterm(agent: Driver) -> None:
    agent.start("a", python(POLITE))
    agent.wait_for_line("a")
    signal_and_wait(agent.pid_of("a"), signal.SIGSTOP, "T")
    agent.end(grace_s=FOREVER_S)
    assert agent.exits()[0].exit_code == 5


def test_second_stop_never_extends_the_deadline(agent: Driver) -> None:
    agent.start("a", python(DEAF))
    agent.wait_for_line("a")
    agent.link.stop(FOREVER_S)
    agent.link.stop(0.0)
    agent.link.stop(FOREVER_S)
    agent.wait_for(Empty)
    assert agent.exits()[0].signal == signal.SIGKILL


def test_start_during_a_stop_is_refused(agent: Driver) -> None:
    agent.start("a", python(DEAF))
    agent.wait_for_line("a")
    agent.link.stop(FOREVER_S)
    agent.start("b", ["touch", "started"])
    agent.end()
    assert [message.task for message in agent.messages if isinstance(message, Started)] == ["a"]
    assert not (agent.directory / "started").exists()


def test_stop_without_tasks_is_empty_immediately(agent: Driver) -> None:
    assert agent.end(grace_s=FOREVER_S).swept == 0


def test_ports_are_released_after_the_teardown(agent: Driver) -> None:
    ports = agent.hold(3)
    assert not any(can_bind(port) for port in ports)
    agent.end()
    # Another program may have taken one for a moment.
    until(lambda: all(can_bind(port) for port in ports))


def test_end_of_stream_ends_everything(tmp_path: Path) -> None:
    with Driver(tmp_path) as agent:
        agent.start("a", python(DAEMONISES))
        agent.start("b", python(DEAF))
        agent.wait_for_line("b")
        grandchild = agent.grandchild_of("a")
        pids = [grandchild, *(agent.pid_of(name) for name in "ab")]
    # The agent has left by itself (the driver saw to that): nothing may be left at that moment.
    assert not any(lives(pid) for pid in pids)


def test_sigterm_to_the_agent_ends_all_and_blames_no_task(agent: Driver) -> None:
    agent.start("a", python(DAEMONISES))
    grandchild = agent.grandchild_of("a")
    os.kill(agent.pid, signal.SIGTERM)
    agent.receive_all()
    assert not any(isinstance(message, Exited | Empty) for message in agent.messages)
    assert not lives(grandchild)


def test_tasks_die_with_a_killed_agent_and_orphans_can_be_swept(agent: Driver) -> None:
    run = RunPaths(agent.directory / "run-1")
    marks = {"ORCH_RUN_ID": run.run_id, "ORCH_RUN_DIR": str(run.root)}
    agent.start("a", python(DAEMONISES), marks)
    agent.start("b", python(DEAF), marks)
    agent.wait_for_line("b")
    grandchild = agent.grandchild_of("a")
    pids = [agent.pid_of(name) for name in "ab"]
    os.kill(agent.pid, signal.SIGKILL)
    until_gone(*pids)
    # Daemonised, it is out of the kernel's reach: this is what the sweep is for.
    assert lives(grandchild)
    assert end_leftovers(RunPaths(agent.directory / "another-run")).ended == 0
    assert lives(grandchild)
    assert end_leftovers(run).ended == 1
    assert not lives(grandchild)


def test_task_without_its_agent_never_starts(agent: Driver) -> None:
    """The agent dies while tasks start: whichever of them got that far dies too."""
    for index in range(20):
        agent.start(f"t{index}", python(f"open('{index}', 'w'); {SLEEPER}"))
    agent.pid_of("t0")
    os.kill(agent.pid, signal.SIGKILL)
    until(lambda: state_letter(agent.pid) in "ZX")
    agent.receive_all()
    pids = [message.pid for message in agent.messages if isinstance(message, Started)]
    until_gone(*pids)


def test_task_that_may_have_lost_sigterm_gets_it_again(agent: Driver) -> None:
    """The script loses the first SIGTERM, as a library does that has just installed its own handler."""
    say = "os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{\"sigterm\":\"again\"}\\n')"
    told = f"signal.signal(15, lambda *_: (signal.signal(15, lambda *_: os._exit(7)), {say}))"
    # Without a SIGTERM sent before, the report has no effect.
    # Short sleeps: a signal right before a sleep is handled after it.
    sleeps = "print('up', flush=True)\nwhile True: time.sleep(0.1)"
    agent.start("a", python(f"import os, signal, time\n{say}\n{told}\n{sleeps}"))
    agent.wait_for_line("a")
    agent.end(grace_s=FOREVER_S)
    assert [(exit.exit_code, exit.signal) for exit in agent.exits()] == [(7, None)]
