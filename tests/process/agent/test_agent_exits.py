"""The agent as reaper: true exit statuses, in their true order and without delay, and the states of other tasks."""

from __future__ import annotations

import errno
import os
import re
import select
import shlex
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_driving import DAEMONISES, SLEEPER, Driver, python, signal_and_wait, state_letter
from waiting import lives, until

from worker.agent import tasks
from worker.agent.resource_failures import DiskChecks, OomMark
from worker.agent.task_start import TaskStart
from worker.wire.messages import Exited, Sampled, Started, TaskOrder

ENDS = {
    "a": ("raise SystemExit(7)", 7, None),
    "b": ("pass", 0, None),
    "c": ("os.kill(os.getpid(), 9)", None, signal.SIGKILL),
    "d": ("os.kill(os.getpid(), 11)", None, signal.SIGSEGV),
    "e": ("os._exit(255)", 255, None),
}
LATE = "import time, os\nwhile not os.path.exists('{}'): time.sleep(0.01)\nraise SystemExit(4)"


def test_exit_statuses_keep_their_order_while_the_agent_sleeps(agent: Driver) -> None:
    order = ["c", "a", "d", "b", "e"]
    waits = "import os, time\nwhile not os.path.exists('go-{0}'): time.sleep(0.005)\n{1}"
    for name, (end, _, _) in ENDS.items():
        agent.start(name, python(waits.format(name, end)))
    pids = {name: agent.pid_of(name) for name in ENDS}
    signal_and_wait(agent.pid, signal.SIGSTOP, "T")
    for name in order:
        (agent.directory / f"go-{name}").touch()
        signal_and_wait(pids[name], 0, "Z")
    os.kill(agent.pid, signal.SIGCONT)
    for name in order:
        agent.wait_for(Exited, name)
    assert [*agent.exits()] == order
    assert {name: (facts.exit_code, facts.signal) for name, facts in agent.exits().items()} == {
        name: (code, number) for name, (_, code, number) in ENDS.items()
    }


def test_first_bad_exit_reports_states_of_peers(agent: Driver) -> None:
    for name in ("stopped", "sleeping"):
        agent.start(name, python(SLEEPER))
    agent.start("ends", python("input_ = __import__('os').read(0, 1)"))
    agent.start("fails", python(LATE.format("go")))
    agent.start("fails_too", python(LATE.format("go on")))
    signal_and_wait(agent.pid_of("stopped"), signal.SIGSTOP, "T")
    ended = agent.exited("ends")
    assert (ended.exit_code, ended.peers) == (0, {})
    (agent.directory / "go").touch()
    peers = agent.exited("fails").peers
    assert set(peers) == {"stopped", "sleeping", "fails_too"}  # a reaped task is not a peer
    assert peers["stopped"] == "T"
    assert peers["sleeping"] in "RSD"
    (agent.directory / "go on").touch()
    assert agent.exited("fails_too").peers == {}  # a look at /proc for each of hundreds takes long


def test_helper_is_neither_a_peer_nor_measured(agent: Driver) -> None:
    """A failure after a task has restarted reports the states of peers again."""
    agent.start("helper", python(SLEEPER), is_helper=True)
    agent.start("stays", python(SLEEPER))
    agent.start("again", ["false"])
    assert agent.exited("again").peers.keys() == {"stays"}
    assert agent.wait_for(Sampled).tasks.keys() == {"stays"}
    signal_and_wait(agent.pid_of("stays"), signal.SIGSTOP, "T")
    agent.forget(Exited)
    agent.start("again", ["false"])
    assert agent.exited("again").peers == {"stays": "T"}


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
    assert agent.exited("ends").peers == {"shell": "T"}


def test_running_task_is_not_waited_for(tmp_path: Path) -> None:
    """Its pidfd may have the number of one that was closed in the same batch of events."""
    log = str(tmp_path / "log")
    order = TaskOrder("a", tuple(python(SLEEPER)), {}, str(tmp_path), log, None, False)
    task = tasks.start(TaskStart(order))
    try:
        assert task.reap() is None
    finally:
        os.kill(task.pid, signal.SIGKILL)
        select.select([task.pidfd], [], [])
        assert task.reap() == (None, signal.SIGKILL)
        os.close(task.pidfd)
        os.close(task.progress_fd)


def test_orphans_leave_no_zombies(agent: Driver) -> None:
    agent.start("a", python(DAEMONISES))
    grandchild = agent.grandchild_of("a")
    until(lambda: psutil.Process(grandchild).ppid() == agent.pid)
    os.kill(grandchild, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(grandchild))
    assert lives(agent.pid_of("a"))


