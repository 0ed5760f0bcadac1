"""`orch stacks` for live runs, ended runs and no run; the tasks do not import TensorFlow."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from agent_driving import state_letter
from late_answers import ask_until_timely
from orch_command import Finished, Orch
from run_records import make_run, one_task
from waiting import until

from orchestrator.core.state.events import RunEndedEvent
from worker.agent.stack_sources import find_py_spy

HANGS = """
import os, threading, time

def load_data():
    time.sleep(1000)

def main():
    print("up", flush=True)
    if os.environ["ORCH_TASK"] == "worker:1":
        load_data()
    threading.Event().wait()

main()
"""


@pytest.fixture
def hanging(orch: Orch) -> Orch:
    """Three tasks that hang, worker:1 at another place than the others."""
    assert orch("up", "-dq", "-n", "3", "--", orch.script("hang.py", HANGS)).code == 0
    until(lambda: all("up" in log.read_text() for log in logs(orch)) and len(logs(orch)) == 3)
    until_asleep(orch)
    return orch


def until_asleep(orch: Orch) -> None:
    """Wait until all tasks hang: after its first line, or after an answer, a task still runs for a moment."""
    until(lambda: all(state_letter(pid) == "S" for pid in orch.pids()))


def logs(orch: Orch) -> list[Path]:
    return list((orch.run_dir() / "logs").glob("worker-*.log"))


def by_signal(orch: Orch, *words: str) -> Finished | None:
    """Run `orch stacks`; None if a task did not answer in time on a busy machine."""
    until_asleep(orch)
    done = orch("stacks", *words)
    return None if "did not answer" in done.out else done


def test_stacks_of_a_live_run(hanging: Orch) -> None:
    orch = hanging
    shown = orch("stacks")
    assert (shown.code, shown.err) == (0, "")
    assert shown.lines[0] == "worker:0 and worker:2: in main (hang.py:11)"
    assert "worker:1: in load_data (hang.py:5)" in shown.lines
    assert f"    all threads: {orch.run_dir()}/stacks/worker-1.txt" in shown.lines
    whole = ask_until_timely(lambda: by_signal(orch, "--full", "1"))
    assert whole.lines[0] == "=== worker:1, by signal, state S"
    assert f'  File "{orch.directory}/hang.py", line 5 in load_data' in whole.lines

    document = ask_until_timely(
        lambda: by_signal(orch, orch.run_dir().name, "0", "worker:1", "--json")
    ).document
    assert (document["schema_version"], document["run"], document["live"]) == (1, orch.run_dir().name, True)
    assert (list(document["stacks"]), document["silent"]) == (["worker:0", "worker:1"], [])
    stack = document["stacks"]["worker:1"]
    assert (stack["how"], stack["state"]) == ("signal", "S")
    assert stack["frames"] == ["hang.py:5 load_data", "hang.py:10 main", "hang.py:13 <module>"]
    text = Path(stack["file"]).read_bytes()[stack["offset"] :][: stack["length"]].decode()
    assert text.splitlines()[1].endswith("line 5 in load_data")
    assert (
        orch("stacks", "--full", "--json", "1").document["stacks"]["worker:1"]["text"].count("hang.py") == 3
    )
    # A request changes no state.
    assert [task["state"] for task in orch.status()["tasks"]] == ["running"] * 3


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_stacks_of_a_stopped_task_and_native_frames(hanging: Orch) -> None:
    orch = hanging
    pid = orch.pids()[2]
    assert orch("kill", "-q", "2", "-s", "STOP").code == 0
    until(lambda: state_letter(pid) == "T")
    shown = orch("stacks")
    assert "worker:2: stopped by SIGSTOP" in shown.lines, shown.out
    assert shown.err == "orch: worker:2 is stopped: `orch kill here worker:2 -s CONT` resumes it\n"
    native = orch("stacks", "--native", "1", "--json").document["stacks"]["worker:1"]
    assert native["how"] == "py-spy"
    assert any(frame.startswith("libc.so") for frame in native["frames"]), native
    assert "hang.py:5 load_data" in native["frames"]
    # The text of py-spy is saved like the task's own dump.
    assert "load_data" in Path(native["file"]).read_bytes()[native["offset"] :][: native["length"]].decode()
    assert state_letter(pid) == "T"


def test_stacks_rejects_wrong_words(hanging: Orch) -> None:
    orch = hanging
    offered = orch(env={"COMP_WORDS": "orch stacks ", "COMP_CWORD": "2", "_ORCH_COMPLETE": "complete_bash"})
    assert offered.lines == ["here", "worker:0", "worker:1", "worker:2"]
    unknown = orch("stacks", "7")
    assert unknown.code == 2 and "has no task worker:7; it has worker:0, worker:1, worker:2" in unknown.err
    assert orch("stacks", "nowhere").code == 3
    orch("kill", "-q", "0")
    orch.result()
    ended = orch("stacks", "1")
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert "has ended, and no stacks of it were recorded" in ended.err


def test_stacks_recorded_by_a_limit_are_shown(orch: Orch) -> None:
    """Its stacks are shown long after, all of them and those of one task."""
    done = orch("up", "-q", "-n", "2", "--stall-timeout", "8s", "--", orch.script("hang.py", HANGS))
    assert done.code == 124, done.err
    recorded = orch.result()["stacks"]
    assert set(recorded) == {"worker:0", "worker:1"}
    shown = orch("stacks")
    assert shown.code == 0
    assert "has ended; these are its tasks when its time limit was reached" in shown.err
    assert "worker:1: in load_data (hang.py:5)" in shown.lines
    assert orch("stacks", "1", "--json").document == {
        "schema_version": 1,
        "run": orch.run_dir().name,
        "live": False,
        "stacks": {"worker:1": recorded["worker:1"]},
        "silent": [],
    }
    assert "in load_data" in orch("stacks", "--full", "1").out

    # Only the run's own file is read, whatever path the result names.
    secret = orch.directory / "id_rsa"
    secret.write_text("hunter2" * 1000)
    path = orch.run_dir() / "result.json"
    path.write_text(path.read_text().replace(recorded["worker:1"]["file"], str(secret)))
    whole = orch("stacks", "--full", "1").out
    assert "in load_data" in whole and "hunter2" not in whole


def test_stacks_of_a_live_run_without_events(hanging: Orch) -> None:
    """Its supervisor still knows who runs."""
    orch = hanging
    (orch.run_dir() / "events.jsonl").rename(orch.directory / "moved")
    shown = orch("stacks")
    assert "worker:1: in load_data (hang.py:5)" in shown.lines, shown.err
    assert orch("stacks", "1").lines[0] == "worker:1: in load_data (hang.py:5)"


def test_run_that_is_just_ending_has_ended_for_orders(orch: Orch) -> None:
    """Its last event is written, its result is not, and its lock is still held."""
    with closing(make_run(directory=str(orch.directory))) as run:
        for event in one_task(time.monotonic()):
            run.append(event)
        run.append(RunEndedEvent(at=0, mono=time.monotonic(), outcome="succeeded", exit_code=0))
        ended = orch("stacks")
        assert (ended.code, ended.out) == (0, "")
        assert "has ended, and no stacks of it were recorded" in ended.err
        refused = orch("kill", "worker:0")
        assert (refused.code, "has ended" in refused.err) == (3, True)


@pytest.mark.slow
def test_stacks_without_an_answer_of_the_supervisor(hanging: Orch) -> None:
    """It is waited for, but not for ever."""
    orch = hanging
    supervisor = orch.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)
    try:
        refused = orch("stacks")
        assert refused.code == 125
        assert f"the supervisor (pid {supervisor}) does not answer; is it suspended?" in refused.err
    finally:
        os.kill(supervisor, signal.SIGCONT)
