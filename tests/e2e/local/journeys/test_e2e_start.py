"""The start of tasks as the user sees it: forked or not, and failures, in `up`, `config` and the result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orch_command import Orch
from waiting import until

CHAINED = """
def read(table):
    try:
        return table["missing"]
    except KeyError as error:
        raise RuntimeError("cannot read the table") from error

read({})
"""
LOST = """
import os, sys, time
class UnavailableError(Exception): pass
if os.environ["ORCH_TASK"] == "worker:1":
    sys.exit(0)
while not os.path.exists("go"):
    time.sleep(0.01)
raise UnavailableError("Socket closed")
"""


def test_preload_option_imports_module_once(orch: Orch) -> None:
    orch.script("look.py", "import json, os; print('made by', os.getppid())")
    done = orch("-v", "up", "-n", "3", "--preload", "json", "--", "look.py")
    assert done.code == 0
    assert "orch: preloaded json in" in done.err
    (preloaded,) = orch.events("preloaded")
    assert preloaded["modules"] == ["json"] and preloaded["seconds"] > 0
    assert orch.methods() == {"fork"}
    # The agent is the parent of all forked tasks.
    assert len({line.rpartition(" ")[2] for line in done.lines}) == 1


def test_verbose_says_why_tasks_are_not_forked(orch: Orch) -> None:
    orch.script("look.py", "import json; print('hello')")
    quiet = orch("up", "--preload", "json", "--start", "spawn", "--", "look.py")
    assert (quiet.code, quiet.out) == (0, "worker:0 | hello\n")
    assert "started" not in quiet.err
    verbose = orch("-v", "up", "--preload", "json", "--start", "spawn", "--", "look.py")
    assert "orch: not preloaded: --start spawn asks for it" in verbose.err
    newest = orch.run_dirs()[-1]
    assert not orch.events("preloaded", newest)
    assert orch.methods(newest) == {"spawn"}


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_report_has_exception_and_path_of_full_traceback(orch: Orch, start: str) -> None:
    orch.script("fail.py", CHAINED)
    done = orch("up", "--preload", "json", "--start", start, "--", "fail.py")
    assert done.code == 1
    first = orch.result()["first_failure"]
    assert first["exception"] == "RuntimeError: cannot read the table"
    whole = Path(first["exception_file"])
    assert whole.parent == orch.run_dir() / "exceptions"
    text = whole.read_text()
    assert text.index("KeyError: 'missing'") < text.index("RuntimeError: cannot read the table")
    assert "bootstrap" not in text and "preloader" not in text
    assert {path.stat().st_mode & 0o777 for path in whole.parent.iterdir()} == {0o600}
    assert f"full traceback {whole}" in done.err


def test_exception_is_reported_with_closed_stderr(orch: Orch) -> None:
    program = "import os, sys; sys.stderr.close(); os.close(2); raise ValueError('stderr is closed')"
    done = orch("up", "--", sys.executable, "-c", program)
    assert done.code == 1
    assert orch.result()["first_failure"]["exception"] == "ValueError: stderr is closed"
    assert "failed: ValueError: stderr is closed" in done.err


@pytest.mark.parametrize(("end", "code"), [("sys.exit('enough')", 1), ("sys.exit(3)", 3), ("os._exit(4)", 4)])
def test_exit_is_not_reported_as_exception(orch: Orch, end: str, code: int) -> None:
    done = orch("up", "--", sys.executable, "-c", f"import os, sys; {end}")
    assert done.code == code
    first = orch.result()["first_failure"]
    assert (first["exception"], first["exception_file"]) == (None, None)


def test_sigterm_before_first_line_exits_quietly(orch: Orch) -> None:
    lib = orch.directory.parent / "lib"
    lib.mkdir()
    (lib / "sitecustomize.py").write_text(
        "import os, signal\nif 'ORCH_TASK' in os.environ: os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = orch("up", "--", sys.executable, "-c", "print('begun')", env={"PYTHONPATH": str(lib)})
    assert (done.code, done.out) == (143, ""), done.err


def test_task_that_lost_its_peer_is_not_the_cause(orch: Orch) -> None:
    """Even though its exception is recorded in a file."""
    orch.script("lose.py", LOST)
    orch.start("up", "-n", "2", "--", "lose.py")
    until(lambda: orch.run_dirs() and orch.events("task_exited"))
    (orch.directory / "go").touch()
    assert orch.result()["first_failure"]["task"] == "worker:0"
    assert orch.result()["first_failure"]["exception"] == "UnavailableError: Socket closed"
    assert (orch.run_dir() / "exceptions" / "worker-0.json").exists()
    cause = orch.result()["cause"]
    assert (cause["task"], cause["kind"]) == ("worker:1", "left_early")


def test_config_shows_start_method(orch: Orch) -> None:
    orch.script("look.py", "import json")
    document = orch("config", "--json", "--preload", "json", "--", "look.py").document
    assert document["start"]["method"] == "fork"
    assert document["start"]["preload"] == ["json"]
    assert document["tasks"][0]["bootstrap"]["task"] == "worker:0"
    assert "ORCH_BOOTSTRAP" not in document["tasks"][0]["env"]
    text = orch("config", "--preload", "json", "--start", "spawn", "--", "look.py").out
    assert "start        spawn: --start spawn asks for it" in text


def test_isolated_python_runs_without_bootstrap(orch: Orch) -> None:
    done = orch("-v", "up", "--", sys.executable, "-I", "-c", "raise ValueError('isolated')")
    assert done.code == 1
    assert "keep orch's code out of the script's process" in done.err
    first = orch.result()["first_failure"]
    assert (first["exception"], first["exception_file"]) == ("ValueError: isolated", None)
