"""A signal writes the stacks of all threads; the signal stays the script's to take."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tasks import finished, running
from waiting import until

STACKS = int(signal.SIGURG)
WAITING = """
import ctypes, sys, threading

def hold():
    if "locked" in sys.argv:
        ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter lock
    threading.Event().wait()

threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
hold()
"""


@pytest.mark.parametrize(("arguments", "hooks"), [([], True), (["locked"], False)])
def test_a_hanging_process_writes_its_stacks(tmp_path: Path, arguments: list[str], hooks: bool) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    with running(tmp_path, ["train.py", *arguments], hooks=hooks) as task:

        def stacks_while_it_holds() -> str | None:
            """Its stacks; None if it does not block yet."""
            os.truncate(task.stacks_file, 0)
            task.process.send_signal(STACKS)
            text = until(lambda: text if "in <module>" in (text := task.stacks_file.read_text()) else None)
            return text if any(f'train.py", line {line} in hold' in text for line in (6, 7)) else None

        task.wait_for_report(stacks=STACKS)
        task.wait_for_line("ready")
        text = until(stacks_while_it_holds)
        assert text.count("hread 0x") == 2  # one of them may be "Current thread"
        assert task.stacks_file.stat().st_mode & 0o777 == 0o600
        assert task.process.poll() is None
        assert "in hold" not in task.output


@pytest.mark.parametrize(
    "claim",
    [
        "import signal; signal.signal(signal.SIGURG, lambda *_: print('mine', flush=True))",
        "import faulthandler, signal, sys; faulthandler.register(signal.SIGURG, file=sys.stdout)",
    ],
)
def test_a_script_that_takes_the_signal_is_reported(tmp_path: Path, claim: str) -> None:
    script = "import threading\n" + claim + "; print('ready', flush=True)\nthreading.Event().wait()"
    with running(tmp_path, ["-c", script]) as task:
        task.wait_for_report(stacks=STACKS)
        task.wait_for_report(stacks=None)
        task.wait_for_line("ready")
        task.process.send_signal(STACKS)
        # After that line it may be anywhere in the module.
        task.wait_for_line("mine" if "mine" in claim else "in <module>")
        assert task.stacks_file.read_text() == ""


def test_a_crash_prints_the_stacks(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", "import ctypes; ctypes.string_at(8)"])
    assert task.wait() == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in task.output and "in string_at" in task.output


def test_permission_to_trace_does_not_disturb_the_script(tmp_path: Path) -> None:
    """A kernel without Yama does not know the call. Only a task with a tracer imports ctypes."""
    script = "import sys; print('ctypes' in sys.modules)"
    assert finished(tmp_path, ["-c", script], tracer=os.getpid()).output == "True\n"
    assert finished(tmp_path, ["-c", script]).output == "False\n"
