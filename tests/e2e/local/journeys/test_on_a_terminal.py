"""`orch` on a pseudo-terminal: lines above a live table that disappears at the end, keys, and a closed window."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from orch_command import ORCH, Orch
from terminal import OpenTerminal, Terminal
from waiting import PATIENCE_S, lives, until

_COUNT = """
import os, time
print("bar".rjust(int(os.environ["COLUMNS"])))
for i in range(300):
    print("line", i, "of", os.environ["ORCH_TASK"])
    time.sleep(0.002)
    while i == 150 and not os.path.exists("go"):
        time.sleep(0.01)
"""
# Prints as many lines as its argument says, then the name of each file that the test puts into `say`.
_TALKS = """
import os, sys, time

def wait_for_words(said):
    for word in sorted(set(os.listdir("say")) - said):
        said.add(word)
        print(word, "of", os.environ["ORCH_TASK"])
    time.sleep(0.02)

for number in range(int(sys.argv[1])):
    print("line", number)
os.makedirs("say", exist_ok=True)
said = set()
while True:
    wait_for_words(said)
"""
_SLEEPER = ("sh", "-c", "echo here; exec sleep 600")
_BASH = ("bash", "--norc", "--noprofile", "-i")
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


def _is_restored(term: Terminal) -> bool:
    hidden = term.screen.cursor.hidden
    return term.modes == term.modes_before and not hidden and not term.raw.count(b"\x1b[?1049h")


def _say(orch: Orch, word: str) -> None:
    orch.script(f"say/{word}", "")


@pytest.fixture(scope="module")
def live(shared_orch: Orch) -> Orch:
    """A live run of one task, without a client."""
    script = shared_orch.script("talks.py", _TALKS)
    assert shared_orch.within("up", "--wait", "ready", "--", script, "100").code == 0
    until((shared_orch.directory / "say").exists)
    return shared_orch


def test_lines_stream_above_footer(orch: Orch, terminal: OpenTerminal) -> None:
    """The table disappears at the end; no line is lost, cut or broken by it, nor by typed text. A bar of COLUMNS cells
    takes one row.

    The user may type the shell's next command: "ls" does not ask for stacks, "cd" does not detach.
    """
    term = terminal(orch, "up", "-n", "2", "--", orch.script("count.py", _COUNT), columns=80, lines=12)
    term.until_shown("worker:1  running")
    term.until_lines(
        lambda shown: [line.split()[:1] for line in shown[-3:]] == [["TASK"], ["worker:0"], ["worker:1"]]
    )
    term.type("\n\ncd; ls f?\n")
    orch.script("go", "")
    assert term.finish() == 0
    *lines, last = term.everything
    assert last.startswith(f"orch: {orch.run_dir().name} succeeded")
    for task in ("worker:0", "worker:1"):
        mine = [line for line in lines if line.startswith(f"{task} | line")]
        assert mine == [f"{task} | line {i} of {task}" for i in range(300)]
    bars = [line for line in lines if " of " not in line]
    assert len(bars) in (1, 2) and all(line.endswith("bar") and len(line) <= 80 for line in bars)
    assert len(lines) == 600 + len(bars), "nothing else is left on the screen"
    assert _is_restored(term)
    assert b"\x1b[38" in term.raw or b"\x1b[3" in term.raw, "the prefix is coloured"


def test_lines_that_follow_a_failure_are_one_line_and_the_report_is_last(
    orch: Orch, terminal: OpenTerminal
) -> None:
    """The peers of a failed task report the lost connection at length."""
    script = (
        "if [ $ORCH_TASK = worker:1 ]; then until [ -e ready ]; do sleep 0.05; done\n"
        "printf '%*s\\n' $COLUMNS cause; exit 3; fi\n"
        "trap 'seq 1001 1068; exit 1' TERM; touch ready; while :; do sleep 0.05; done"
    )
    words = ("-n", "2", "--failure-grace", "60s", "--", "sh", "-c", script)
    term = terminal(orch, "up", *words, env={"COLUMNS": "30", "NO_COLOR": "1"})
    assert term.finish() == 3
    folded = re.compile(r"worker:0 \| \d\d lines after worker:1 failed \(orch logs worker:0 shows them\)")
    assert sum(bool(folded.fullmatch(line)) for line in term.everything) == 1
    assert f"worker:1 | {'cause':>30}" in term.everything, "a COLUMNS of the user is not changed"
    assert not any("| 10" in line or "TASK" in line for line in term.everything)
    assert term.shown[-1] == "orch: worker:1 failed: exit 3"
    codes = [code.split(b"m")[0].replace(b";", b"") for code in term.raw.split(b"\x1b[")[1:]]
    assert not [code for code in codes if code.isdigit()], "no colours, but a table"
    assert term.screen.cursor.x == 0, "the shell's prompt starts on a new line"
    assert sum("| 10" in line for line in orch("logs").lines) == 68
    assert sum(bool(folded.fullmatch(line)) for line in orch("logs", "--fold").lines) == 1


def test_ctrl_c_stops_then_kills(orch: Orch, terminal: OpenTerminal) -> None:
    """The first shows a hint, the second kills; the terminal is restored, although it became smaller."""
    stubborn = 'trap "" TERM INT; echo here; while :; do sleep 1; done'
    term = terminal(orch, "up", "--grace", "1h", "--", "sh", "-c", stubborn)
    term.until_shown("worker:0 | here")
    (pid,) = orch.pids()
    term.resize(70, 8)
    term.type_for("\x03", "Ctrl-C again to kill")
    assert lives(pid)
    term.type("\x03")
    assert term.finish() == 130
    assert not lives(pid) and _is_restored(term)
    assert "stopped" in term.shown[-1] and not any("TASK" in line for line in term.shown)


def test_dumb_terminal_gets_plain_lines(orch: Orch, terminal: OpenTerminal) -> None:
    """It has no COLUMNS, either."""
    term = terminal(orch, "up", "--", "sh", "-c", "echo ${COLUMNS-unset}", env={"TERM": "dumb"})
    assert term.finish() == 0
    assert b"\x1b" not in term.raw and b"worker:0 | unset\r\n" in term.raw


def test_keys_show_the_keys_one_task_and_stacks(orch: Orch, terminal: OpenTerminal) -> None:
    script = orch.script("talks.py", _TALKS)
    term = terminal(orch, "up", "-n", "2", "--all-lines", "--", script, "3", columns=140)
    for shown in ("worker:0 | line 2", "worker:1 | line 2", "? for keys"):
        term.until_shown(shown)
    term.type_for("?", "orch: d leaves, and the run continues; f shows one task or all; s shows the stacks")
    for number, task in enumerate(("worker:0", "worker:1", None), 1):
        term.type_for("f", f"showing {task} only" if task else "showing all tasks")
        _say(orch, str(number))
        for each in [task] if task else ["worker:0", "worker:1"]:
            term.until_shown(f"{each} | {number} of {each}")
    alone = [line for line in term.everything if line.startswith("worker:") and " of " in line]
    assert sorted(alone) == [f"worker:{w} | {n} of worker:{w}" for w, n in ((0, 1), (0, 3), (1, 2), (1, 3))]
    term.type_for("s", "wait_for_words")
    term.type("\x03")
    assert term.finish() == 130 and _is_restored(term)


def test_keys_are_not_read_without_a_terminal_as_input(orch: Orch, terminal: OpenTerminal) -> None:
    command = "until [ -e go ]; do sleep 0.05; done; cat input"
    orch.script("input", "d")
    term = terminal(orch, argv=["sh", "-c", f"exec '{ORCH}' up -- sh -c '{command}' < input"])
    term.until_shown("worker:0  running")
    assert not any("? for keys" in line for line in term.shown)
    orch.script("go", "")
    assert term.finish() == 0
    assert orch.result()["outcome"] == "succeeded"


def test_end_of_a_run_ends_what_shows_it(orch: Orch, terminal: OpenTerminal) -> None:
    """`orch up` was left with d before. Setting a terminal's modes would stop an `orch attach` in the background."""
    up = terminal(orch, "up", "-n", "2", "--", *_SLEEPER, columns=140)
    up.until_shown("worker:1  running")
    up.until_shown("? for keys")
    up.type("d")
    assert up.finish() == 0
    left = f"left {orch.run_dir().name}; it keeps running: `orch attach` shows it, `orch down` stops it"
    assert up.shown[-1] == f"orch: {left}"
    assert not any("TASK" in line for line in up.everything) and _is_restored(up)
    assert all(lives(pid) for pid in orch.pids())

    attached, watching = terminal(orch, "attach"), terminal(orch, "ps", "-w")
    background = terminal(orch, argv=["bash", "-ic", f"'{ORCH}' attach & wait; sleep 600"], env={"PS1": "$ "})
    for term in (attached, watching):
        term.until_shown("worker:1  running")
    background.until_shown("| here")
    assert orch("down").code == 0
    assert attached.finish() == 143
    watching.until_shown("worker:1  stopped")
    assert watching.finish() == 0 and _is_restored(watching)
    assert sum("worker:1" in line for line in watching.shown) == 1, "the table is redrawn in place"
    background.until_shown("stopped")


