"""`--interactive` and `--pdb`: the terminal of `orch up` is the terminal of one task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from orch_command import ORCH, Orch
from terminal import Terminal
from waiting import PATIENCE_S, until

_SCRIPT = """
import decimal, os, sys, time
task = os.environ["ORCH_TASK"]
if task != "worker:0":
    while not os.path.exists("typed"):
        time.sleep(0.01)
    print("hello from", task, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    raise SystemExit
word = input("word? ")
open("typed", "w").close()
x = len(word)
breakpoint()
print("x is", x, "of", task)
open("go", "w").close()
"""
START = {"spawn": ("--start", "spawn"), "fork": ("--preload", "decimal")}

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(orch: Orch) -> Iterator[Open]:
    """Open a terminal that runs `orch` with these words."""
    opened: list[Terminal] = []

    def open_one(*words: str, **settings: Any) -> Terminal:
        opened.append(Terminal([str(ORCH), *words], orch.directory, orch.environ(), **settings))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()


@pytest.fixture
def train(orch: Orch) -> str:
    return orch.script("train.py", _SCRIPT)


def _log(orch: Orch, task: str = "worker-0") -> str:
    # Not as text: that would hide the line ends.
    return (orch.run_dir() / "logs" / f"{task}.log").read_bytes().decode()


@pytest.mark.parametrize("start", START)
def test_input_and_pdb_work_and_other_lines_wait(orch: Orch, terminal: Open, train: str, start: str) -> None:
    term = terminal("up", "-n", "2", "--interactive", "0", *START[start], "--", train)
    term.until_shown("word?")
    term.type("hallo\r")
    term.until_shown("(Pdb)")
    until(lambda: "hello from worker:1" in _log(orch, "worker-1"))
    term.pump()
    assert not any("hello from" in line for line in term.everything)
    assert orch.status()["run"]["debugged"] == ["worker:0"]
    term.type("p x * 2\r")
    term.until_shown("10")
    term.type("c\r")
    assert term.finish() == 0
    lines = term.everything
    assert any("x is 5 of worker:0" in line for line in lines)
    assert any("worker:1 | hello from worker:1" in line for line in lines)
    assert term.modes == term.modes_before
    # The log has input and output, too, with the line ends that the task wrote.
    log = _log(orch)
    assert "word? hallo\n" in log and "x is 5 of worker:0\n" in log and "\r" not in log
    assert "worker:0 | " not in "\n".join(lines)
    assert {event["method"] for event in orch.events("task_started")} == {start}


_LOOP = """
import os, sys, termios, time
if os.environ["ORCH_TASK"] == "worker:1":
    while not os.path.exists("go"):
        print("beside", flush=True)
        time.sleep(0.05)
    raise SystemExit
erase = termios.tcgetattr(0)[6][termios.VERASE]
print("size", os.get_terminal_size().columns, os.isatty(0), os.isatty(1), os.isatty(2), erase, flush=True)
while (word := input("> ")) != "end":
    try:
        print("got", word, os.get_terminal_size().columns, flush=True)
        while word == "sleep":
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
open("go", "w").close()
"""


@pytest.fixture
def loop(orch: Orch) -> str:
    return orch.script("loop.py", _LOOP)


def test_keys_for_a_task_that_does_not_read(terminal: Open, orch: Orch) -> None:
    """The kernel takes some keys, then refuses more. The key that leaves comes after more than orch reads at once."""
    term = terminal("up", "--interactive", "0", "--", orch.script("busy.py", _BUSY))
    term.until_shown("busy")
    for _ in range(300):
        term.type("x" * 1000)
    term.type("\x1d")
    term.until_shown("left worker:0")
    term.type("\x03")
    assert term.finish() == 130


_BUSY = """
import os, time, tty
tty.setraw(0)
print("busy", flush=True)
while True:
    time.sleep(0.01)
"""
_AGAIN = """
import os
attempt = os.environ["ORCH_ATTEMPT"]
print("attempt", attempt, input("> "))
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


def test_the_task_has_a_terminal_of_the_same_size_and_modes(terminal: Open, loop: str) -> None:
    term = terminal("up", "--interactive", "0", "--", loop, columns=87, erase=b"#")
    term.until_shown("size 87 True True True b'#'")
    term.resize(93, 24)
    term.type("a\r")
    term.until_shown("got a 93")
    term.type("end\r")
    assert term.finish() == 0


def test_ctrl_c_goes_to_the_task_alone(terminal: Open, loop: str) -> None:
    term = terminal("up", "-n", "2", "--interactive", "worker:0", "--", loop)
    term.until_shown("size ")
    term.type("sleep\r")
    term.until_shown("got sleep")
    term.type("\x03")
    term.until_shown("interrupted")
    term.type("end\r")
    assert term.finish() == 0


def test_a_key_leaves_the_task_and_another_one_returns(orch: Orch, terminal: Open, loop: str) -> None:
    term = terminal("up", "-n", "2", "--interactive", "worker:0", "--", loop)
    term.until_shown("size ")
    term.type("one\r")
    term.until_shown("got one")
    term.type("\x1d")
    term.until_lines(lambda _: sum("left worker:0; i returns" in line for line in term.everything) == 1)
    term.until_shown("worker:1 | beside")
    term.type("i")
    term.until_lines(lambda _: sum("this terminal is in worker:0" in line for line in term.everything) == 2)
    term.type("two\r")
    term.until_shown("got two")
    # Shown once, as it was typed, and not again as lines of the log.
    assert not any("worker:0 | got one" in line for line in term.everything)
    term.type("\x1d\x03")
    assert term.finish() == 130
    assert term.modes == term.modes_before


def test_a_restarted_task_has_the_terminal_again(terminal: Open, orch: Orch) -> None:
    again = orch.script("again.py", _AGAIN)
    term = terminal("up", "--interactive", "0", "--on-failure", "restart", "--start", "spawn", "--", again)
    term.until_shown(">")
    term.type("a\r")
    term.until_shown("attempt 1 a")
    term.until_lines(lambda lines: lines[-1].strip() == ">")
    term.type("b\r")
    assert term.finish() == 0
    assert any("attempt 2 b" in line for line in term.everything)


def test_last_output_of_a_task_is_taken(terminal: Open, orch: Orch) -> None:
    """More than the kernel keeps for the terminal."""
    many = orch.script("many.py", "for n in range(3000): print(n, 'x' * 70)\n")
    term = terminal("up", "--interactive", "0", "--", many)
    assert term.finish() == 0
    assert [line.split()[0] for line in _log(orch).splitlines()] == [str(n) for n in range(3000)]


def test_a_run_that_ends_elsewhere_gives_the_terminal_back(terminal: Open, orch: Orch) -> None:
    term = terminal("up", "-n", "2", "--interactive", "0", "--", orch.script("fails.py", _FAILS))
    assert term.finish() == 7
    assert term.modes == term.modes_before
    assert any("worker:1 failed" in line for line in term.everything)


def test_a_closed_terminal_stops_the_run(terminal: Open, orch: Orch) -> None:
    term = terminal("up", "--interactive", "0", "--", orch.script("asks.py", "input('word? ')"))
    term.until_shown("word?")
    term.close()
    assert term.process.wait(PATIENCE_S) == 143
    assert orch.result()["outcome"] == "stopped"


_REFUSED = {
    ("--interactive", "0"): "standard input and output are not a terminal",
    ("--interactive", "worker:7"): "there is no worker:7 in this run",
    ("--interactive", "0,1"): "one task can have the terminal, not 2",
    ("--interactive", "0", "-d"): "a detached `orch up` has no terminal",
    ("--interactive", "0", "--hosts", "a:2"): "cannot be passed to a task on another host",
    ("--interactive", "0", "--json"): "with --json, standard output has the result only",
    ("--pdb",): "--pdb: standard input and output are not a terminal",
    ("--pdb", "--interactive", "0"): "--pdb and --interactive both need this terminal",
    ("--pdb", "--wait", "done"): "--pdb: a detached `orch up` has no terminal",
}


def test_without_a_terminal_it_is_refused(orch: Orch, loop: str) -> None:
    for words, done in orch.all_within(("up", "-n", "2", *words, "--", loop) for words in _REFUSED):
        assert (done.code, done.out) == (2, ""), words
        assert _REFUSED[words[3:-2]] in done.err and "Traceback" not in done.err, (words, done.err)
    assert orch.run_dirs() == []


_FAILING = """
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


@pytest.fixture
def failing(orch: Orch) -> str:
    return orch.script("failing.py", _FAILING)


@pytest.mark.parametrize("start", START)
def test_pdb_opens_after_a_failure_and_before_the_teardown(
    orch: Orch, terminal: Open, failing: str, start: str
) -> None:
    term = terminal("up", "-n", "2", "--pdb", *START[start], "--", failing)
    term.until_shown("(Pdb)")
    assert any("ZeroDivisionError: division by zero" in line for line in term.everything)
    term.type("p secret\r")
    term.until_shown("42")
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


def test_pdb_opens_for_one_of_several_failures(terminal: Open, failing: str) -> None:
    term = terminal("up", "-n", "2", "--pdb", "--env", "BOTH=1", "--", failing)
    term.until_shown("(Pdb)")
    term.type("p secret\r")
    term.until_shown("42")
    term.type("q\r")
    assert term.finish() == 1
    assert sum("this terminal is in pdb" in line for line in term.everything) == 1
    # pdb of the other task would print its exception, too.
    assert sum(line == "ZeroDivisionError: division by zero" for line in term.everything) == 1


def test_pdb_opens_although_the_script_has_its_own_excepthook(terminal: Open, failing: str) -> None:
    term = terminal("up", "-n", "2", "--pdb", "--env", "HOOK=1", "--", failing)
    term.until_shown("(Pdb)")
    term.type("q\r")
    assert term.finish() == 1
    assert any("own hook ZeroDivisionError" in line for line in term.everything)


_NO_ERRORS = """
import os, sys
if os.fork() == 0:
    raise ValueError("of the child")
os.wait()
sys.stdout.flush()
raise KeyboardInterrupt
"""


def test_pdb_opens_for_errors_of_the_task_only(terminal: Open, orch: Orch) -> None:
    """Not for those of its child processes, nor for an interrupt."""
    term = terminal("up", "--pdb", "--", orch.script("none.py", _NO_ERRORS))
    assert term.finish() == 130
    assert "(Pdb)" not in "\n".join(term.everything)


def test_ctrl_c_stops_a_run_whose_task_is_in_pdb_once_the_user_has_left_it(
    terminal: Open, failing: str
) -> None:
    term = terminal("up", "-n", "2", "--pdb", "--", failing)
    term.until_shown("(Pdb)")
    term.type("\x1d")
    term.until_shown("left worker:1")
    term.type("\x03")
    assert term.finish() == 130
