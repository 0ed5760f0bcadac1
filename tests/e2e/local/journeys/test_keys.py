"""`--interactive` and `--pdb`: the terminal of `orch up` is the terminal of one task."""

from __future__ import annotations

import pytest
from orch_command import Orch
from terminal import OpenTerminal
from waiting import PATIENCE_S, until

START = {"spawn": ("--start", "spawn"), "fork": ("--preload", "decimal")}
_SESSION = """
import decimal, os, sys, termios, time
if os.environ["ORCH_TASK"] == "worker:1":
    while not os.path.exists("go"):
        if os.path.exists("here"):
            print("beside")
        time.sleep(0.05)
    raise SystemExit
erase = termios.tcgetattr(0)[6][termios.VERASE]
print("size", os.get_terminal_size().columns, os.isatty(0), os.isatty(1), os.isatty(2), erase)
while (word := input("> ")) != "debug":
    try:
        print("got", word, os.get_terminal_size().columns)
        open("here", "w").close()
        while word == "sleep":
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted")
x = len(word)
breakpoint()
print("x is", x)
open("go", "w").close()
"""
_BUSY = """
import os, time, tty
tty.setraw(0)
print("busy")
while True:
    time.sleep(0.01)
"""
_AGAIN = """
import os
attempt = os.environ["ORCH_ATTEMPT"]
print("attempt", attempt, input("> "))
for n in range(3000 if attempt == "1" else 0):
    print(n, "x" * 70)
raise SystemExit(42 if attempt == "1" else 0)
"""
_FAILS = """
import os, time
if os.environ["ORCH_TASK"] == "worker:0":
    open("go", "w")
    input("wait> ")
while not os.path.exists("go"):
    time.sleep(0.01)
raise SystemExit(7)
"""
_DIVIDES = """
import atexit, decimal, os, sys, time
atexit.register(print, "the end of", os.environ["ORCH_TASK"])

def divide(by):
    secret = 42
    return secret / by

if os.environ.get("HOOK"):
    sys.excepthook = lambda *error: print("own hook", error[0].__name__)
if os.environ["ORCH_TASK"] == "worker:1" or os.environ.get("BOTH"):
    divide(0)
while True:
    time.sleep(0.01)
"""
_NO_ERRORS = """
import os, sys
if os.fork() == 0:
    raise ValueError("of the child")
os.wait()
sys.stdout.flush()
raise KeyboardInterrupt
"""


def _log(orch: Orch, task: str) -> str:
    # Not as text: that would hide the line ends.
    return (orch.run_dir() / "logs" / f"{task}.log").read_bytes().decode()


@pytest.mark.parametrize("start", START)
def test_session_in_a_task(orch: Orch, terminal: OpenTerminal, start: str) -> None:
    """The task has a terminal with the size and modes of the user's, its keys and signals, and pdb. The lines of other
    tasks wait, until a key leaves the task; another key returns."""
    script = orch.script("session.py", _SESSION)
    words = ("-n", "2", "--interactive", "worker:0", *START[start], "--", script)
    term = terminal(orch, "up", *words, columns=87, erase=b"#")

    def count(text: str) -> int:
        return sum(text in line for line in term.everything)

    term.until_shown("size 87 True True True b'#'")
    term.resize(93, 24)
    term.type_for("a\r", "got a 93")
    until(lambda: "beside" in _log(orch, "worker-1"))
    term.type_for("sleep\r", "got sleep")
    term.type_for("\x03", "interrupted")
    assert count("beside") == 0

    term.type("\x1d")
    term.until_lines(lambda _: count("left worker:0; i returns") == 1)
    term.until_shown("worker:1 | beside")
    term.type("i")
    term.until_lines(lambda _: count("this terminal is in worker:0") == 2)
    term.type_for("two\r", "got two")

    term.type_for("debug\r", "(Pdb)")
    assert orch.status()["run"]["debugged"] == ["worker:0"]
    term.type_for("p x * 1111\r", "5555")
    term.type("c\r")
    assert term.finish() == 0
    assert term.modes == term.modes_before
    assert count("x is 5") == 1
    assert count("worker:0 | ") == 0, "shown as it was written, and not again as lines of the log"
    # The log has input and output, too, with the line ends that the task wrote.
    log = _log(orch, "worker-0")
    assert "> debug\n" in log and "x is 5\n" in log and "\r" not in log
    assert orch.methods() == {start}


