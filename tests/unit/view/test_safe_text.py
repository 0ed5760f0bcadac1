"""Control characters in a path, a name or a message do not reach the terminal, and text of a task never acts as a
command of GitHub Actions. The model of its runner below follows its parser."""

from __future__ import annotations

import json
import os
import unicodedata
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st
from making import cause, first_failure, run_result
from moments import footer, moment, progressed, report, running, status

from orchestrator.cli.words import json_text
from orchestrator.client.view.log_line import LineStyle, format_block
from orchestrator.client.view.report import error_annotation
from orchestrator.client.view.tables import RunRow, run_lines
from orchestrator.client.view.workflow import without_commands
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import RunResult
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.store.logs.lines import Block

EVIL = "/home/ev\x1b[31mil\n\x1b]0;title\x07ü\r\x9b2J"
SHOWN = "/home/evil␊ü␍"


def is_harmless(line: str) -> bool:
    return not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line.replace("\t", ""))


def test_safe_replaces_control_characters() -> None:
    rows = {
        "plain ü 漢字\ta": "plain ü 漢字\ta",
        EVIL: SHOWN,
        "over\rwritten": "over␍written",
        "bell\x07 del\x7f": "bell␇ del␡",
        os.fsdecode(b"not utf-8 \xff"): "not utf-8 ?",
    }
    assert {text: safe(text) for text in rows} == rows
    assert [safe(shown) for shown in rows.values()] == [*rows.values()]


@given(st.text())
def test_safe_text_is_harmless_and_encodable(text: str) -> None:
    assert is_harmless(safe(text))
    safe(text).encode()
    assert len(safe_lines(text).split("\n")) == len(text.split("\n"))


def test_tables_and_reports_are_harmless() -> None:
    runs = run_lines([RunRow(EVIL, EVIL, "running", 1, 1.0, 1.0, 1, EVIL)], None, colour=False)
    assert runs[1].count(SHOWN) == 3
    assert runs[1].index("running") == runs[0].index("STATE"), "columns are aligned by the text that is shown"
    paths = {"name": EVIL, "dir": EVIL, "directory": EVIL, "checkpoint_dir": EVIL}
    shown = status(running(1), width=200, **paths)
    assert shown[1] == SHOWN
    table = footer(replace(moment(running(1, progressed(0, Progress(phase=EVIL)))), name=EVIL), 200)
    assert table[0].startswith(SHOWN)
    shown_report = report(run_result("failed", first_failure=first_failure(0, log=EVIL)))
    assert f"  log file       {SHOWN}" in shown_report
    assert all(map(is_harmless, [*runs, *shown, *table, *shown_report]))


COMMANDS = {"error", "add-mask", "endgroup", "stop-commands", "set-output"}
PIECES = (
    *("::", ":", "#", "##[", "error", "add-mask", " x=1", "]", "\t", "\u200b", "\u2502", "\x1b[31m", "\r"),
    *("\x00", "\n"),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)
WORKSPACE = {"GITHUB_WORKSPACE": "/w"}


def commands_in(text: str) -> list[str]:
    """The commands that a runner would execute, with a comparison that ignores characters without width and without
    one that does not."""
    found = []
    visible = (c for c in text if c in "\r\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Mn"))
    for seen in (text, "".join(visible)):
        for line in seen.replace("\r", "\n").split("\n"):
            line = line.lstrip()
            if line.startswith("::") and (end := line.find("::", 2)) >= 0:
                found.append(line[2:end].partition(" ")[0])
            if (at := line.find("##[")) >= 0 and (end := line.find("]", at)) >= 0:
                found.append(line[at + 3 : end].partition(" ")[0])
    return [name for name in found if name.lower() in COMMANDS]


@example("::error::x")
@example(" \u200b:\u200b:error::x")
@example("##[error]x")
@example("#\u200b#\x00[error]")
@example("fine\r::error::x")
@given(texts)
def test_no_line_of_a_task_is_a_command(text: str) -> None:
    block = Block("worker:0", attempt=1, time=1.0, data=text.encode("utf-8", "surrogatepass") + b"\n")
    for style in (LineStyle(), LineStyle(prefix=False), LineStyle(prefix=False, colour=True)):
        assert commands_in(without_commands(format_block(block, style)).decode()) == []
    document = {"##[error]" + text: [text, "##[add-mask]" + text]}
    shown = json_text(document, indent=1)
    assert commands_in(shown) == [] and json.loads(shown) == document


def test_commands_are_found_and_other_lines_stay_as_they_are() -> None:
    found = commands_in("a ##[error]x\n  ::add-mask::x\n\u200b::endgroup::")
    assert found == ["error", "add-mask", "error", "add-mask", "endgroup"]
    lines = b"worker:0 | a::b ## [x]\n  12:30:01 std::vector\n# [1] c: d\n"
    assert without_commands(lines) == lines


def failed(exception: str, place: str, **fields: str) -> RunResult:
    first = first_failure(1, exception=exception, place=place, **fields)
    return run_result("failed", cause=cause(1), first_failure=first)


def test_annotation_names_the_line_in_the_workspace_only() -> None:
    result = failed("ValueError: 100%, a: b", "/w/src/a,b:1.py:41", advice="Do this: that.")
    assert error_annotation(result, WORKSPACE) == (
        b"::error file=src/a%2Cb%3A1.py,line=41,title=worker%3A1 failed::worker:1 failed: ValueError: 100%25, a: b"
        b" (a,b:1.py:41)%0ADo this: that.\n"
    )
    result = failed("ValueError: x", "/elsewhere/train.py:41")
    for environ in (WORKSPACE, {}):
        assert error_annotation(result, environ) == (
            b"::error title=worker%3A1 failed::worker:1 failed: ValueError: x (train.py:41)\n"
        )
    others = [result.model_copy(update={"outcome": outcome}) for outcome in ("succeeded", "stopped")]
    assert [error_annotation(other, WORKSPACE) for other in others] == [None, None]


@given(texts, texts)
def test_annotation_is_one_command_whatever_failed(exception: str, place: str) -> None:
    line = (error_annotation(failed(exception, f"/w/{place}:3"), WORKSPACE) or b"").decode()
    assert line.startswith("::error ") and line.endswith("\n") and "\n" not in line[:-1] and "\r" not in line
    names = [pair.partition("=")[0] for pair in line[8 : line.index("::", 2)].split(",")]
    assert names in (["title"], ["file", "line", "title"])
