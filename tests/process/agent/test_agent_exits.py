"""The agent as reaper: true exit statuses, in their true order, and who was how at that moment."""

from __future__ import annotations

import errno
import os
import re
import select
import shlex
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_driving import DAEMONISES, SLEEPER, Driver, python, signal_and_wait, state_letter
from waiting import lives, until

from orchestrator.core.state.events import Progress
from orchestrator.links.agent_link import AgentMessage, Exited, ProgressMade, Started, StartFailed
from worker.agent import task_process
from worker.agent.run_logs import RunFile
from worker.agent.task_process import TaskOrder

ENDS = {
    "a": ("raise SystemExit(7)", 7, None),
    "b": ("pass", 0, None),
    "c": ("os.kill(os.getpid(), 9)", None, signal.SIGKILL),
    "d": ("os.kill(os.getpid(), 11)", None, signal.SIGSEGV),
    "e": ("os._exit(255)", 255, None),
}


@pytest.mark.parametrize("order", ["cadbe", "ebadc"])
def test_exit_statuses_keep_their_order_while_the_agent_sleeps(
    agent: Driver, tmp_path: Path, order: str
) -> None:
    waits = "import os, time\nwhile not os.path.exists('go-{0}'): time.sleep(0.005)\n{1}"
    for name, (end, _, _) in ENDS.items():
        agent.start(name, python(waits.format(name, end)))
    pids = {name: agent.pid_of(name) for name in ENDS}
    signal_and_wait(agent.pid, signal.SIGSTOP, "T")
    for name in order:
        (tmp_path / f"go-{name}").touch()
        until(partial(is_zombie, pids[name]))
    os.kill(agent.pid, signal.SIGCONT)
    for name in order:
        agent.wait_for(Exited, name)
    assert [exit.task for exit in agent.exits()] == list(order)
    assert [exit.order for exit in agent.exits()] == list(range(len(order)))
    assert {exit.task: (exit.exit_code, exit.signal) for exit in agent.exits()} == {
        name: (code, number) for name, (_, code, number) in ENDS.items()
    }


def is_zombie(pid: int) -> bool:
    return state_letter(pid) == "Z"


LATE = "import time, os\nwhile not os.path.exists('{}'): time.sleep(0.01)\nraise SystemExit(4)"


def test_first_bad_exit_reports_states_of_peers(agent: Driver) -> None:
    for name in ("stopped", "sleeping"):
        agent.start(name, python(SLEEPER))
    agent.start("ends", python("input_ = __import__('os').read(0, 1)"))
    agent.start("fails", python(LATE.format("go")))
    agent.start("fails too", python(LATE.format("go on")))
    signal_and_wait(agent.pid_of("stopped"), signal.SIGSTOP, "T")
    ended = agent.wait_for(Exited, "ends")
    assert (ended.exit_code, ended.peers) == (0, {})
    (agent.directory / "go").touch()
    peers = agent.wait_for(Exited, "fails").peers
    assert set(peers) == {"stopped", "sleeping", "fails too"}  # a reaped task is not a peer
    assert peers["stopped"] == "T"
    assert peers["sleeping"] in "RSD"
    (agent.directory / "go on").touch()
    assert agent.wait_for(Exited, "fails too").peers == {}  # a look at /proc for each of hundreds takes long
    agent.end()


def test_failure_after_a_task_restart_reports_states_of_peers(agent: Driver) -> None:
    agent.start("stays", python(SLEEPER))
    agent.start("again", python("raise SystemExit(3)"))
    assert agent.wait_for(Exited, "again").peers.keys() == {"stays"}
    signal_and_wait(agent.pid_of("stays"), signal.SIGSTOP, "T")
    agent.messages = [message for message in agent.messages if not isinstance(message, Exited)]
    agent.start("again", python("raise SystemExit(3)"))
    assert agent.wait_for(Exited, "again").peers == {"stays": "T"}
    agent.end()


