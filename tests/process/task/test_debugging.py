"""Debuggers in a task: debugpy with a client of its protocol, `breakpoint()` without a terminal, and stacks."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from dap_client import DapClient
from tasks import finished, running

THREAD = "import threading\nt = threading.Thread(target=lambda: breakpoint())\nt.start()\nt.join()\nprint('after')\n"
PDB = "import io, sys\nsys.stdin = io.StringIO('p 6 * x\\nc\\n')\nx = 7\nbreakpoint()\nprint('after')\n"
ADVICE = "orch: breakpoint() at "
# The script, PYTHONBREAKPOINT, the exit code, the begin and the end of the output.
WITHOUT_A_DEBUGGER: list[tuple[str, str | None, int, str, str]] = [
    (
        "try:\n    breakpoint()\nfinally:\n    print('cleaned up')\nprint('after')\n",
        None,
        1,
        ADVICE,
        "cleaned up\n",
    ),
    (THREAD, None, 0, ADVICE, "after\n"),
    (PDB, None, 0, "> ", "(Pdb) 42\n(Pdb) after\n"),
    ("breakpoint()\nprint('after')\n", "0", 0, "after", "after\n"),
    ("breakpoint()\nprint('after')\n", "builtins.print", 0, "\n", "after\n"),
]


@pytest.mark.parametrize(("text", "choice", "code", "begin", "end"), WITHOUT_A_DEBUGGER, ids=range(5))
def test_a_bare_breakpoint(
    tmp_path: Path, text: str, choice: str | None, code: int, begin: str, end: str
) -> None:
    """It ends the main thread in an orderly way, with one line of advice. The user's own choice stays."""
    task = finished(tmp_path, [script(tmp_path, text)], env={"PYTHONBREAKPOINT": choice})
    assert (task.wait(), task.output[: len(begin)]) == (code, begin) and task.output.endswith(end)
    if begin == ADVICE:
        (advice,) = (line for line in task.output.splitlines() if ADVICE in line)
        assert f"{tmp_path}/train.py:2: " in advice and "PYTHONBREAKPOINT=0" in advice


def script(directory: Path, text: str) -> Path:
    file = directory / "train.py"
    file.write_text(text)
    return file


def test_a_client_stops_at_breakpoints_of_both_kinds(tmp_path: Path) -> None:
    train = script(tmp_path, "y = 42\nprint('y is', y)\nx = 5\nbreakpoint()\nprint('after')\n")
    with running(tmp_path, [train], debugger={"port": 0, "waits": True}) as task:
        port = task.wait_for_first("debugger")["port"]
        with DapClient(port) as client:
            client.attach(train, 2)
            for expression, value, shown in (("y", "42", ""), ("x", "5", "y is 42\n")):
                thread = client.stopped()
                assert (client.evaluate(thread, expression), task.output) == (value, shown)
                client.resume(thread)
            task.wait_for_report(debugger={"state": "attached", "port": port})
            assert task.wait() == 0
        assert task.output == "y is 42\nafter\n"


def test_a_debugger_without_a_client_takes_another_port_and_changes_nothing(tmp_path: Path) -> None:
    """Its port is in use, breakpoint() is ignored, and the environment is the script's."""
    train = script(tmp_path, "import os\nbreakpoint()\nprint('PYDEVD' in str(os.environ))\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, [train], debugger={"port": port, "waits": False}) as task:
            assert task.wait_for_first("debugger")["port"] != port
            assert task.wait() == 0
    assert task.output == "False\n"


# -- a signal writes the stacks of all threads; the signal stays the script's to take


STACKS = int(signal.SIGURG)


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
