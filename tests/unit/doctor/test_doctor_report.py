"""The output of `orch doctor`: lines for people and a document for programs."""

from __future__ import annotations

import json
import resource
from typing import Any

from healthy_machine import PYTHON, HealthyMachine

from orchestrator.cli.doctor_report import count_text, doctor_document, doctor_lines, strategy_rows
from orchestrator.client.view.layout import without_colour
from orchestrator.host.checks import run_checks
from orchestrator.host.checks.context import Context
from orchestrator.host.strategies import FIXED_KERAS, Works, strategies
from worker.bootstrap.keras_fix import FIRST_KNOWN, FIRST_UNKNOWN

# A note, two warnings and a problem.
SICK: dict[str, Any] = {
    "files": {"proc/cpuinfo": "flags\t\t: fpu\n"},
    "limits": {resource.RLIMIT_NOFILE: 100},
    "now": 0.0,
    "addresses": lambda: ("10.0.0.7",),
}


def lines(
    context: Context, width: int | None = None, *, colour: bool = False, quiet: bool = False
) -> list[str]:
    return doctor_lines(context, run_checks(context), width, colour=colour, quiet=quiet)


def document(context: Context) -> dict[str, Any]:
    found = json.loads(json.dumps(doctor_document(context, None, run_checks(context))))
    assert isinstance(found, dict)
    return found


def test_finding_has_a_line_and_its_fix_below(machine: HealthyMachine) -> None:
    text = lines(machine.context(**SICK))
    at = next(number for number, line in enumerate(text) if line.startswith("warning  open files"))
    shown = text[at].partition("open files")[2].strip()
    assert shown.startswith("each task may open 100 files") and shown.endswith("(ulimit -Sn)")
    assert text[at + 1].strip() == "fix: ulimit -n 1024"
    assert text[-1] == "1 problem, 2 warnings"
    assert count_text(machine.findings()) == "no problems, no warnings"
    text = lines(machine.context(**SICK), quiet=True)
    assert [line.split()[0] for line in text if not line.startswith(" ")] == ["warning", "problem", "warning"]
    assert lines(machine.context(), quiet=True) == []


def test_wrapping_and_colours_keep_every_word(machine: HealthyMachine) -> None:
    sick = machine.context(**SICK)
    words = " ".join(lines(sick, quiet=True)).split()
    for width in (200, 90, 60, 40, 20):
        assert " ".join(lines(sick, width, quiet=True)).split() == words
    assert all(len(line) <= 60 for line in lines(sick, 60, quiet=True))
    painted, plain = (lines(sick, 100, colour=colour) for colour in (True, False))
    assert [without_colour(line) for line in painted] == plain != painted


def test_control_characters_are_not_printed(machine: HealthyMachine) -> None:
    evil = machine.context(python={"error": "\x1b[2Jgone\x07"})
    assert not any("\x1b" in line or "\x07" in line for line in lines(evil))


def test_document_has_every_finding(machine: HealthyMachine) -> None:
    sick = machine.context(**SICK, spec={"roles": {"worker": 2, "chief": 1, "ps": 3}})
    found = document(sick)
    assert list(found) == [
        *("schema_version", "healthy", "workers", "tasks", "roles", "command", "python", "usable_cores"),
        *("free_memory_bytes", "findings", "strategies"),
    ]
    assert (found["schema_version"], found["healthy"], found["command"]) == (1, False, None)
    assert (found["workers"], found["tasks"]) == (2, 6)
    assert found["roles"] == {"worker": 2, "chief": 1, "ps": 3}
    assert (found["usable_cores"], found["free_memory_bytes"]) == (8, 64 << 30)
    assert [each["text"] for each in found["findings"]] == [finding.text for finding in run_checks(sick)]
    assert {each["level"] for each in found["findings"]} == {"ok", "note", "warning", "problem"}
    assert list(found["findings"][0]) == ["level", "topic", "text", "where", "fix"]
    assert list(found["python"]) == ["path", "version", "packages"]
    assert found["python"]["packages"]["keras"] == "3.15.1"
    first, last = found["strategies"][0], found["strategies"][-1]
    assert list(first) == ["strategy", "way", "keras", "works", "why"]
    assert (first["works"], last["keras"]) == ("with orch's fix", None)
    assert document(machine.context())["healthy"] is True


def works(context: Context) -> dict[tuple[str, str, str], Works]:
    return {(row.strategy, row.way, row.keras): row.works for row in strategy_rows(context)}


def test_strategies_of_the_installed_versions(machine: HealthyMachine) -> None:
    table = works(machine.context())
    for fixed in ("multi-worker-mirrored", "central-storage"):
        assert table[fixed, "fit", "Keras 3"] is Works.FIXED
    assert table["parameter-server", "fit", "Keras 3"] is Works.NO
    assert table["parameter-server", "fit", "tf_keras"] is Works.YES
    without = machine.context(python={"versions": {"tensorflow": "2.21.0", "keras": "3.15.1"}})
    assert not any(keras == "tf_keras" for _, _, keras in works(without))
    assert works(machine.context(python={"versions": {}})) == {}
    untried = machine.context(python={"versions": {**PYTHON.versions, "tensorflow": "2.9.1"}})
    assert set(works(untried).values()) == {Works.UNTRIED}
    newer = {
        row.strategy: row.works for row in strategies("3.16.0", None, is_tested=True) if row.way == "fit"
    }
    assert newer["multi-worker-mirrored"] is newer["central-storage"] is Works.UNTRIED


def test_table_of_strategies_fits_the_width(machine: HealthyMachine) -> None:
    context = machine.context()
    for width in (None, 100, 50):
        text = lines(context, width)
        start = next(number for number, line in enumerate(text) if line.startswith("STRATEGY"))
        assert len(text) - start == 1 + len(strategy_rows(context)) + 2
        assert width is None or all(len(line) <= width for line in text[start:])


def test_versions_are_those_of_the_keras_fix() -> None:
    """The two packages do not import each other, so each has its own copy of the range."""
    assert (FIRST_KNOWN, FIRST_UNKNOWN) == FIXED_KERAS
    assert PYTHON.versions["keras"].startswith("3.")