def test_peer_stopped_below_its_shell_is_reported(agent: Driver) -> None:
    sleeper = shlex.join(python("import os, time; print('below', os.getpid(), flush=True); time.sleep(600)"))
    agent.start("shell", ["sh", "-c", f"{sleeper}; exit $?"])
    agent.start("ends", python(LATE.format("go")))
    found = until(lambda: re.search(r"below (\d+)\n", agent.text("shell")))
    below = int(found[1])
    assert below != agent.pid_of("shell")
    signal_and_wait(below, signal.SIGSTOP, "T")
    until(lambda: state_letter(agent.pid_of("shell")) == "S")
    (agent.directory / "go").touch()
    assert agent.wait_for(Exited, "ends").peers == {"shell": "T"}
    agent.end()


def test_running_task_is_not_waited_for(tmp_path: Path) -> None:
    """Its pidfd may have the number of one that was closed in the same batch of events."""
    log = RunFile(str(tmp_path / "log"))
    order = TaskOrder("a", python(SLEEPER), {}, str(tmp_path), log, None, False, bootstrap=None, fork=False)
    task = task_process.start(order)
    try:
        assert task.reap() is None
    finally:
        os.kill(task.pid, signal.SIGKILL)
        select.select([task.pidfd], [], [])
        assert task.reap() == (None, signal.SIGKILL)
        task.close()


def test_orphans_leave_no_zombies(agent: Driver) -> None:
    agent.start("a", python(DAEMONISES))
    grandchild = agent.grandchild_of("a")
    until(lambda: psutil.Process(grandchild).ppid() == agent.pid)
    os.kill(grandchild, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(grandchild))
    assert lives(agent.pid_of("a"))
    agent.end()


@pytest.mark.parametrize(
    ("argv", "changes", "code", "word"),
    [
        (["no-such-command"], {}, 127, "no-such-command"),
        (["true"], {"cwd": "/no/such/directory"}, 127, "/no/such/directory"),
        (["/etc/passwd"], {}, 126, "/etc/passwd"),
        (["./no-shebang"], {}, 126, "first line"),
        (["./no-interpreter"], {}, 127, "./no-interpreter: the interpreter that its first line names"),
    ],
)
def test_failed_start_has_the_exit_code_of_a_shell(
    agent: Driver, argv: list[str], changes: dict[str, Any], code: int, word: str
) -> None:
    (agent.directory / "no-shebang").write_bytes(b"\x00\x01 no program\n")
    (agent.directory / "no-interpreter").write_text("#!/no/such/python\n")
    for name in ("no-shebang", "no-interpreter"):
        (agent.directory / name).chmod(0o700)
    agent.start("a", argv, **changes)
    failed = agent.wait_for(StartFailed, "a")
    assert failed.exit_code == code
    assert word in failed.reason
    assert not any(isinstance(message, Started) for message in agent.messages)


def test_log_that_cannot_be_created_is_a_failed_start(agent: Driver) -> None:
    agent.start("no/such/place", ["true"])
    assert os.strerror(errno.ENOENT) in agent.wait_for(StartFailed).reason


def test_failed_start_counts_in_the_order_of_exits(agent: Driver) -> None:
    agent.start("a", ["no-such-command"])
    assert agent.wait_for(StartFailed, "a").order == 0
    agent.start("b", ["false"])
    assert agent.wait_for(Exited, "b").order == 1
    agent.start("c", ["no-such-command"])
    assert agent.wait_for(StartFailed, "c").order == 2


def test_messages_of_another_run_are_ignored(agent: Driver) -> None:
    agent.start("a", python(SLEEPER))
    agent.pid_of("a")
    agent.stream.sendall(b'{"type": "stop", "run_id": "another", "grace_s": 0}\n')
    agent.start("b", ["true"])
    agent.wait_for(Exited, "b")  # an agent that had been stopped would not have started it
    assert lives(agent.pid_of("a"))
    agent.end()


