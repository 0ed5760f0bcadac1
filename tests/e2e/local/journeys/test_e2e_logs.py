"""`orch logs`: every option, on live and ended runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from orch_command import ORCH, Orch
from waiting import PATIENCE_S

_TALK = ("sh", "-c", 'for i in 1 2 3; do echo "$ORCH_TASK says $i"; done')
_ESCAPES = r"""
import sys
sys.stdout.buffer.write(b"10%\r55%\r100%\n")
sys.stdout.buffer.write(b"\x1b[31mred\x1b[0m \x1b[2Jwiped [bold]markup[/bold]\n")
sys.stdout.buffer.write(b"bad \xff utf-8\n" b"no newline")
"""


@pytest.fixture
def ended_run(orch: Orch) -> Path:
    """The directory of an ended run of two tasks that printed three lines each."""
    assert orch("up", "-q", "-n", "2", "--", *_TALK).code == 0
    return orch.run_dir()


def _of(task: int) -> list[str]:
    return [f"worker:{task} | worker:{task} says {i}" for i in (1, 2, 3)]


def test_task_words_select_lines(orch: Orch, ended_run: Path) -> None:
    expected = {
        (): _of(0) + _of(1),
        ("worker:1",): _of(1),
        ("1",): _of(1),
        ("chief", "--no-prefix"): [f"worker:0 says {i}" for i in (1, 2, 3)],
        (ended_run.name, "0"): _of(0),
        ("here", "worker:0"): _of(0),
        ("here", "0", "1"): _of(0) + _of(1),
    }
    for words, done in orch.all_within(("logs", *words) for words in expected):
        assert (done.code, done.err) == (0, ""), words
        assert sorted(done.lines) == expected[words[1:]], words


def test_tail_and_grep_select_lines(orch: Orch, ended_run: Path) -> None:
    expected = {
        ("1", "--tail", "2"): _of(1)[1:],
        ("--tail", "0"): [],
        ("--grep", "says [13]$"): [_of(0)[0], _of(0)[2], _of(1)[0], _of(1)[2]],
        ("--grep", "says [13]", "--invert"): [_of(0)[1], _of(1)[1]],
        ("--grep", "nothing like it"): [],
    }
    for words, done in orch.all_within(("logs", *words) for words in expected):
        assert (done.code, sorted(done.lines)) == (0, expected[words[1:]]), words


def test_since_and_until_select_lines(orch: Orch) -> None:
    script = "echo early; until [ -e go ]; do sleep 0.05; done; echo late"
    started = orch.start("up", "--no-prefix", "--", "sh", "-c", script)
    started.until_out("early\n")
    between = datetime.now().isoformat()
    between_unix = time.time()
    (orch.directory / "go").touch()
    assert started.finish().code == 0
    times = [line["ts"] for line in map(json.loads, orch("logs", "--json").lines)]
    assert times[0] < between_unix < times[1]
    assert orch("logs", "--no-prefix", "--since", between).lines == ["late"]
    assert orch("logs", "--no-prefix", "--until", between).lines == ["early"]
    assert orch("logs", "--no-prefix", "--since", "1h").lines == ["early", "late"]
    assert orch("logs", "--since", "2099-01-01").out == ""


def test_timestamps(orch: Orch, ended_run: Path) -> None:
    shown = orch("logs", "--timestamps=iso", "0").lines
    assert len(shown) == 3
    for index, line in enumerate(shown):
        match = re.fullmatch(r"worker:0 \| (\S+) (.*)", line)
        assert match is not None and match[2] == f"worker:0 says {index + 1}"
        assert abs(datetime.fromisoformat(match[1]).timestamp() - time.time()) < 600


def test_timestamps_without_a_format_are_times_of_the_day(orch: Orch, ended_run: Path) -> None:
    """The flag takes a format only after `=`, so that the next word can be a task."""
    for words in (
        ("-t", "0"),
        ("--timestamps", "0"),
        ("0", "-t"),
        ("-tn", "3", "0"),
        ("--timestamps=time", "0"),
    ):
        shown = orch("logs", *words).lines
        assert [
            bool(re.fullmatch(r"worker:0 \| \d\d:\d\d:\d\d worker:0 says \d", line)) for line in shown
        ] == [True] * 3, words
    assert orch("logs", "--tail", "1", "--no-prefix", "-t", "0").lines[0][2:6:3] == "::"
    wrong = orch("logs", "--timestamps=utc")
    assert (
        wrong.code == 2
        and wrong.err == 'orch: --timestamps: "utc" is not a format of times; write time or iso\n'
    )
    up = orch("up", "-qtn", "1", "echo", "-t", "--timestamps").lines
    assert len(up) == 1 and re.fullmatch(r"worker:0 \| \d\d:\d\d:\d\d -t --timestamps", up[0])


def test_json_lines(orch: Orch, ended_run: Path) -> None:
    for _, done in orch.all_within([("logs", "--json", "1"), ("--json", "logs", "1")]):
        lines = [json.loads(line) for line in done.lines]
        assert [line["text"] for line in lines] == [f"worker:1 says {i}" for i in (1, 2, 3)]
        for line in lines:
            assert set(line) == {"ts", "task", "attempt", "seq", "text", "partial", "truncated"}
            assert (line["task"], line["attempt"]) == ("worker:1", 1)
            assert (line["partial"], line["truncated"]) == (False, False)
        assert [line["seq"] for line in lines] == sorted({line["seq"] for line in lines})


def test_control_sequences_and_invalid_utf8(orch: Orch) -> None:
    """The lines are shown safely and completely; the log file keeps the exact bytes."""
    script = orch.script("hard.py", _ESCAPES)
    up = orch("up", "--", script)
    assert up.code == 0
    shown = [
        "worker:0 | 100%",
        "worker:0 | red wiped [bold]markup[/bold]",
        "worker:0 | bad � utf-8",
        "worker:0 | no newline",
    ]
    assert up.lines == shown and "\x1b" not in up.out
    assert orch("logs").lines == shown
    coloured = orch("logs", "--color", "always").out
    assert "\x1b[31mred\x1b[0m" in coloured and "\x1b[2J" not in coloured
    with subprocess.Popen([ORCH, "logs", "--raw"], cwd=orch.directory, stdout=subprocess.PIPE) as raw:
        written, _ = raw.communicate(timeout=PATIENCE_S)
    assert written == (orch.run_dir() / "logs" / "worker-0.log").read_bytes()
    assert written.startswith(b"10%\r55%\r100%\n\x1b[31m") and written.endswith(b"\xff utf-8\nno newline")


def test_raw_with_json_is_refused(orch: Orch, ended_run: Path) -> None:
    refused = [("logs", "--raw", "--json"), ("--json", "logs", "--raw")]
    for words, done in orch.all_within(refused):
        assert (done.code, done.out) == (2, ""), words
        assert "--raw" in done.err and "--json" in done.err, words


def test_follow_until_end_and_interrupt(orch: Orch) -> None:
    command = "echo one; until [ -e go ]; do sleep 0.05; done; echo two"
    assert orch("up", "-d", "--", "sh", "-c", command).code == 0
    following = orch.start("logs", "-f", "--no-prefix")
    left = orch.start("logs", "-f", "--no-prefix", "--tail", "1")
    following.until_out("one\n")
    left.until_out("one\n")
    left.signal(2)
    assert left.finish().code == 0
    (orch.directory / "go").touch()
    done = following.finish()
    assert (done.code, done.out, done.err) == (0, "one\ntwo\n", "")


def test_closed_pipe_is_not_an_error(orch: Orch) -> None:
    """`orch logs | head -1` and `orch up | head -1` end without an error message."""
    flood = ("python3", "-c", "for i in range(30_000): print('line', i)")
    assert orch("up", "-q", "--tasks", "0", "--", *flood).code == 0
    piped = _piped(orch, "logs", "|", "head", "-1")
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, b"worker:0 | line 0\n", b"")
    piped = _piped(orch, "up", "--", "sh", "-c", "while :; do echo y; sleep 0.01; done", "|", "head", "-1")
    assert piped.stdout == b"worker:0 | y\n"
    assert b"Traceback" not in piped.stderr and b"Broken pipe" not in piped.stderr
    assert orch.result(orch.run_dirs()[-1])["exit_code"] == 141


def _piped(orch: Orch, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = " ".join(word if word == "|" else f"'{word}'" for word in words)
    return subprocess.run(
        ["bash", "-c", f"'{ORCH}' {command}; exit ${{PIPESTATUS[0]}}"],
        cwd=orch.directory,
        env=orch.environ(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_signal_ends_a_search_that_takes_long(orch: Orch) -> None:
    """Finding the lines can take minutes: a pattern that takes long stands for a huge log."""
    write = 'print("first"); print("x\\n" * 1_000_000 + "a" * 99 + "b")'
    assert orch("up", "-q", "-n", "1", "--", sys.executable, "-c", write).code == 0
    for number in (signal.SIGINT, signal.SIGTERM):
        searching = orch.start("logs", "--grep", "first|(a+)+$")
        searching.until_out("first")
        searching.signal(number)
        assert searching.finish().code == 130