def test_job_control_of_a_shell(orch: Orch, terminal: OpenTerminal) -> None:
    """Ctrl-Z gives the terminal back to the shell. Keys work again after `fg`. A job in the background draws no table,
    also if it was started there."""
    term = terminal(orch, argv=_BASH, env={"PS1": "prompt> "}, columns=200)

    def check_echo() -> None:
        term.type_for("clear; stty -a\n", " echo ")

    term.until_shown("prompt>")
    term.type_for(f"'{ORCH}' up -- {orch.script('talks.py', _TALKS)} 3\n", "? for keys")
    term.type_for("\x1a", "Stopped")
    check_echo()
    term.type_for("clear; fg\n", "? for keys")
    term.type_for("d", "it keeps running")
    check_echo()

    leave = "q leaves, the run continues"
    left = f"left {orch.run_dir().name}"
    term.type_for(f"clear; '{ORCH}' attach\n", leave)
    term.type_for("\x1a", "Stopped")
    term.type_for("bg\n", "attach &")
    _say(orch, "first")
    term.until_shown("worker:0 | first")
    painted = len(term.raw)
    term.type_for("clear\necho the-shell-is-$((40 + 2))\n", "the-shell-is-42")
    assert b"TASK" not in term.raw[painted:]
    term.type_for("fg\n", leave)
    term.type_for("q", left)

    term.type_for(f"clear; '{ORCH}' attach &\n", "worker:0 | first")
    term.type_for("fg\n", leave)
    term.type_for("q", left)
    check_echo()
    assert orch.status()["run"]["state"] == "running"