def test_keys_for_a_task_that_does_not_read(terminal: OpenTerminal, orch: Orch) -> None:
    """The kernel takes some keys, then refuses more. The key that leaves comes after more than orch reads at once."""
    term = terminal(orch, "up", "--interactive", "0", "--", orch.script("busy.py", _BUSY))
    term.until_shown("busy")
    for _ in range(300):
        term.type("x" * 1000)
    term.type_for("\x1d", "left worker:0")
    term.type("\x03")
    assert term.finish() == 130


def test_a_restarted_task_has_the_terminal_again(terminal: OpenTerminal, orch: Orch) -> None:
    """The last output before the restart is more than the kernel keeps for the terminal."""
    words = ("--on-failure", "restart", "--start", "spawn", "--", orch.script("again.py", _AGAIN))
    term = terminal(orch, "up", "--interactive", "0", *words)
    term.until_shown(">")
    term.type("a\r")
    term.until_lines(lambda lines: lines[-1].strip() == ">")
    term.type("b\r")
    assert term.finish() == 0
    assert any("attempt 2 b" in line for line in term.everything)
    many = [line.split()[0] for line in _log(orch, "worker-0").splitlines() if "xxx" in line]
    assert many == [str(n) for n in range(3000)]


def test_a_run_that_ends_elsewhere_gives_the_terminal_back(terminal: OpenTerminal, orch: Orch) -> None:
    term = terminal(orch, "up", "-n", "2", "--interactive", "0", "--", orch.script("fails.py", _FAILS))
    assert term.finish() == 7
    assert term.modes == term.modes_before
    assert any("worker:1 failed" in line for line in term.everything)


def test_a_closed_terminal_stops_the_run(terminal: OpenTerminal, orch: Orch) -> None:
    term = terminal(orch, "up", "--interactive", "0", "--", orch.script("asks.py", "input('word? ')"))
    term.until_shown("word?")
    term.close()
    assert term.process.wait(PATIENCE_S) == 143
    assert orch.result()["outcome"] == "stopped"


@pytest.mark.parametrize("start", START)
def test_pdb_opens_after_a_failure_and_before_the_teardown(
    orch: Orch, terminal: OpenTerminal, start: str
) -> None:
    divides = orch.script("divides.py", _DIVIDES)
    term = terminal(orch, "up", "-n", "2", "--pdb", *START[start], "--", divides)
    term.until_shown("(Pdb)")
    assert any("ZeroDivisionError: division by zero" in line for line in term.everything)
    term.type_for("p secret\r", "42")
    status = orch.status()
    assert [task["state"] for task in status["tasks"]] == ["running", "running"]
    assert status["run"]["debugged"] == ["worker:1"]
    term.type("q\r")
    assert term.finish() == 1
    assert any("worker:1 failed: ZeroDivisionError" in line for line in term.everything)
    assert term.modes == term.modes_before
    log = _log(orch, "worker-1")
    assert "Traceback" in log and "(Pdb) p secret\n42\n" in log
    # Its output goes to the log again, not to the terminal.
    assert any("worker:1 | the end of worker:1" in line for line in term.everything), (term.everything, log)


def test_pdb_opens_for_one_of_several_failures(terminal: OpenTerminal, orch: Orch) -> None:
    """Also if the script has its own excepthook. Ctrl-C stops the run once the user has left pdb."""
    divides = orch.script("divides.py", _DIVIDES)
    term = terminal(orch, "up", "-n", "2", "--pdb", "-e", "BOTH=1", "-e", "HOOK=1", "--", divides)
    term.until_shown("(Pdb)")
    term.type_for("p secret\r", "42")
    term.type_for("\x1d", "left worker:")
    term.until_shown("| own hook ZeroDivisionError")
    term.type("\x03")
    assert term.finish() == 130
    assert sum("this terminal is in pdb" in line for line in term.everything) == 1
    # pdb of the other task would print its exception, too.
    assert sum(line == "ZeroDivisionError: division by zero" for line in term.everything) == 1


def test_pdb_opens_for_errors_of_the_task_only(terminal: OpenTerminal, orch: Orch) -> None:
    """Not for those of its child processes, nor for an interrupt."""
    term = terminal(orch, "up", "--pdb", "--", orch.script("none.py", _NO_ERRORS))
    assert term.finish() == 130
    assert "(Pdb)" not in "\n".join(term.everything)
