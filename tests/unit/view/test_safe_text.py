"""Control characters in a path, a name or a message do not reach the terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moments import running
from test_report import failed

from orchestrator.client.view.log_line import LineStyle
from orchestrator.client.view.output import Output
from orchestrator.client.view.plain import PlainView
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import RunStatus, Status, task_statuses
from orchestrator.client.view.tables import Moment, RunRow, footer_lines, run_lines, status_lines
from orchestrator.core.text.clean import safe, safe_lines

EVIL = "/home/ev\x1b[31mil\n\x1b]0;title\x07ü\r\x9b2J"
SHOWN = "/home/evil␊ü␍"


def is_harmless(line: str) -> bool:
    return not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in line.replace("\t", ""))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain ü 漢字", "plain ü 漢字"),
        ("a\tb", "a\tb"),
        (EVIL, SHOWN),
        ("over\rwritten", "over␍written"),
        ("bell\x07 del\x7f", "bell␇ del␡"),
        (os.fsdecode(b"not utf-8 \xff"), "not utf-8 ?"),
    ],
)
def test_safe_replaces_control_characters(text: str, shown: str) -> None:
    assert safe(text) == shown
    assert safe(shown) == shown


@given(st.text())
def test_safe_text_is_harmless_and_encodable(text: str) -> None:
    assert is_harmless(safe(text))
    safe(text).encode()
    assert len(safe_lines(text).split("\n")) == len(text.split("\n"))


def test_run_table_is_harmless() -> None:
    row = RunRow(EVIL, EVIL, "running", 1, 1.0, 1.0, 1, EVIL)
    titles, line, _ = run_lines([row], None, colour=False)
    assert is_harmless(line) and line.count(SHOWN) == 3
    assert line.index("running") == titles.index("STATE"), "columns are aligned by the text that is shown"


def test_status_is_harmless() -> None:
    run = RunStatus(
        id="job-1",
        name=EVIL,
        state="running",
        attempt=1,
        started_at=0,
        uptime_s=1,
        dir=EVIL,
        directory=EVIL,
        checkpoint_dir=EVIL,
        exit_code=None,
    )
    lines = status_lines(Status(run=run, tasks=task_statuses(running(1), {}, 1.0)), 200, colour=False)
    assert lines[1] == SHOWN and all(is_harmless(line) for line in lines)


def test_footer_is_harmless() -> None:
    lines = footer_lines(Moment(EVIL, running(1), 1.0, 0.0), 200, 24, colour=False)
    assert lines[0].startswith(SHOWN) and is_harmless(lines[0])


def test_report_is_harmless() -> None:
    first = failed().first_failure
    assert first is not None
    result = failed().model_copy(update={"first_failure": first.model_copy(update={"log": EVIL})})
    lines = end_lines(result, None, colour=False)
    assert f"  log file       {SHOWN}" in lines and all(is_harmless(line) for line in lines)


def test_messages_of_plain_view_are_harmless(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        view = PlainView(Output(out.fileno()), Output(err.fileno()), LineStyle(colour=True))
        view.say(f"orch: {EVIL}")
    assert (tmp_path / "err").read_text() == "orch: /home/evil\nü␍\n"