# (command, changes of the order, exit code, part of the reason)
FAILED_STARTS: list[tuple[list[str], dict[str, Any], int, str]] = [
    (["no-such-command"], {}, 127, "no-such-command"),
    (["true"], {"cwd": "/no/such/directory"}, 127, "/no/such/directory"),
    (["/etc/passwd"], {}, 126, "/etc/passwd"),
    (["./no-shebang"], {}, 126, "first line"),
    (["./no-interpreter"], {}, 127, "./no-interpreter: the interpreter that its first line names"),
    (["true"], {"log": "/no/such/place"}, 126, os.strerror(errno.ENOENT)),
]


def test_failed_start_has_the_exit_code_of_a_shell(agent: Driver) -> None:
    (agent.directory / "no-shebang").write_bytes(b"\x00\x01 no program\n")
    (agent.directory / "no-interpreter").write_text("#!/no/such/python\n")
    for name in ("no-shebang", "no-interpreter"):
        (agent.directory / name).chmod(0o700)
    wrong = []
    for number, (argv, changes, code, word) in enumerate(FAILED_STARTS):
        agent.start(f"t{number}", argv, **changes)
        failed = agent.wait_for(Exited, f"t{number}").exit
        if failed.exit_code != code or word not in (failed.start_error or ""):
            wrong.append((argv, changes, failed))
    assert not wrong
    assert not agent.all_of(Started)


def test_exit_is_reported_before_earlier_orders_and_between_many_starts(agent: Driver) -> None:
    for name in "ab":
        agent.start(name, python(SLEEPER))
    pids = [agent.pid_of(name) for name in "ab"]
    signal_and_wait(agent.pid, signal.SIGSTOP, "T")
    agent.signal("b", signal.SIGKILL)
    names = [f"many-{number}" for number in range(20)]
    for name in names:
        agent.start(name, python(SLEEPER))
    signal_and_wait(pids[0], signal.SIGKILL, "Z")
    os.kill(agent.pid, signal.SIGCONT)
    first, last = (agent.wait_for(Started, names[number]) for number in (0, -1))
    at = agent.messages.index
    assert at(agent.wait_for(Exited, "a")) < at(first)
    assert at(agent.wait_for(Exited, "b")) < at(last)


# -- the kernel's out-of-memory kills, in files of both versions of control groups, and full disks


class Kernel:
    """Its files, below a directory."""

    def __init__(self, root: Path, **files: str) -> None:
        self.places = root / "proc", root / "cgroup"
        self.write(**files)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.places[0].parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def since(self, mark: OomMark) -> int | None:
        return mark.kills_since(*self.places)


def test_oom_count_of_the_machine_without_a_group(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    assert kernel.since(OomMark.now(*kernel.places)) is None
    kernel.write(**{"proc/vmstat": "oom_kill many\n"})
    assert kernel.since(OomMark.now(*kernel.places)) is None
    kernel.write(**{"proc/vmstat": "nr_free_pages 1\noom_kill 3\n"})
    mark = OomMark.now(*kernel.places)
    assert kernel.since(mark) == 0
    kernel.write(**{"proc/vmstat": "nr_free_pages 1\noom_kill 5\n"})
    assert kernel.since(mark) == 2


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job\n", "cgroup/job/memory.events"),
        ("4:cpu,memory:/job\n0::/\n", "cgroup/memory/job/memory.oom_control"),
    ],
    ids=["v2", "v1"],
)
def test_oom_kill_in_another_group_is_not_counted(tmp_path: Path, groups: str, file: str) -> None:
    kills = "oom_kill_disable 0\noom 7\noom_kill {}\n"
    files = {"proc/self/cgroup": groups, "proc/vmstat": "oom_kill 1\n", file: kills.format(1)}
    kernel = Kernel(tmp_path, **files)
    mark = OomMark.now(*kernel.places)
    kernel.write(**{"proc/vmstat": "oom_kill 2\n"})
    assert kernel.since(mark) == 0
    kernel.write(**{file: kills.format(2)})
    assert kernel.since(mark) == 1


@pytest.mark.skipif("oom_kill" not in Path("/proc/vmstat").read_text(), reason="this kernel does not count")
def test_oom_count_is_read_from_this_kernel() -> None:
    assert OomMark.now().kills_since() is not None


def test_disk_check_is_delayed_and_shared_by_tasks() -> None:
    """A disk with room is not reported."""
    tried: list[tuple[str, ...]] = []

    def no_room(places: tuple[str, ...]) -> str | None:
        tried.append(places)
        return "full" if "/logs" in places else None

    checks = DiskChecks(no_room)
    for task in ("worker:0", "worker:1"):
        checks.request(100.0, task, ("/logs", "/checkpoints"))
    assert list(checks.run_due(100.0)) == [] and tried == []
    assert checks.due > 100.0
    assert list(checks.run_due(checks.due)) == [("worker:0", "full"), ("worker:1", "full")]
    assert tried == [("/logs", "/checkpoints")]
    assert checks.due == float("inf") and list(checks.run_due(float("inf"))) == []
    checks.request(100.0, "worker:0", ("/other",))
    assert list(checks.run_due(float("inf"))) == []
