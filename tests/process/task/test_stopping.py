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
                wait_for_child(task)
            if name != "python":
                # Earlier, asyncio would warn of a coroutine that is not awaited, and a child process would stay.
                wait_until_asleep(task)
            assert task.stop() == 143, name
            assert task.output.splitlines() == ["ready", "finally", "done", "atexit"], name
            assert (tmp_path / name / "unclosed.txt").read_text() == "buffered"
            assert not task.exception_file.exists()


def test_a_stop_before_the_script_is_quiet(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n")
    with running(tmp_path, ["-c", "print('begun')"], env={"PYTHONPATH": str(library)}) as task:
        assert (task.wait(), task.output) == (143, "")


def test_a_second_sigterm_does_not_interrupt_the_clean_up(tmp_path: Path) -> None:
    after = "print('again', flush=True); os.kill(os.getpid(), 15)\n    while not os.path.exists('go'): pass"
    with running(tmp_path, [script(tmp_path, WAITS["lock"], after=after)]) as task:
        task.wait_for_line("ready")
        wait_until_asleep(task)
        task.process.send_signal(signal.SIGTERM)
        task.wait_for_line("again")
        task.process.send_signal(signal.SIGTERM)
        wait_until_delivered(task)
        (tmp_path / "go").write_text("")
        assert task.wait() == 143
        assert task.output.splitlines() == ["ready", "finally", "again", "done", "atexit"]


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
    with running(tmp_path, [script(tmp_path, WAITS["lock"], before=before)]) as task:
        task.wait_for_line("ready")
        wait_until_asleep(task)
        assert task.stop() == code
        assert task.output.splitlines() == ["ready", *said]


@pytest.mark.parametrize(
    ("catch", "code"),
    [
        ("as stop: print(type(stop).__name__, stop.code)", 0),
        (": sys.exit(5)", 5),
        (": raise ValueError('in the end')", 1),
    ],
)
def test_a_script_may_catch_the_stop(tmp_path: Path, catch: str, code: int) -> None:
    wait = f"try:\n        print('within', flush=True); time.sleep(1000)\n    except SystemExit {catch}"
    with running(tmp_path, [script(tmp_path, wait)]) as task:
        task.wait_for_line("within")
        wait_until_asleep(task)
        assert task.stop() == code
        assert task.output.splitlines()[-1] == "atexit"
        assert "SystemExit 143" in task.output or code != 0


def test_sigint_raises_keyboard_interrupt(tmp_path: Path) -> None:
    with running(tmp_path, [script(tmp_path, WAITS["lock"])]) as task:
        task.wait_for_line("ready")
        wait_until_asleep(task)
        task.process.send_signal(signal.SIGINT)
        assert task.wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in task.output and "done" in task.output


def test_a_stop_in_a_finalizer_is_raised_later(tmp_path: Path) -> None:
    before = (
        "class Slow:\n"
        "    def __del__(self):\n"
        "        print('deleting', flush=True)\n"
        "        while not os.path.exists('go'): pass\n"
        "        print('deleted', flush=True)\n"
    )
    assert_raised_again(tmp_path, "Slow(); time.sleep(1000)", before)


def test_a_stop_in_a_finalizer_at_the_exit_interrupts_nothing(tmp_path: Path) -> None:
    text = (
        "import atexit, os\n"
        "class Slow:\n"
        "    def __del__(self):\n"
        "        print('deleting', flush=True)\n"
        "        while not os.path.exists('go'): pass\n"
        "        print('deleted', flush=True)\n"
        "atexit.register(Slow)\n"
    )
    with running(tmp_path, ["-c", text]) as task:
        task.wait_for_line("deleting")
        task.process.send_signal(signal.SIGTERM)
        wait_until_delivered(task)
        (tmp_path / "go").write_text("")
        assert task.wait() == 0
        assert task.output.splitlines()[:2] == ["deleting", "deleted"]


def test_a_stop_that_python_ignored_assert_raised_again(tmp_path: Path) -> None:
    # In the callback of a weak reference, which imports use.
    before = (
        "import weakref\n"
        "class Dies: pass\n"
        "def slow(_):\n"
        "    try:\n"
        "        print('deleting', flush=True)\n"
        "        time.sleep(1000)\n"
        "    finally:\n"
        "        print('deleted', flush=True)\n"
        "dies = Dies(); callback = weakref.ref(dies, slow)\n"
    )
    assert_raised_again(tmp_path, "del dies; time.sleep(1000)", before)


def assert_raised_again(tmp_path: Path, wait: str, before: str) -> None:
    with running(tmp_path, [script(tmp_path, wait, before=before)]) as task:
        task.wait_for_line("deleting")
        task.process.send_signal(signal.SIGTERM)
        wait_until_delivered(task)
        (tmp_path / "go").write_text("")
        assert task.wait() == 143
        assert task.output.splitlines() == ["ready", "deleting", "deleted", "finally", "done", "atexit"]


def wait_for_child(task: Task) -> None:
    while not any(child.name() == "sleep" for child in psutil.Process(task.process.pid).children()):
        assert task.process.poll() is None, task.output


def wait_until_asleep(task: Task) -> None:
    """Wait until its main thread sleeps in the kernel. A signal right before a sleep would be handled after it."""
    until(lambda: psutil.Process(task.process.pid).status() == psutil.STATUS_SLEEPING)


def wait_until_delivered(task: Task) -> None:
    """Wait until SIGTERM is no longer pending."""
    while True:
        status = Path(f"/proc/{task.process.pid}/status").read_text()
        if not int(status.split("ShdPnd:")[1].split()[0], 16) & 1 << 14:
            return


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    inherited = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with running(tmp_path, ["-c", "import signal; print(int(signal.getsignal(15)))"]) as task:
            assert (task.wait(), task.output) == (0, "1\n")
    finally:
        signal.signal(signal.SIGTERM, inherited)


def test_a_program_without_hooks_is_killed_by_sigterm(tmp_path: Path) -> None:
    with running(tmp_path, [script(tmp_path, WAITS["lock"])], hooks=False) as task:
        task.wait_for_line("ready")
        assert task.stop() == -signal.SIGTERM