def progress_of(messages: list[AgentMessage]) -> list[ProgressMade]:
    return [message for message in messages if isinstance(message, ProgressMade)]


def test_progress_arrives_complete_and_before_the_exit(agent: Driver) -> None:
    write = "import os; fd = int(os.environ['ORCH_PROGRESS_FD']); "
    write += "os.write(fd, b'{\"ep'); os.write(fd, b'och\": 3}\\n')"
    agent.start("a", python(write))
    agent.wait_for(Exited, "a")
    (made,) = progress_of(agent.messages)
    progress = made.checked()
    assert progress is not None and progress.epoch == 3
    assert agent.messages.index(made) < agent.messages.index(agent.exits()[0])


def test_new_phase_drops_steps_of_the_last_one(agent: Driver) -> None:
    said = b'{"phase": "training", "epoch": 2, "step": 7, "steps": 7}\n{"phase": "evaluating"}\n'
    agent.start("a", python(f"import os; os.write(int(os.environ['ORCH_PROGRESS_FD']), {said!r})"))
    agent.wait_for(Exited, "a")
    (made,) = progress_of(agent.messages)
    assert made.checked() == Progress(phase="evaluating", epoch=2)


FLOODS = """
import os
fd = int(os.environ["ORCH_PROGRESS_FD"])
data = b'{"step": 1}\\n' * 5000
while True:
    os.write(fd, data)
"""


def test_flood_of_progress_does_not_delay_other_tasks(agent: Driver) -> None:
    for name in ("a", "b"):
        agent.start(name, python(FLOODS))
    for name in ("a", "b"):
        agent.wait_for(ProgressMade, name)
    agent.start("c", python("raise SystemExit(3)"))
    assert agent.wait_for(Exited, "c").exit_code == 3
    agent.end()
    assert {exit.task for exit in agent.exits()} == {"a", "b", "c"}


def test_grandchild_that_floods_the_pipe_does_not_delay_the_exit(agent: Driver) -> None:
    leaves = "import os\nif os.fork():\n while not os.path.exists('go'): pass\n os._exit(4)\n"
    agent.start("a", python(leaves + FLOODS))
    agent.wait_for(ProgressMade, "a")
    (agent.directory / "go").touch()
    assert agent.wait_for(Exited, "a").exit_code == 4
    agent.end()


@pytest.mark.parametrize(
    "line",
    [
        r"no json",
        r"[1, 2]",
        r'{"phase": "\\ud800"}',
        r'{"\\ud800": 1}',
        r'{"step": "many"}',
        r'{"step": ' + "9" * 3000 + "}",
        r'{"metrics": ' + '{"a":' * 900 + "1" + "}" * 901,
        r'{"loss": ' + "[" * 100_000 + "\\n{",
        # As deep as can be read, and one more: what was read must be written again.
        "\n".join('{"metrics": ' + '{"a":' * depth + "1" + "}" * (depth + 1) for depth in range(900, 1000)),
        r"\\xff\\xfe",
    ],
    ids=range(10),
)
def test_invalid_progress_is_ignored(agent: Driver, line: str) -> None:
    """A task writes what it likes into that pipe; the run must not end for it."""
    (agent.directory / "line").write_bytes(line.replace("\\\\", "\\").encode() + b"\n")
    write = "import os; fd = int(os.environ['ORCH_PROGRESS_FD']); os.write(fd, open('line', 'rb').read())"
    agent.start("a", python(write))
    agent.wait_for(Exited, "a")
    assert all(made.checked() in (None, Progress()) for made in progress_of(agent.messages))
    write = "import os; os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{\"epoch\": 1, \"loss\": NaN}\\n')"
    agent.start("b", python(write))
    agent.wait_for(Exited, "b")
    told = [made.checked() for made in progress_of(agent.messages) if made.task == "b"]
    assert told[0] is not None and told[0].epoch == 1
