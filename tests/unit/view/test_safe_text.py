"""Control characters in a path, a name or a message do not reach the terminal."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from making import first_failure, run_result
from moments import footer, moment, progressed, running, status

from orchestrator.client.view.report import end_lines
from orchestrator.client.view.tables import RunRow, run_lines
from orchestrator.core.state.events import Progress
from orchestrator.core.text.clean import safe, safe_lines

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
    report = end_lines(run_result("failed", first_failure=first_failure(0, log=EVIL)), None, colour=False)
    assert f"  log file       {SHOWN}" in report
    assert all(map(is_harmless, [*runs, *shown, *table, *report]))
