"""One successful run of two workers: its output, its result, and what `orch logs` shows of it."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime

import pytest
from orch_command import Done, Orch

_TALKS = r"""
import os, sys, time
task = os.environ["ORCH_TASK"]
print(task, "says 1")
print(task, "says 2", file=sys.stderr)
time.sleep(0.1)
print(task, "says 3", flush=True)
if task == "worker:1":
    sys.stdout.buffer.write(b"10%\r55%\r100%\n")
    sys.stdout.buffer.write(b"\x1b[31mred\x1b[0m \x1b[2Jwiped [bold]markup[/bold]\n")
    sys.stdout.buffer.write(b"bad \xff utf-8\n" b"no newline")
"""
# The lines of each task as they are shown, without control sequences.
_TALK = [[f"worker:{task} | worker:{task} says {i}" for i in (1, 2, 3)] for task in (0, 1)]
_HARD = [
    f"worker:1 | {text}" for text in ("100%", "red wiped [bold]markup[/bold]", "bad � utf-8", "no newline")
]
_LINES = [_TALK[0], _TALK[1] + _HARD]


@pytest.fixture(scope="module")
def orch(shared_orch: Orch) -> Orch:
    return shared_orch


@pytest.fixture(scope="module")
def done(orch: Orch) -> Done:
    return orch.run("-n", "2", script=_TALKS)


def _logs(orch: Orch, *words: str) -> list[str]:
    shown = orch("logs", *words)
    assert (shown.code, shown.err) == (0, ""), words
    return shown.lines


def test_end(done: Done) -> None:
    assert done.code == 0
    assert sorted(done.lines) == sorted(_LINES[0] + _LINES[1]) and "\x1b" not in done.out
    assert done.err.startswith(f"orch: {done.run.name} succeeded")
    assert done.result["cause"] is None and done.result["first_failure"] is None
    ends = [(end["task"], end["state"], end["exit_code"]) for end in done.result["tasks"]]
    assert ends == [("worker:0", "succeeded", 0), ("worker:1", "succeeded", 0)]


def test_logs_of_named_tasks_and_selected_lines(orch: Orch, done: Done) -> None:
    first, second = _LINES
    (last,) = [line["ts"] for line in map(json.loads, _logs(orch, "0", "--json")) if "says 3" in line["text"]]
    between = datetime.fromtimestamp(last - 0.05).isoformat()
    expected = {
        (): first + second,
        ("worker:1",): second,
        ("1",): second,
        ("chief", "--no-prefix"): [f"worker:0 says {i}" for i in (1, 2, 3)],
        (done.run.name, "0"): first,
        ("here", "worker:0"): first,
        ("here", "0", "1"): first + second,
        ("0", "--tail", "2"): first[1:],
        ("--tail", "0"): [],
        ("--grep", "says [13]$"): [line for line in _TALK[0] + _TALK[1] if not line.endswith("2")],
        ("0", "--grep", "says [13]", "--invert"): [first[1]],
        ("--grep", "nothing like it"): [],
        ("0", "--since", between): [first[2]],
        ("0", "--until", between): first[:2],
        ("--since", "1h"): first + second,
        ("--since", "2099-01-01"): [],
    }
    wrong = {
        words: found
        for words in expected
        if (found := sorted(_logs(orch, *words))) != sorted(expected[words])
    }
    assert not wrong


def test_times_of_lines(orch: Orch, done: Done) -> None:
    """The flag takes a format only after `=`, so that the next word can be a task."""
    for index, line in enumerate(_logs(orch, "--timestamps=iso", "0"), 1):
        match = re.fullmatch(r"worker:0 \| (\S+) (.*)", line)
        assert match is not None and match[2] == f"worker:0 says {index}"
        assert abs(datetime.fromisoformat(match[1]).timestamp() - time.time()) < 600
    clock = re.compile(r"worker:0 \| \d\d:\d\d:\d\d worker:0 says \d")
    for words in ("-t 0", "--timestamps 0", "0 -t", "-tn 3 0", "--timestamps=time 0"):
        assert [bool(clock.fullmatch(line)) for line in _logs(orch, *words.split())] == [True] * 3, words
    assert _logs(orch, "--tail", "1", "--no-prefix", "-t", "0")[0][2:6:3] == "::"


def test_lines_as_json(orch: Orch, done: Done) -> None:
    for words in (("logs", "--json", "0"), ("--json", "logs", "0")):
        lines = [json.loads(line) for line in orch(*words).lines]
        numbers = [line.pop("seq") for line in lines]
        assert numbers == sorted({*numbers}) and all(line.pop("ts") > 0 for line in lines)
        rest = {"task": "worker:0", "attempt": 1, "partial": False, "truncated": False}
        assert lines == [rest | {"text": f"worker:0 says {i}"} for i in (1, 2, 3)]


def test_control_sequences_are_in_the_log_file_only(orch: Orch, done: Done) -> None:
    coloured = orch("logs", "--color", "always").out
    assert "\x1b[31mred\x1b[0m" in coloured and "\x1b[2J" not in coloured
    with orch.piped("logs", "--raw", "1") as (started, pipe):
        raw = pipe.read()
        assert started.finish().code == 0
    assert raw == (done.run / "logs" / "worker-1.log").read_bytes()
    assert b"\n10%\r55%\r100%\n\x1b[31m" in raw and raw.endswith(b"\xff utf-8\nno newline")


def test_times_in_the_output_of_up(orch: Orch) -> None:
    (line,) = orch("up", "-qtn", "1", "echo", "-t", "--timestamps").lines
    assert re.fullmatch(r"worker:0 \| \d\d:\d\d:\d\d -t --timestamps", line)


def test_directory_of_logs_is_found_by_other_verbs(orch: Orch) -> None:
    logs = orch.directory / "my logs"
    assert orch("up", "-q", "--log-dir", "my logs", "--", "echo", "words").code == 0
    (run,) = [entry for entry in logs.iterdir() if entry.is_dir()]
    assert (run / "result.json").exists()
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / "logs" / "worker-0.log").read_bytes() == b"words\n"
    assert orch("logs", "--no-prefix").out == "words\n"
    assert orch("status", "--json").document["run"]["dir"] == orch.status()["run"]["dir"] == str(run)


def test_signal_ends_a_search_that_takes_long(orch: Orch) -> None:
    """Finding the lines can take minutes: a pattern that takes long stands for a huge log."""
    orch.run("-q", script='print("first"); print("x\\n" * 1_000_000 + "a" * 99 + "b")')
    for number in (2, 15):
        searching = orch.start("logs", "--grep", "first|(a+)+$")
        searching.until_out("first")
        searching.signal(number)
        assert searching.finish().code == 130
