"""`orch` on a pseudo-terminal: lines above a live table that disappears at the end, keys, and a closed window."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from orch_command import ORCH, Orch
from terminal import Terminal
from waiting import PATIENCE_S, lives, until, until_gone

_COUNT = (
    "python3",
    "-uc",
    "import os, time\n"
    "for i in range(300):\n    print('line', i, 'of', os.environ['ORCH_TASK'])\n    time.sleep(0.002)\n"
    "    while i == 150 and not os.path.exists('go'): time.sleep(0.01)",
)
_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")

# Runs a command as a job in the foreground, and says whether a terminal that it left by a stop has its modes.
_SHELL = """
import os, signal, sys, termios
before = termios.tcgetattr(0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
_, status = os.waitpid(pid, os.WUNTRACED)
print("stopped, modes kept:", termios.tcgetattr(0) != before, flush=True)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
"""

# Two tasks that print the output of a command at the same time. Equal lines are folded if they come within 0.3 s. On a
# busy machine the second task may start later than that, so worker:0 writes the lines of both.
_TOGETHER = (
    "if [ $ORCH_TASK = worker:0 ]; then until [ -e ready ]; do sleep 0.05; done; "
    "{0}; {0} >> $ORCH_RUN_DIR/logs/worker-1.log; touch written; "
    "else touch ready; until [ -e written ]; do sleep 0.05; done; fi"
)

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(orch: Orch) -> Iterator[Open]:
    """Open a terminal that runs `orch` with these words; `env` as in Orch."""
    opened: list[Terminal] = []

    def open_one(*words: str, env: dict[str, str | None] | None = None, **size: int) -> Terminal:
        opened.append(Terminal([str(ORCH), *words], orch.directory, orch.environ(env), **size))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()


def _is_restored(term: Terminal) -> bool:
    hidden = term.screen.cursor.hidden
    return term.modes == term.modes_before and not hidden and not term.raw.count(b"\x1b[?1049h")


def test_lines_stream_above_footer(orch: Orch, terminal: Open) -> None:
    """The table is shown while tasks run and disappears at the end; no line is lost, cut or broken by it."""
    term = terminal("up", "-n", "2", "--", *_COUNT, columns=80, lines=12)
    term.until_shown("worker:1  running")
    term.until_lines(
        lambda shown: [line.split()[:1] for line in shown[-3:]] == [["TASK"], ["worker:0"], ["worker:1"]]
    )
    (orch.directory / "go").touch()
    assert term.finish() == 0
    *lines, last = term.everything
    assert last.startswith(f"orch: {orch.run_dir().name} succeeded")
    for task in ("worker:0", "worker:1"):
        mine = [line for line in lines if line.startswith(f"{task} | ")]
        assert mine == [f"{task} | line {i} of {task}" for i in range(300)]
    assert len(lines) == 600, "nothing else is left on the screen"
    assert _is_restored(term)
    assert b"\x1b[38" in term.raw or b"\x1b[3" in term.raw, "the prefix is coloured"


def test_report_is_last(orch: Orch, terminal: Open) -> None:
    term = terminal(
        "up", "-n", "2", "--", "sh", "-c", "echo words; [ $ORCH_TASK = worker:1 ] && exit 3; sleep 600"
    )
    assert term.finish() == 3
    assert term.shown[-1] == "orch: worker:1 failed: exit 3"
    assert term.screen.cursor.x == 0, "the shell's prompt starts on a new line"
    assert not any("TASK" in line for line in term.everything)


def test_lines_that_follow_a_failure_are_one_line(orch: Orch, terminal: Open) -> None:
    """The peers of a failed task report the lost connection at length."""
    script = (
        "if [ $ORCH_TASK = worker:1 ]; then until [ -e ready ]; do sleep 0.05; done; echo cause; exit 3; fi\n"
        "trap 'seq 1001 1068; exit 1' TERM; touch ready; while :; do sleep 0.05; done"
    )
    term = terminal("up", "-n", "2", "--failure-grace", "60s", "--", "sh", "-c", script)
    assert term.finish() == 3
    folded = re.compile(r"worker:0 \| \d\d lines after worker:1 failed \(orch logs worker:0 shows them\)")
    assert sum(bool(folded.fullmatch(line)) for line in term.everything) == 1
    assert "worker:1 | cause" in term.everything
    assert not any("| 10" in line for line in term.everything)
    assert sum("| 10" in line for line in orch("logs").lines) == 68
    assert sum(bool(folded.fullmatch(line)) for line in orch("logs", "--fold").lines) == 1


def test_ctrl_c_stops_then_kills(orch: Orch, terminal: Open) -> None:
    """The first shows a hint, the second kills; the terminal is restored."""
    term = terminal(
        "up", "--grace", "1h", "--", "sh", "-c", 'trap "" TERM INT; echo here; while :; do sleep 1; done'
    )
    term.until_shown("worker:0 | here")
    (pid,) = orch.pids()
    term.type("\x03")
    term.until_shown("Ctrl-C again to kill")
    assert lives(pid)
    term.type("\x03")
    assert term.finish() == 130
    assert not lives(pid) and _is_restored(term)
    assert "stopped" in term.shown[-1] and not any("TASK" in line for line in term.shown)


def test_typed_keys_are_not_echoed(orch: Orch, terminal: Open) -> None:
    """An echo would break the table."""
    command = "until [ -e go ]; do sleep 0.1; done; echo end"
    term = terminal("up", "--", "sh", "-c", command)
    term.until_shown("worker:0  running")
    term.type("\n\nabc\n")
    (orch.directory / "go").touch()
    assert term.finish() == 0
    assert term.everything[0] == "worker:0 | end" and len(term.everything) == 2
    assert _is_restored(term)


def test_closed_window_stops_run(orch: Orch, terminal: Open) -> None:
    term = terminal("up", "-n", "2", "--", *_SLEEPER)
    term.until_shown("worker:1  running")
    pids = orch.pids()
    term.close()
    until_gone(*pids, term.process.pid)
    assert orch.result()["exit_code"] == 143
    assert term.process.wait() == 143


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": None}])
def test_dumb_terminal_gets_plain_lines(orch: Orch, terminal: Open, env: dict[str, str | None]) -> None:
    environ = {**env} if env["TERM"] else {"TERM": ""}
    term = terminal("up", "--", "echo", "words", env=environ)
    assert term.finish() == 0
    assert b"\x1b" not in term.raw and b"worker:0 | words\r\n" in term.raw


def test_no_color_variable_on_terminal(orch: Orch, terminal: Open) -> None:
    """NO_COLOR removes the colours, not the table."""
    term = terminal(
        "up", "--", "sh", "-c", "echo words; until [ -e go ]; do sleep 0.1; done", env={"NO_COLOR": "1"}
    )
    term.until_shown("worker:0  running")
    (orch.directory / "go").touch()
    assert term.finish() == 0
    colours = [
        code for code in term.raw.split(b"\x1b[")[1:] if code.split(b"m")[0].replace(b";", b"").isdigit()
    ]
    assert colours == []


def test_terminal_made_smaller(orch: Orch, terminal: Open) -> None:
    """The terminal becomes smaller than the table during the run: all lines are still shown."""
    command = "echo here; until [ -e go ]; do sleep 0.1; done; echo end"
    term = terminal("up", "-n", "3", "--all-lines", "--", "sh", "-c", command, columns=120, lines=30)
    term.until_shown("worker:2  running")
    term.resize(40, 8)
    (orch.directory / "go").touch()
    assert term.finish() == 0
    assert sum("| end" in line for line in term.everything) == 3


def test_equal_lines_of_tasks_are_folded_on_a_terminal_and_complete_in_the_log(
    orch: Orch, terminal: Open
) -> None:
    for options, expected in (
        ((), ["worker:0-1 | hello"]),
        (("--all-lines",), ["worker:0 | hello", "worker:1 | hello"]),
    ):
        term = terminal("up", "-n", "2", *options, "--", "sh", "-c", _TOGETHER.format("echo hello"))
        assert term.finish() == 0
        assert sorted(line for line in term.everything if "| hello" in line) == expected
    assert sorted(orch("logs").lines) == ["worker:0 | hello", "worker:1 | hello"]
    assert sorted(orch("logs", "--fold").lines) == ["worker:0-1 | hello"]
    assert orch("logs", "--fold", "--raw").code == 2


def test_attach_begins_with_the_last_screen(orch: Orch, terminal: Open) -> None:
    lines = "for i in range(100):\n    print('line', i)\nimport time\ntime.sleep(600)"
    assert orch("up", "--wait", "ready", "--", "python3", "-uc", lines).code == 0
    until(lambda: len(orch("logs").lines) == 100)
    for words, count in (((), 20 - 3), (("--tail", "40"), 40)):
        term = terminal("attach", *words, columns=80, lines=20)
        term.until_shown("worker:0 | line 99")
        term.type("q")
        assert term.finish() == 0
        shown = [line for line in term.everything if "| line" in line]
        assert shown == [f"worker:0 | line {number}" for number in range(100 - count, 100)]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_key_leaves_attach(orch: Orch, terminal: Open, key: str) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    term = terminal("attach")
    term.until_shown("q leaves, the run continues")
    term.type(key)
    assert term.finish() == 0
    assert _is_restored(term) and "it keeps running, `orch down` stops it" in term.shown[-1]
    assert not any("TASK" in line for line in term.shown)
    assert orch.status()["run"]["state"] == "running"


def test_closed_window_of_attach_does_not_stop_run(orch: Orch, terminal: Open) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    term = terminal("attach")
    term.until_shown("q leaves, the run continues")
    term.close()
    assert term.process.wait(PATIENCE_S) == 0
    assert orch.status()["run"]["state"] == "running"


def test_closed_terminal_without_a_hangup_signal_ends_attach(orch: Orch) -> None:
    """The first output after the terminal was closed fails."""
    assert (
        orch("up", "--wait", "ready", "--", "sh", "-c", "while :; do echo tick; sleep 0.05; done").code == 0
    )
    term = Terminal(["sh", "-c", f"trap '' HUP; exec '{ORCH}' attach"], orch.directory, orch.environ())
    try:
        term.until_shown("worker:0 | tick")
        term.close()
        assert term.process.wait(PATIENCE_S) == 0
    finally:
        term.end()
    assert orch.status()["run"]["state"] == "running"


def test_quit_key_restores_the_terminal(orch: Orch, terminal: Open) -> None:
    """Ctrl-\\ ends a program at once."""
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    for verb in ("attach", "up"):
        term = terminal(*{"attach": ("attach",), "up": ("up", "--", *_SLEEPER)}[verb])
        term.until_shown("worker:0  running")
        term.type("\x1c")
        assert term.finish() == -signal.SIGQUIT
        assert term.modes == term.modes_before, verb


def test_tasks_know_how_wide_a_line_is(orch: Orch, terminal: Open) -> None:
    """A bar as wide as COLUMNS takes one row, also if several tasks print it."""
    prints = "printf '%*s\\n' $COLUMNS end"
    term = terminal("up", "-n", "2", "--", "sh", "-c", _TOGETHER.format(prints), columns=70)
    assert term.finish() == 0
    assert term.everything[0] == "worker:0-1 | " + "end".rjust(57)
    for options, env in (((), {"COLUMNS": "30"}), (("-e", "COLUMNS=30"), {})):
        term = terminal("up", *options, "--", "sh", "-c", prints, env=env)
        assert term.finish() == 0
        assert term.everything[0] == "worker:0 | " + "end".rjust(30), "the user's own stays"
    assert orch("up", "--", "sh", "-c", "echo ${COLUMNS-unset}", env={}).lines == ["worker:0 | unset"]


def test_d_detaches_and_the_run_continues(orch: Orch, terminal: Open) -> None:
    """The run continues without its client; attach shows it again."""
    term = terminal("up", "-n", "2", "--", *_SLEEPER, columns=140)
    term.until_shown("worker:1  running")
    term.until_shown("? for keys")
    term.type("d")
    assert term.finish() == 0
    left = f"left {orch.run_dir().name}; it keeps running: `orch attach` shows it, `orch down` stops it"
    assert term.shown[-1] == f"orch: {left}"
    assert not any("TASK" in line for line in term.everything) and _is_restored(term)
    again = terminal("attach")
    again.until_shown("worker:1  running")
    assert all(lives(pid) for pid in orch.pids())
    assert orch("down").code == 0
    assert again.finish() == 143


def test_f_shows_one_task_after_the_other(orch: Orch, terminal: Open) -> None:
    """Each task prints the numbers that the test asks for."""
    script = (
        "n=1; while :; do until [ -e go$n ]; do sleep 0.02; done; echo $n of $ORCH_TASK; n=$((n + 1)); done"
    )
    term = terminal("up", "-n", "2", "--all-lines", "--", "sh", "-c", script)
    term.until_shown("? for keys")
    term.until_shown("worker:1  running")
    shown_alone = ("worker:0", "worker:1", None)
    for number, task in enumerate(shown_alone, 1):
        term.type("f")
        term.until_shown(f"showing {task} only" if task else "showing all tasks")
        (orch.directory / f"go{number}").touch()
        for each in [task] if task else ["worker:0", "worker:1"]:
            term.until_shown(f"{each} | {number} of {each}")
    term.type("\x03")
    assert term.finish() == 130
    alone = [line for line in term.everything if line.startswith("worker:") and " of " in line]
    assert sorted(alone) == [
        "worker:0 | 1 of worker:0",
        "worker:0 | 3 of worker:0",
        "worker:1 | 2 of worker:1",
        "worker:1 | 3 of worker:1",
    ]


def test_s_shows_stacks_and_question_mark_the_keys(orch: Orch, terminal: Open) -> None:
    (orch.directory / "train.py").write_text(
        "import time\n\ndef wait_for_data():\n    time.sleep(600)\n\nprint('here')\nwait_for_data()\n"
    )
    term = terminal("up", "-n", "2", "--all-lines", "--", "train.py", columns=140)
    for task in ("worker:0", "worker:1"):
        term.until_shown(f"{task} | here")
    term.type("?")
    term.until_shown("orch: d leaves, and the run continues; f shows one task or all; s shows the stacks")
    term.type("s")
    term.until_shown("wait_for_data")
    term.type("\x03")
    assert term.finish() == 130 and _is_restored(term)


def test_typed_word_is_not_read_as_keys(orch: Orch, terminal: Open) -> None:
    """The user may type the shell's next command: "ls" does not ask for stacks, "cd" does not detach."""
    term = terminal("up", "--", "sh", "-c", "until [ -e go ]; do sleep 0.1; done")
    term.until_shown("? for keys")
    term.type("cd; ls f?\n")
    (orch.directory / "go").touch()
    assert term.finish() == 0
    assert orch.result()["outcome"] == "succeeded" and len(term.everything) == 1


def test_keys_are_not_read_without_a_terminal_as_input(orch: Orch, terminal: Open) -> None:
    command = "until [ -e go ]; do sleep 0.05; done; cat input"
    (orch.directory / "input").write_text("d")
    term = Terminal(
        ["sh", "-c", f"exec '{ORCH}' up -- sh -c '{command}' < input"], orch.directory, orch.environ()
    )
    try:
        term.until_shown("worker:0  running")
        assert not any("? for keys" in line for line in term.shown)
        (orch.directory / "go").touch()
        assert term.finish() == 0
        assert orch.result()["outcome"] == "succeeded"
    finally:
        term.end()


def test_suspended_view_gives_the_terminal_back(orch: Orch, terminal: Open) -> None:
    """Also if the shell does not restore the modes itself."""
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    term = Terminal([sys.executable, "-c", _SHELL, str(ORCH), "attach"], orch.directory, orch.environ())
    try:
        term.until_shown("? for keys")
        term.type("\x1a")
        term.until_shown("stopped, modes kept: False")
    finally:
        term.end()


def test_up_in_background_and_back(orch: Orch) -> None:
    """Ctrl-Z, then fg: the keys work again; after d the shell's terminal echoes."""
    shell = ["bash", "--norc", "--noprofile", "-i"]
    term = Terminal(shell, orch.directory, orch.environ({"PS1": "prompt> "}), columns=200)
    try:
        term.until_shown("prompt>")
        term.type(f"'{ORCH}' up -- sh -c 'exec sleep 600'\n")
        term.until_shown("? for keys")
        term.type("\x1a")
        term.until_shown("Stopped")
        term.type("stty -a\n")
        term.until_shown(" echo ")
        term.type("clear; fg\n")
        term.until_shown("? for keys")
        term.type("d")
        term.until_shown("it keeps running")
        term.type("clear; stty -a\n")
        term.until_shown(" echo ")
    finally:
        term.end()
        until(lambda: term.process.poll() is not None)
    assert orch.status()["run"]["state"] == "running"


def test_status_watch(orch: Orch, terminal: Open) -> None:
    """The table is redrawn in place until q is pressed or the run ends."""
    assert orch("up", "--wait", "ready", "-n", "2", "--", *_SLEEPER).code == 0
    left, staying = terminal("status", "--watch"), terminal("ps", "-w")
    for term in (left, staying):
        term.until_shown("worker:1  running")
    left.type("q")
    assert left.finish() == 0 and _is_restored(left)
    assert orch("down").code == 0
    staying.until_shown("worker:1  stopped")
    assert staying.finish() == 0 and _is_restored(staying)
    assert sum("worker:1" in line for line in staying.shown) == 1


def test_attach_in_background_job(orch: Orch) -> None:
    """After Ctrl-Z and `bg` lines are still shown, but no table; after `fg` the table is back."""
    command = "echo here; until [ -e go ]; do sleep 0.05; done; echo end; exec sleep 600"
    (orch.directory / "task.sh").write_text(command)
    assert orch("up", "--wait", "ready", "--", "sh", "task.sh").code == 0
    shell = ["bash", "--norc", "--noprofile", "-i"]
    term = Terminal(shell, orch.directory, orch.environ({"PS1": "prompt> "}), columns=200)
    try:
        term.until_shown("prompt>")
        term.type(f"'{ORCH}' attach\n")
        term.until_shown("q leaves, the run continues")
        term.type("\x1a")
        term.until_shown("Stopped")
        term.type("bg\n")
        term.until_shown("attach &")
        (orch.directory / "go").touch()
        term.until_shown("worker:0 | end")
        painted = len(term.raw)
        term.type("clear\n")
        term.type("echo the-shell-is-$((40 + 2))\n")
        term.until_shown("the-shell-is-42")
        assert b"TASK" not in term.raw[painted:]
        term.type("fg\n")
        term.until_shown("q leaves, the run continues")
        term.type("q")
        term.until_shown(f"left {orch.run_dir().name}")
    finally:
        term.end()
        until(lambda: term.process.poll() is not None)


def test_key_leaves_attach_that_began_in_the_background(orch: Orch) -> None:
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    shell = ["bash", "--norc", "--noprofile", "-i"]
    term = Terminal(shell, orch.directory, orch.environ({"PS1": "prompt> "}), columns=200)
    try:
        term.until_shown("prompt>")
        term.type(f"'{ORCH}' attach &\n")
        term.until_shown("worker:0 | here")
        term.type("fg\n")
        term.until_shown("q leaves, the run continues")
        term.type("q")
        term.until_shown(f"left {orch.run_dir().name}")
        term.type("stty -a\n")
        term.until_shown(" echo ")
    finally:
        term.end()
        until(lambda: term.process.poll() is not None)


def test_background_attach_does_not_set_terminal_modes(orch: Orch, terminal: Open) -> None:
    """`orch attach &` may write to the terminal, but setting its modes would stop the job."""
    assert orch("up", "--wait", "ready", "--", *_SLEEPER).code == 0
    term = Terminal(
        ["bash", "-ic", f"'{ORCH}' attach & wait; sleep 600"], orch.directory, orch.environ({"PS1": "$ "})
    )
    try:
        term.until_shown("worker:0 | here")
        assert orch("down").code == 0
        term.until_shown("stopped")
    finally:
        term.end()
        until(lambda: term.process.poll() is not None)


def test_messages_of_orch_are_wrapped_between_words(terminal: Open) -> None:
    term = terminal("status", "a-run-that-was-never-started", columns=40)
    assert term.finish() == 3
    assert term.everything == [
        "orch: no run",
        "      'a-run-that-was-never-started';",
        "      `orch ls --all` lists them",
    ]
