"""`orch up --junit FILE`: the result of a run as a JUnit XML document, which CI systems show as tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from orchestrator.client.api import Run
from orchestrator.client.output_file import write_output
from orchestrator.client.view.report import cause_text
from orchestrator.core.state.result import RunResult, TaskEnd, exit_text
from orchestrator.core.state.state import TaskState
from orchestrator.core.text.clean import safe_lines

# XML 1.0 has no way to write these characters.
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Case(NamedTuple):
    """A test case. `verdict` is failure, error or skipped; empty if it passed."""

    name: str
    took_s: float
    verdict: str = ""
    message: str = ""
    kind: str = ""
    details: str = ""


def write_junit(path: Path, run: Run, result: RunResult) -> None:
    """Write the document of an ended run to `path`: whole, or not at all. OSError."""
    run.view.refresh()
    record = run.view.record
    document = junit_document(
        result, run.view.state.tasks, name=record.name, host=record.host, started_at=record.started_at
    )
    # Readable for others as far as the umask allows: another user's step may collect it.
    write_output(path, document, mode=0o666)


def junit_document(
    result: RunResult, tasks: Mapping[str, TaskState], *, name: str, host: str, started_at: float
) -> bytes:
    """Return the document: a case for each task, then one for the run. `started_at` is in Unix seconds."""
    cases = [
        *(_task_case(end, result, _duration(tasks.get(end.task))) for end in result.tasks),
        _run_case(result),
    ]
    counts = {
        verdict: sum(case.verdict == verdict for case in cases) for verdict in ("failure", "error", "skipped")
    }
    suite = Xml.Element(
        "testsuite",
        name=_xml(name),
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{result.took_s or 0:.3f}",
        timestamp=datetime.fromtimestamp(started_at, UTC).isoformat(timespec="seconds"),
        hostname=_xml(host),
    )
    properties = Xml.SubElement(suite, "properties")
    for key, value in (
        ("run", result.run_id),
        ("outcome", result.outcome),
        ("exit_code", str(result.exit_code)),
    ):
        Xml.SubElement(properties, "property", name=key, value=_xml(value))
    for case in cases:
        element = Xml.SubElement(
            suite, "testcase", classname=_xml(name), name=_xml(case.name), time=f"{case.took_s:.3f}"
        )
        if case.verdict:
            verdict = Xml.SubElement(element, case.verdict, message=_xml(case.message))
            if case.kind:
                verdict.set("type", _xml(case.kind))
            verdict.text = _xml(case.details) or None
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    document: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _task_case(end: TaskEnd, result: RunResult, took_s: float) -> _Case:
    """The case of a task. It fails only in a run that fails: --on-failure may let a run succeed without the task."""
    cause = result.cause
    text = end.end or f"{end.state}, {exit_text(end.exit_code, end.signal)}"
    if result.succeeded:
        passed = end.state in ("succeeded", "stopped")
        return _Case(end.task, took_s) if passed else _Case(end.task, took_s, "skipped", text)
    if cause is not None and end.task in (cause.task, *cause.tasks):
        return _Case(
            end.task, took_s, "failure", cause_text(result), cause.kind, "\n".join(_details(end.task, result))
        )
    if end.state == "succeeded":
        return _Case(end.task, took_s)
    if end.state == "failed":
        details = "\n".join(_details(end.task, result))
        return _Case(end.task, took_s, "failure", text, exit_text(end.exit_code, end.signal), details)
    return _Case(end.task, took_s, "error" if end.state == "lost" else "skipped", text)


def _details(task: str, result: RunResult) -> Iterator[str]:
    """Yield what is known about the failure of this task, if it was the first."""
    first = result.first_failure
    if first is None or first.task != task:
        return
    yield from first.lines
    for label, value in (
        ("exception", first.exception),
        ("at", first.place),
        ("to do", first.advice),
        ("log file", first.log),
    ):
        if value:
            yield f"{label}: {value}"


def _run_case(result: RunResult) -> _Case:
    took_s = result.took_s or 0.0
    if result.succeeded:
        return _Case("run", took_s)
    message = cause_text(result) or f"the run was {result.outcome}"
    kind = result.outcome if result.cause is None else result.cause.kind
    return _Case(
        "run", took_s, "error" if result.outcome in ("stopped", "lost") else "failure", message, kind
    )


def _duration(task: TaskState | None) -> float:
    if task is None or task.started_mono is None or task.ended_mono is None:
        return 0.0
    return max(0.0, task.ended_mono - task.started_mono)


def _xml(text: str) -> str:
    """Return text that XML can hold, without control sequences."""
    return _NOT_IN_XML.sub("\ufffd", safe_lines(text))
