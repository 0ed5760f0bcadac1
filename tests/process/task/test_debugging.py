"""Debuggers in a task: debugpy with a client of its protocol, and `breakpoint()` without a terminal."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from dap_client import DapClient
from tasks import Task, finished, running


def script(directory: Path, text: str) -> Path:
    file = directory / "train.py"
    file.write_text(text)
    return file


def port_of(task: Task) -> int:
    """The port of the debugger that the task waits in."""
    port: int = task.wait_for_first("debugger")["port"]
    return port


def test_a_bare_breakpoint_ends_the_task_in_an_orderly_way_with_one_line_of_advice(tmp_path: Path) -> None:
    train = script(tmp_path, "try:\n    breakpoint()\nfinally:\n    print('cleaned up')\nprint('after')\n")
    task = finished(tmp_path, [train])
    assert task.wait() == 1
    line, then = task.output.splitlines()
    assert line.startswith(f"orch: breakpoint() at {train}:2: ") and "PYTHONBREAKPOINT=0" in line
    assert then == "cleaned up"


@pytest.mark.parametrize("choice", ["0", "builtins.print"])
def test_the_users_own_choice_of_a_debugger_stays(tmp_path: Path, choice: str) -> None:
    train = script(tmp_path, "breakpoint()\nprint('after')\n")
    task = finished(tmp_path, [train], env={"PYTHONBREAKPOINT": choice})
    assert task.wait() == 0 and task.output.strip() == "after"


def test_a_script_that_replaces_its_input_can_debug(tmp_path: Path) -> None:
    text = "import io, sys\nsys.stdin = io.StringIO('p 6 * x\\nc\\n')\nx = 7\nbreakpoint()\nprint('after')\n"
    task = finished(tmp_path, [script(tmp_path, text)])
    assert task.wait() == 0 and "(Pdb) 42" in task.output and task.output.endswith("after\n")


def test_advice_in_another_thread_does_not_end_the_task(tmp_path: Path) -> None:
    text = "import threading\nt = threading.Thread(target=lambda: breakpoint())\nt.start()\nt.join()\nprint('after')\n"
    task = finished(tmp_path, [script(tmp_path, text)])
    assert task.wait() == 0
    assert "orch: breakpoint() at " in task.output and task.output.endswith("after\n")


def test_a_client_stops_at_breakpoints_of_both_kinds(tmp_path: Path) -> None:
    train = script(tmp_path, "x = 6\ny = x * 7\nprint('y is', y)\nx = 5\nbreakpoint()\nprint('after')\n")
    with running(tmp_path, [train], debugger={"port": 0, "waits": True}) as task:
        port = port_of(task)
        with DapClient(port) as client:
            client.attach(train, 3)
            thread = client.stopped()
            assert client.evaluate(thread, "x + y") == "48"
            assert "y is" not in task.output
            task.wait_for_report(debugger={"state": "attached", "port": port})
            client.resume(thread)
            thread = client.stopped()
            assert client.evaluate(thread, "x") == "5"
            assert task.output == "y is 42\n"
            client.resume(thread)
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
            assert port_of(task) != port
            assert task.wait() == 0
    assert task.output == "False\n"
