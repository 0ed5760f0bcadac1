"""One live run of three tasks, without a client: the output and effect of each verb, and the effects of its end."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from agent_driving import state_letter
from late_answers import ask_until_timely
from orch_command import Finished, Orch
from run_records import make_run, one_task
from waiting import PATIENCE_S, until, until_gone

from orchestrator.core.state.events import RunEndedEvent
from worker.agent.stack_sources import find_py_spy

# The tasks wait for the file `go` and exit with the code in it. worker:1 and its child print the signals that they
# receive. worker:0 prints 30 lines after worker:2 has written half a line.
_TASKS = """
import os, signal, sys, time
task, leader = os.environ["ORCH_TASK"], os.getpid()

def load_data():
    while not os.access("go", os.F_OK): time.sleep(0.05)

def main():
    if task == "worker:1":
        load_data()
    while not os.access("go", os.F_OK): time.sleep(0.05)

def report(number, frame):
    who = "leader" if os.getpid() == leader else "child"
    os.write(1, f"{who} received {signal.Signals(number).name}\\n".encode())

signal.signal(signal.SIGUSR1, report)
if task == "worker:2":
    print("half-", end="", flush=True)
    open("half", "w").close()
else:
    while not os.access("half", os.F_OK): time.sleep(0.01)
    print("here")
if task == "worker:0":
    print(*(f"line {number}" for number in range(30)), sep="\\n")
if task == "worker:1" and os.fork() == 0:
    while os.getppid() == leader:
        time.sleep(0.05)  # not pause(), which would miss a signal that arrives just before it
    os._exit(0)