def test_attach_begins_with_the_last_screen_and_a_key_leaves_it(live: Orch, terminal: OpenTerminal) -> None:
    until(lambda: len(live("logs").lines) >= 100)
    said = live("logs").lines
    for words, count, key in (((), 20 - 3, "q"), (("--tail", "40"), 40, "\x03")):
        term = terminal(live, "attach", *words, columns=140, lines=20)
        term.until_shown("q leaves, the run continues")
        term.until_shown(said[-1])
        term.type(key)
        assert term.finish() == 0
        assert [line for line in term.everything if "worker:0 | " in line] == said[-count:]
        assert _is_restored(term) and "it keeps running, `orch down` stops it" in term.shown[-1]
        assert not any("TASK" in line for line in term.shown)


def test_status_watch_is_left_with_a_key(live: Orch, terminal: OpenTerminal) -> None:
    term = terminal(live, "status", "--watch")
    term.until_shown("worker:0  running")
    term.type("q")
    assert term.finish() == 0 and _is_restored(term)


def test_closed_window_of_attach_does_not_stop_run(live: Orch, terminal: OpenTerminal) -> None:
    """Without the signal of a closed window, the first output after it fails."""
    with_signal = terminal(live, "attach")
    without = terminal(live, argv=["sh", "-c", f"trap '' HUP; exec '{ORCH}' attach"])
    for term in (with_signal, without):
        term.until_shown("q leaves, the run continues")
        term.close()
    assert with_signal.process.wait(PATIENCE_S) == 0
    _say(live, "after the window")
    assert without.process.wait(PATIENCE_S) == 0
    assert live.status()["run"]["state"] == "running"


def test_quit_key_restores_the_terminal(live: Orch, orch: Orch, terminal: OpenTerminal) -> None:
    """Ctrl-\\ ends a program at once."""
    for term in (terminal(live, "attach"), terminal(orch, "up", "--", *_SLEEPER)):
        term.until_shown("worker:0  running")
        term.type("\x1c")
        assert term.finish() == -signal.SIGQUIT
        assert term.modes == term.modes_before


def test_suspended_view_gives_the_terminal_back(live: Orch, terminal: OpenTerminal) -> None:
    """Also if the shell does not restore the modes itself."""
    term = terminal(live, argv=[sys.executable, "-c", _SHELL, str(ORCH), "attach"])
    term.until_shown("? for keys")
    term.type_for("\x1a", "stopped, modes kept: False")
