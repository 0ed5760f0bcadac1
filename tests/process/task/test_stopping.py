"""SIGTERM runs the script's clean-up, and the exit code is 143. The script's own handlers stay."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
import pytest
from tasks import Task, running
from waiting import until

CLEAN_UP = """
import atexit, os, signal, sys, threading, time
atexit.register(print, "atexit")
unclosed = open("unclosed.txt", "w")
unclosed.write("buffered")
{before}
try:
    print("ready", flush=True)
    {wait}
finally:
    print("finally", flush=True)
    {after}
    print("done", flush=True)
"""
WAITS = {
    "python": "while True: pass",
    "sleep": "time.sleep(1000)",
    "lock": "threading.Event().wait()",
    "read": "os.read(os.pipe()[0], 1)",
    "join": "t = threading.Thread(target=time.sleep, args=(1000,), daemon=True); t.start(); t.join()",
    "asyncio": "asyncio.run(asyncio.sleep(1000))",
    "queue": "queue.Queue().get()",
    "child": "subprocess.run(['sleep', '1000'])",
}


def script(directory: Path, wait: str, before: str = "", after: str = "") -> Path:
    path = directory / "train.py"
    path.write_text(CLEAN_UP.format(wait=wait, before=before, after=after))
    return path


def test_clean_up_runs(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        tasks = {}
        for name, wait in WAITS.items():
            (tmp_path / name).mkdir()
            command = [script(tmp_path / name, wait, before="import asyncio, queue, subprocess")]
            tasks[name] = stack.enter_context(running(tmp_path / name, command))
        for name, task in tasks.items():
            task.wait_for_line("ready")
            if name == "child":
                children = psutil.Process(task.process.pid).children
                until(lambda children=children: any(child.name() == "sleep" for child in children()))
            if name != "python":
                # Earlier, asyncio would warn of a coroutine that is not awaited, and a child process would stay.
                wait_until_asleep(task)
            assert task.stop() == 143, name
            assert task.output.splitlines() == ["ready", "finally", "done", "atexit"], name
            assert (tmp_path / name / "unclosed.txt").read_text() == "buffered"
            assert not task.exception_file.exists()


def stopped_asleep(directory: Path, path: Path, said: str = "ready") -> tuple[int, list[str]]:
    """The exit code and output of a script that is stopped while it sleeps."""
    with running(directory, [path]) as task:
        task.wait_for_line(said)
        wait_until_asleep(task)
        return task.stop(), task.output.splitlines()


def test_a_stop_before_the_script_is_quiet(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n")
    with running(tmp_path, ["-c", "print('begun')"], env={"PYTHONPATH": str(library)}) as task:
        assert (task.wait(), task.output) == (143, "")


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("signal.signal(15, lambda *_: sys.exit(7))", 7, ["finally", "done", "atexit"]),
        ("signal.signal(15, lambda *_: (print('mine', flush=True), os._exit(8)))", 8, ["mine"]),
        ("signal.signal(15, signal.SIG_DFL)", -15, []),
    ],
)
def test_the_scripts_own_handler_replaces_ours(
    tmp_path: Path, before: str, code: int, said: list[str]
) -> None:
    its = script(tmp_path, WAITS["lock"], before=before)
    assert stopped_asleep(tmp_path, its) == (code, ["ready", *said])


@pytest.mark.parametrize(
    ("catch", "code", "said"),
    [
        ("as stop: print(type(stop).__name__, stop.code)", 0, "SystemExit 143"),
        (": sys.exit(5)", 5, ""),
        (": raise ValueError('in the end')", 1, "in the end"),
    ],
)
def test_a_script_may_catch_the_stop(tmp_path: Path, catch: str, code: int, said: str) -> None:
    wait = f"try:\n        print('within', flush=True); time.sleep(1000)\n    except SystemExit {catch}"
    found, lines = stopped_asleep(tmp_path, script(tmp_path, wait), "within")
    assert (found, lines[-1]) == (code, "atexit") and any(said in line for line in lines)


def test_sigint_raises_keyboard_interrupt(tmp_path: Path) -> None:
    with running(tmp_path, [script(tmp_path, WAITS["lock"])]) as task:
        task.wait_for_line("ready")
        wait_until_asleep(task)
        task.process.send_signal(signal.SIGINT)
        assert task.wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in task.output and "done" in task.output


# -- a stop that comes while it cannot be raised

SLOW = """
class Slow:
    def __del__(self):
        print("deleting", flush=True)
        while not os.path.exists("go"): pass
        print("deleted", flush=True)
"""
# In the callback of a weak reference, which imports use: Python ignores the exception.
CALLED_BACK = """
import weakref
class Dies: pass
def slow(_):
    try:
        print("deleting", flush=True)
        time.sleep(1000)
    finally:
        print("deleted", flush=True)
dies = Dies(); callback = weakref.ref(dies, slow)
"""
AGAIN = "print('deleting', flush=True); os.kill(os.getpid(), 15)\n    while not os.path.exists('go'): pass"
LATER = ["ready", "deleting", "deleted", "finally", "done", "atexit"]


def stopped_late(directory: Path, command: list[str | Path]) -> tuple[int, list[str]]:
    """The exit code and output of a script that is stopped when it is `deleting`, until it may go on."""
    with running(directory, command) as task:
        task.wait_for_line("deleting")
        task.process.send_signal(signal.SIGTERM)
        while True:  # until it is no longer pending
            status = Path(f"/proc/{task.process.pid}/status").read_text()
            if not int(status.split("ShdPnd:")[1].split()[0], 16) & 1 << 14:
                break
        (directory / "go").write_text("")
        return task.wait(), task.output.splitlines()


@pytest.mark.parametrize(
    ("wait", "before"), [("Slow(); time.sleep(1000)", SLOW), ("del dies; time.sleep(1000)", CALLED_BACK)]
)
def test_a_stop_in_a_finalizer_is_raised_later(tmp_path: Path, wait: str, before: str) -> None:
    assert stopped_late(tmp_path, [script(tmp_path, wait, before)]) == (143, LATER)


def test_a_stop_in_a_finalizer_at_the_exit_interrupts_nothing(tmp_path: Path) -> None:
    code, said = stopped_late(tmp_path, ["-c", f"import atexit, os\n{SLOW}atexit.register(Slow)\n"])
    assert (code, said[:2]) == (0, ["deleting", "deleted"])


def test_a_second_sigterm_does_not_interrupt_the_clean_up(tmp_path: Path) -> None:
    stops_itself = "os.kill(os.getpid(), 15); time.sleep(1000)"
    code, said = stopped_late(tmp_path, [script(tmp_path, stops_itself, after=AGAIN)])
    assert (code, said) == (143, ["ready", "finally", "deleting", "done", "atexit"])


def wait_until_asleep(task: Task) -> None:
    """Wait until its main thread sleeps in the kernel. A signal right before a sleep would be handled after it."""
    until(lambda: psutil.Process(task.process.pid).status() == psutil.STATUS_SLEEPING)


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    inherited = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with running(tmp_path, ["-c", "import signal; print(int(signal.getsignal(15)))"]) as task:
            assert (task.wait(), task.output) == (0, "1\n")
    finally:
        signal.signal(signal.SIGTERM, inherited)
