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


def test_a_bare_breakpoint_ends_the_task_with_one_line_of_advice(tmp_path: Path) -> None:
    train = script(tmp_path, "import sys\nbreakpoint()\nprint('after')\n")
    task = finished(tmp_path, [train])
    assert task.wait() == 1
    (line,) = task.output.splitlines()
    assert line.startswith(f"orch: breakpoint() at {train}:2: ") and "PYTHONBREAKPOINT=0" in line


def test_the_exit_is_an_orderly_one(tmp_path: Path) -> None:
    train = script(tmp_path, "try:\n    breakpoint()\nfinally:\n    print('cleaned up')\n")
    assert finished(tmp_path, [train]).output.endswith("\ncleaned up\n")


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


def test_a_client_stops_at_a_breakpoint_and_lets_the_script_continue(tmp_path: Path) -> None:
    train = script(tmp_path, "x = 6\ny = x * 7\nprint('y is', y)\n")
    with running(tmp_path, [train], debugger={"port": 0, "waits": True}) as task:
        port = port_of(task)
        with DapClient(port) as client:
            client.attach(train, 3)
            thread = client.stopped()
            assert client.evaluate(thread, "x + y") == "48"
            assert "y is" not in task.output
            task.wait_for_report(debugger={"state": "attached", "port": port})
            client.resume(thread)
            assert task.wait() == 0
        assert task.output == "y is 42\n"


def test_breakpoint_stops_in_an_attached_client(tmp_path: Path) -> None:
    train = script(tmp_path, "x = 6\nbreakpoint()\nprint('after')\n")
    with (
        running(tmp_path, [train], debugger={"port": 0, "waits": True}) as task,
        DapClient(port_of(task)) as client,
    ):
        client.attach(train)
        thread = client.stopped()
        assert client.evaluate(thread, "x") == "6"
        client.resume(thread)
        assert task.wait() == 0 and task.output == "after\n"


def test_breakpoint_is_ignored_while_no_client_is_attached(tmp_path: Path) -> None:
    train = script(tmp_path, "breakpoint()\nprint('after')\n")
    task = finished(tmp_path, [train], debugger={"port": 0, "waits": False})
    assert task.wait() == 0 and task.output == "after\n"


def test_a_port_that_is_in_use_is_replaced(tmp_path: Path) -> None:
    train = script(tmp_path, "print('after')\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, [train], debugger={"port": port, "waits": False}) as task:
            assert port_of(task) != port
            assert task.wait() == 0


def test_debugpy_changes_no_variable(tmp_path: Path) -> None:
    train = script(tmp_path, "import os\nprint('PYDEVD' in str(os.environ))\n")
    assert finished(tmp_path, [train], debugger={"port": 0, "waits": False}).output == "False\n"