main()
print("whole" if task == "worker:2" else "end", flush=True)
open(f"ended-{task}", "w").close()
# The first exit ends the others.
while not all(os.access(f"ended-worker:{index}", os.F_OK) for index in range(3)): time.sleep(0.01)
sys.exit(int(open("go").read()))
"""
_MAIN, _LOAD_DATA = "main (tasks.py:11)", "load_data (tasks.py:6)"
# The limit on idle connections, and the other open files of a supervisor.
_MOST_FILES = 64 + 60


@pytest.fixture(scope="module")
def up(shared_orch: Orch) -> Finished:
    """`orch up` of the live run `one`, after a run that failed."""
    assert shared_orch("up", "-q", "--name", "early", "--", "sh", "-c", "exit 3").code == 3
    script = shared_orch.script("tasks.py", _TASKS)
    return shared_orch.within("up", "--wait", "ready", "--json", "-n", "3", "--name", "one", "--", script)


@pytest.fixture(scope="module")
def orch(shared_orch: Orch, up: Finished) -> Orch:
    """The directory of the live run."""
    until(lambda: {"worker:0 | line 29", "worker:1 | here"} <= set(shared_orch("logs").lines))
    _until_asleep(shared_orch)
    return shared_orch


@pytest.fixture(scope="module")
def run(orch: Orch) -> Path:
    return orch.run_dirs()[-1]


@pytest.fixture(scope="module")
def ended(orch: Orch) -> dict[str, Finished]:
    """The commands that the end of the run with exit code 6 has ended."""
    lines = ("attach", "attach --tail 2", "attach --tasks 1", "logs -f --no-prefix 1")
    started = {words: orch.start(*words.split()) for words in ("wait --json", *lines)}
    last = _whole_lines(orch)[-1]
    for words in lines:
        started[words].until_out("here" if "1" in words else last)
    orch.script("new", "6")
    (orch.directory / "new").rename(orch.directory / "go")
    return {words: command.finish() for words, command in started.items()}


def _whole_lines(orch: Orch) -> list[str]:
    """The lines before the end of the run, without the one that was written in two parts."""
    ends = ("worker:0 | end", "worker:1 | end")
    return [line for line in orch("logs").lines if "half-" not in line and line not in ends]


def _until_asleep(orch: Orch) -> None:
    """Wait until all tasks sleep: after an answer, a task still runs for a moment."""
    until(lambda: all(state_letter(pid) == "S" for pid in orch.pids()))


def _stacks(orch: Orch, *words: str) -> Finished:
    """`orch stacks` that no task has answered too late, on a busy machine."""

    def asked() -> Finished | None:
        _until_asleep(orch)
        done = orch("stacks", *words)
        return None if "did not answer" in done.out else done

    return ask_until_timely(asked)


def test_up_that_waits_prints_the_status(up: Finished) -> None:
    assert up.code == 0
    assert up.document["run"]["state"] == "running"
    assert [task["state"] for task in up.document["tasks"]] == ["running"] * 3


def test_status(orch: Orch, run: Path) -> None:
    until(lambda: orch.task("worker:1")["memory_bytes"] is not None)
    document = orch("status", "--json").document
    shown = document["run"]
    assert (document["schema_version"], shown["attempt"]) == (1, 1)
    assert (shown["name"], shown["id"], shown["dir"]) == ("one", run.name, str(run))
    assert abs(shown["started_at"] - run.stat().st_ctime) < 60
    for index, task in enumerate(document["tasks"]):
        assert (task["task"], task["role"], task["index"]) == (f"worker:{index}", "worker", index)
        host, _, port = task["address"].rpartition(":")
        assert host == "127.0.0.1" and 0 < int(port) < 65536
        assert task["pid"] > 0 and task["uptime_s"] > 0
        assert task["cpu_percent"] >= 0 and task["memory_bytes"] > 0
        assert (task["state"], task["restarts"]) == ("running", 0)
        assert (task["exit_code"], task["signal"], task["progress"]) == (None, None, None)


def test_ls(orch: Orch) -> None:
    header, *rows = orch("ls").lines
    titles = "RUN STATE EXIT TOOK AGE TASKS SIZE NAME DIRECTORY COMMAND"
    assert header.split() == titles.split(), "no LOSS, since no run reported one"
    assert [row.split()[1] for row in rows[:2]] == ["running", "failed"]
    assert rows[0].endswith("  tasks.py") and rows[1].endswith("  sh -c 'exit 3'")
    assert rows[2].startswith("2 runs")
    live, early = orch("--json", "ls").document["runs"]
    assert (live["state"], early["state"], early["command"]) == ("running", "failed", "sh -c 'exit 3'")
    assert (live["exit_code"], early["exit_code"]) == (None, 3)
    assert live["size_bytes"] > 0 and live["age_s"] >= 0


def test_runs_are_found_by_id_prefix_and_name(orch: Orch, run: Path) -> None:
    """From another directory, a run is found only if it is named."""
    early = orch.run_dirs()[0].name
    assert orch.status()["run"]["id"] == run.name
    for word in (early, early[:-2], "early"):
        assert orch.status(word)["run"]["id"] == early
    elsewhere = orch.directory / "elsewhere"
    elsewhere.mkdir()
    assert orch("status", cwd=elsewhere).code == 3
    assert orch("status", "early", "--json", cwd=elsewhere).document["run"]["id"] == early
    assert orch("ls", cwd=elsewhere).out == ""
    runs = orch("ls", "--all", "--json", cwd=elsewhere).document["runs"]
    assert [each["id"] for each in runs] == [run.name, early]


def test_interrupted_commands_leave_the_run(orch: Orch) -> None:
    last = _whole_lines(orch)[-1]
    for words, number, said in (
        (("attach",), signal.SIGINT, "it keeps running"),
        (("attach",), signal.SIGTERM, "it keeps running"),
        (("logs", "-f", "--tail", "1"), signal.SIGINT, ""),
    ):
        command = orch.start(*words)
        command.until_out(last)
        command.signal(number)
        done = command.finish()
        assert done.code == 0 and said in done.err, words
    late = orch("wait", "--timeout", "100ms")
    assert late.code == 124 and "still runs after 0.1 s" in late.err
    assert orch.status()["run"]["state"] == "running"


def test_kill_signals_the_process_group_and_says_so(orch: Orch, run: Path) -> None:
    log = run / "logs" / "worker-1.log"
    pid = orch.task("worker:1")["pid"]
    for index, words in enumerate(("1 -s usr1", "worker:1 --signal SIGUSR1", "one 1 -s 10"), 1):
        done = orch("kill", *words.split())
        assert (done.code, done.out) == (0, "")
        assert done.err == f"orch: sent SIGUSR1 to worker:1 (pid {pid} and its process group)\n"
        for who in ("leader", "child"):
            until(lambda: log.read_text().count(f"{who} received SIGUSR1") == index)  # noqa: B023
    document = {"schema_version": 1, "run": run.name, "task": "worker:1", "signal": 10, "pid": pid}
    assert orch("kill", "--json", "worker:1", "-s", "USR1").document == document
    quiet = orch("kill", "-q", "1", "-s", "USR1")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    until(lambda: log.read_text().count("leader received SIGUSR1") == 5)
    assert "received" not in (log.parent / "worker-0.log").read_text()
    sent = [(each["task"], each["signal"], each["by"]) for each in orch.events("signal_requested", run)]
    assert sent == [("worker:1", signal.SIGUSR1, "user")] * 5


def test_wrong_words_of_kill_and_stacks_are_refused(orch: Orch, run: Path) -> None:
    before = orch.events("signal_requested", run)
    refused = {
        ("kill",): (2, "[RUN] TASK"),
        ("kill", "worker:3"): (2, "has no task worker:3; it has worker:0, worker:1, worker:2"),
        ("kill", "0", "-s", "BLA"): (2, '--signal: "BLA" is not a signal'),
        ("kill", "one", "0", "1"): (2, "one task at a time"),
        ("kill", "two", "0"): (3, "no run 'two'"),
        ("kill", "early", "0"): (3, "has ended"),
        ("stacks", "7"): (2, "has no task worker:7; it has worker:0, worker:1, worker:2"),
        ("stacks", "nowhere"): (3, "no run 'nowhere'"),
    }
    for words, done in orch.all_within(refused):
        code, sentence = refused[words]
        assert done.code == code and sentence in done.err, (words, done.err)
    assert orch.events("signal_requested", run) == before


def test_stacks(orch: Orch, run: Path) -> None:
    shown = _stacks(orch)
    assert (shown.code, shown.err) == (0, "")
    assert shown.lines[0] == f"worker:0 and worker:2: in {_MAIN}"
    assert f"worker:1: in {_LOAD_DATA}" in shown.lines
    assert f"    all threads: {run}/stacks/worker-1.txt" in shown.lines
    whole = _stacks(orch, "--full", "1")
    # R: on a busy machine it may be about to sleep again.
    assert whole.lines[0] in [f"=== worker:1, by signal, state {state}" for state in "SR"]
    assert f'  File "{orch.directory}/tasks.py", line 6 in load_data' in whole.lines

    document = _stacks(orch, run.name, "0", "worker:1", "--full", "--json").document
    assert (document["schema_version"], document["run"], document["live"]) == (1, run.name, True)
    assert (list(document["stacks"]), document["silent"]) == (["worker:0", "worker:1"], [])
    stack = document["stacks"]["worker:1"]
    assert stack["how"] == "signal" and stack["state"] in ("S", "R")
    assert stack["text"].count("tasks.py") == 3
    assert [frame.split()[-1] for frame in stack["frames"]] == ["load_data", "main", "<module>"]
    text = Path(stack["file"]).read_bytes()[stack["offset"] :][: stack["length"]].decode()
    assert text.splitlines()[1].endswith("line 6 in load_data")


def test_stacks_without_the_events_of_the_run(orch: Orch, run: Path) -> None:
    """Its supervisor still knows who runs."""
    (run / "events.jsonl").rename(run / "moved")
    try:
        assert orch("stacks", "1").lines[0] == f"worker:1: in {_LOAD_DATA}"
    finally:
        (run / "moved").rename(run / "events.jsonl")


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_stacks_of_a_stopped_task_and_native_frames(orch: Orch) -> None:
    """Signals of `orch kill` stop the task and resume it."""
    pids = orch.pids()
    assert orch("kill", "-q", "2", "-s", "STOP").code == 0
    until(lambda: state_letter(pids[2]) == "T")
    assert state_letter(pids[0]) != "T"
    shown = orch("stacks")
    assert "worker:2: stopped by SIGSTOP" in shown.lines, shown.out
    assert shown.err == "orch: worker:2 is stopped: `orch kill one worker:2 -s CONT` resumes it\n"
    native = orch("stacks", "--native", "1", "--json").document["stacks"]["worker:1"]
    assert native["how"] == "py-spy"
    assert any(frame.startswith("libc.so") for frame in native["frames"]), native
    assert "tasks.py:6 load_data" in native["frames"]
    # The text of py-spy is saved like the task's own dump.
    assert "load_data" in Path(native["file"]).read_bytes()[native["offset"] :][: native["length"]].decode()
    assert state_letter(pids[2]) == "T"
    assert orch("kill", "-q", "2", "-s", "CONT").code == 0
    until(lambda: state_letter(pids[2]) != "T")
    assert [task["state"] for task in orch.status()["tasks"]] == ["running"] * 3


def _call(run: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(run):  # its path may be too long for a socket
        connection.connect("control")
    connection.settimeout(PATIENCE_S)
    return connection


def test_idle_and_invalid_callers_do_not_disturb_the_run(orch: Orch, run: Path) -> None:
    with ExitStack() as silent:
        for _ in range(150):
            silent.enter_context(_call(run))
        # Each of these messages is answered and refused.
        for words in (
            *(b"\n", b"[" * 4000, b'{"op": "stop"', b"\xff", b""),
            b'{"op": "kill", "task": "worker:0", "signal": 0}',
        ):
            with _call(run) as caller:
                caller.sendall(words)
                if not words:
                    caller.shutdown(socket.SHUT_WR)
                assert b'"ok": false' in caller.recv(1 << 16)
        assert psutil.Process(orch.supervisor()).num_fds() < _MOST_FILES
        assert orch.status()["run"]["state"] == "running"


@pytest.mark.slow
def test_supervisor_that_does_not_answer_is_reported(orch: Orch) -> None:
    """A command waits for it for a limited time."""
    supervisor = psutil.Process(orch.supervisor())
    supervisor.suspend()
    try:
        refused = orch("stacks")
    finally:
        supervisor.resume()
    assert refused.code == 125
    assert f"the supervisor (pid {supervisor.pid}) does not answer; is it suspended?" in refused.err


def test_end_returns_the_exit_code_of_the_run(orch: Orch, run: Path, ended: dict[str, Finished]) -> None:
    assert ended["wait --json"].code == ended["wait --json"].document["exit_code"] == 6
    assert orch("wait").code == 6, "at any later time"
    for words in ("attach", "attach --tail 2", "attach --tasks 1"):
        assert ended[words].code == 6 and "failed" in ended[words].err, words
    assert ended["logs -f --no-prefix 1"].code == 0
    supervisor = orch.record(run)["supervisor_pid"]
    until_gone(supervisor)
    assert (run / "supervisor.log").read_text() == ""


def test_attach_begins_with_the_last_lines(orch: Orch, ended: dict[str, Finished]) -> None:
    """A line that another task began before them is shown whole."""
    before = _whole_lines(orch)
    for words, count in (("attach", 20), ("attach --tail 2", 2)):
        lines = ended[words].lines
        assert lines[:count] == before[-count:], words
        assert sorted(lines[count:]) == ["worker:0 | end", "worker:1 | end", "worker:2 | half-whole"]
    assert {line.partition(" |")[0] for line in ended["attach --tasks 1"].lines} == {"worker:1"}
    followed = ended["logs -f --no-prefix 1"]
    assert (followed.lines[0], followed.lines[-1], followed.err) == ("here", "end", "")


def _takes_no_orders(orch: Orch, directory: Path) -> None:
    stacks, killed = (orch(*words, cwd=directory) for words in (("stacks", "worker:0"), ("kill", "worker:0")))
    assert (stacks.code, stacks.out) == (0, "")
    assert "has ended, and no stacks of it were recorded" in stacks.err
    assert killed.code == 3 and "has ended" in killed.err


def test_ended_run_takes_no_orders(
    orch: Orch, ended: dict[str, Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a run that is just ending: its last event is written, and its lock is still held."""
    _takes_no_orders(orch, orch.directory)
    monkeypatch.setenv("XDG_STATE_HOME", str(orch.state))
    place = orch.directory / "ending"
    place.mkdir()
    with closing(make_run(directory=str(place))) as ending:
        for event in one_task(time.monotonic()):
            ending.append(event)
        ending.append(RunEndedEvent(at=0, mono=time.monotonic(), outcome="succeeded", exit_code=0))
        _takes_no_orders(orch, place)
