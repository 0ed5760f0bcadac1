"""Debuggers in a task: `breakpoint()` without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks import finished


def script(directory: Path, text: str) -> Path:
    file = directory / "train.py"
    file.write_text(text)
    return file


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
    text = "import io, sys\nsys.stdin = io.StringIO('p 6 * 7\\nc\\n')\nbreakpoint()\nprint('after')\n"
    task = finished(tmp_path, [script(tmp_path, text)])
    assert task.wait() == 0 and "(Pdb) 42" in task.output and task.output.endswith("after\n")


def test_advice_in_another_thread_does_not_end_the_task(tmp_path: Path) -> None:
    text = "import threading\nt = threading.Thread(target=lambda: breakpoint())\nt.start()\nt.join()\nprint('after')\n"
    task = finished(tmp_path, [script(tmp_path, text)])
    assert task.wait() == 0
    assert "orch: breakpoint() at " in task.output and task.output.endswith("after\n")
