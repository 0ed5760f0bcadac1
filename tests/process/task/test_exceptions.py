"""An exception that ends a script is written to a file. test_like_plain_python.py has what is printed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tasks import finished

CHAINED = """
class Broken(Exception):
    pass

def read():
    return {}["néeded \\U0001f600"]

try:
    read()
except KeyError as error:
    raise Broken('a "quoted"\\nmessage') from error
"""


def test_the_whole_exception_with_its_causes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHAINED)
    plain = finished(tmp_path, ["train.py"], bootstrap=False)
    expected = plain.output
    task = finished(tmp_path, ["train.py"])
    assert (task.wait(), task.output) == (1, expected)
    found = task.exception
    assert 0 < found.pop("mono") < time.monotonic()
    assert found == {
        "type": "Broken",
        "message": 'a "quoted"\nmessage',
        "text": task.output,
        "at": f"{tmp_path / 'train.py'}:11",
    }
    assert "KeyError: 'néeded \U0001f600'" in found["text"] and "direct cause" in found["text"]
    assert task.exception_file.stat().st_mode & 0o777 == 0o600
    assert task.exception_file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in task.exception_file.parent.iterdir()] == ["worker-0.txt"]


@pytest.mark.parametrize("script", ["1/0", "import sys\nsys.excepthook = lambda *_: print('mine')\n1/0"])
def test_exceptions_are_written_without_hooks_too(tmp_path: Path, script: str) -> None:
    assert finished(tmp_path, ["-c", script], hooks=False).exception["type"] == "ZeroDivisionError"


def test_frames_of_the_bootstrap_are_not_printed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "file = 'bootstrap/after_import.py'\n"
        "hooks = next(m for m in sys.modules.values() if (getattr(m, '__file__', 0) or '').endswith(file))\n"
        "def mine(module): 1/0\n"
        "try: hooks.after_import('sys', mine)\n"
        "except ZeroDivisionError as error: raise ValueError('two') from error"
    )
    (tmp_path / "train.py").write_text(script)
    task = finished(tmp_path, ["train.py"])
    assert task.wait() == 1
    assert "line 4, in mine" in task.output and "after_import.py" not in task.output
    # The file is for a report to orch's authors, too.
    assert "bootstrap/after_import.py" in task.exception["text"]


def test_exceptions_of_threads_go_into_another_file(tmp_path: Path) -> None:
    script = (
        "import threading\nfor n in (1, 2):\n  t = threading.Thread(target=lambda: n/0); t.start(); t.join()"
    )
    task = finished(tmp_path, ["-c", script])
    assert task.wait() == 0
    assert not task.exception_file.exists()
    noted = task.exception_file.with_name("worker-0.txt.threads").read_text().splitlines()
    assert [json.loads(line)["type"] for line in noted] == ["ZeroDivisionError"] * 2
    assert task.output.count("Exception in thread") == 2


def test_a_long_exception_loses_its_middle(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", "raise ValueError('a' * 300_000 + 'end')"])
    found = task.exception
    assert len(task.exception_file.read_bytes()) < 100_000
    assert "characters left out" in found["message"] and found["text"].endswith("aend\n")


def test_an_exception_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    task = finished(tmp_path, ["-c", "1/0"], exception_file=str(tmp_path / "file" / "exception.txt"))
    assert task.wait() == 1 and "ZeroDivisionError" in task.output


def test_nothing_is_written_into_a_directory_that_replaced_that_of_the_run(tmp_path: Path) -> None:
    script = (
        "import threading\nt = threading.Thread(target=lambda: [][0]); t.start(); t.join()\nprint('ran')\n1/0"
    )
    task = finished(tmp_path, ["-c", script], run_directory=[0, 1])
    assert task.wait() == 1
    assert "writing stacks on request is off in this task: OSError: " in task.output
    assert "ran\n" in task.output and "ZeroDivisionError" in task.output
    assert [*(tmp_path / "run").iterdir()] == []
    place = (tmp_path / "run").stat()
    task = finished(tmp_path, ["-c", script], run_directory=[place.st_dev, place.st_ino])
    assert task.exception["type"] == "ZeroDivisionError"
    assert sorted(path.parent.name for path in task.exception_file.parent.parent.rglob("*.txt*")) == [
        *("exceptions", "exceptions", "stacks"),
    ]


def test_files_beside_the_script_do_not_replace_standard_modules(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1/0")
    for name in ("traceback", "json", "linecache", "signal", "threading"):
        (tmp_path / f"{name}.py").write_text("print('mine')")
    task = finished(tmp_path, ["train.py"])
    assert "mine" not in task.output and task.exception["text"] == task.output
