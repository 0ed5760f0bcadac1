"""`orch up --junit FILE`: a case for each task and for the run, in any end of the run, as XML for any text."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_command import Orch

from orchestrator.client.junit import junit_document
from orchestrator.core.state.result import Cause, CauseKind, FirstFailure, RunResult, TaskEnd

FAILS = """import os, time
if os.environ["ORCH_TASK"] == "worker:1":
    print("\\x1b[31mlast\\x00 line", flush=True)
    raise ValueError("<no> & data")
time.sleep(600)
"""


class Case(NamedTuple):
    name: str
    verdict: str
    message: str
    text: str


def cases(document: bytes | Path) -> list[Case]:
    """The cases of a document whose numbers agree with them."""
    root = Xml.fromstring(document.read_bytes() if isinstance(document, Path) else document)
    (suite,) = root.findall("testsuite")
    found = []
    for case in suite.findall("testcase"):
        assert float(case.get("time", "")) >= 0 and case.get("classname") == suite.get("name")
        verdicts = [*case]
        assert len(verdicts) <= 1
        verdict = verdicts[0] if verdicts else Xml.Element("passed")
        name, message = case.get("name", ""), verdict.get("message", "")
        found.append(Case(name, verdict.tag, message, verdict.text or ""))
    for count, verdict in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(count, "")) == sum(case.verdict == verdict for case in found)
    assert int(suite.get("tests", "")) == len(found)
    return found


def test_failure_names_the_cause(orch: Orch) -> None:
    orch.script("train.py", FAILS)
    done = orch("up", "-n", "2", "--name", "digits", "--junit", "report.xml", "--", "train.py")
    assert done.code == 1
    stopped, failed, run = cases(orch.directory / "report.xml")
    message = "worker:1 failed: ValueError: <no> & data (train.py:4)"
    assert (stopped.name, stopped.verdict, stopped.message) == ("worker:0", "skipped", "stopped by orch")
    assert (failed.name, failed.verdict, failed.message) == ("worker:1", "failure", message)
    assert "last line" in failed.text and str(orch.run_dir()) in failed.text
    assert (run.name, run.verdict, run.message) == ("run", "failure", message)
    assert sorted(entry.name for entry in orch.directory.iterdir()) == ["report.xml", "train.py"]


def test_success_in_the_background(orch: Orch) -> None:
    """It replaces the file that a link leads to, not the link."""
    (orch.directory / "link.xml").symlink_to("report.xml")
    (orch.directory / "report.xml").write_text("older")
    assert orch("up", "-n", "2", "--wait", "done", "--junit", "link.xml", "--", "true").code == 0
    assert [case[:2] for case in cases(orch.directory / "report.xml")] == [
        ("worker:0", "passed"),
        ("worker:1", "passed"),
        ("run", "passed"),
    ]
    assert (orch.directory / "link.xml").is_symlink()


def test_stopped_run(orch: Orch) -> None:
    started = orch.start("up", "--junit", "report.xml", "--", "sh", "-c", "echo on; exec sleep 600")
    started.until_out("on")
    assert not (orch.directory / "report.xml").exists()
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert [case[:2] for case in cases(orch.directory / "report.xml")] == [
        ("worker:0", "skipped"),
        ("run", "error"),
    ]


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("none/r.xml", (), "none is not a directory; create it"),
        (".", (), "is a directory; name a file"),
        ("pipe", (), "is not a regular file"),
        ("r" * 300, (), "File name too long"),
        ("r.xml", ("-d",), "--junit: the file is written when the run has ended"),
        ("r.xml", ("--wait", "ready"), "use --wait done"),
    ],
)
def test_file_that_cannot_be_written_is_refused_before_the_start(
    orch: Orch, path: str, options: tuple[str, ...], message: str
) -> None:
    os.mkfifo(orch.directory / "pipe")
    done = orch("up", "--junit", path, *options, "--", "true")
    assert done.code == 2 and message in done.err and "--junit" in done.err
    assert orch.run_dirs() == []


def test_file_that_cannot_be_written_any_more_fails_a_successful_run(orch: Orch) -> None:
    (orch.directory / "reports").mkdir()
    done = orch("up", "--junit", "reports/r.xml", "--", "rmdir", "reports")
    assert done.code == 125 and "reports/r.xml cannot be written (No such file or directory)" in done.err
    assert orch.result()["exit_code"] == 0


def test_file_that_is_replaced_by_a_pipe_stays(orch: Orch) -> None:
    done = orch("up", "--junit", "r.xml", "--", "mkfifo", "r.xml")
    assert done.code == 125 and "r.xml cannot be written (it is not a regular file any more)" in done.err
    assert (orch.directory / "r.xml").is_fifo()


texts = st.text(st.characters(codec=None)) | st.sampled_from(
    ["]]>", "\x00\x1b[31m\x85", "\ud800", "\ufffe\uffff", "\r\n"]
)


@given(texts, texts)
def test_any_text_gives_a_document_that_can_be_read(exception: str, line: str) -> None:
    first = FirstFailure(
        task="worker:0", exit_code=1, signal=None, exception=exception, log=line, advice=line, lines=(line,)
    )
    result = RunResult(
        run_id="digits-1",
        outcome="failed",
        exit_code=1,
        attempts=1,
        cause=Cause(task="worker:0", kind=CauseKind.EXITED, text=line),
        first_failure=first,
        detection_s=None,
        teardown_s=None,
        tasks=(TaskEnd(task="worker:0", state="failed", exit_code=1, signal=None, end=line),),
    )
    document = junit_document(result, {}, name=exception, host=line, started_at=0.0)
    assert [case.verdict for case in cases(document)] == ["failure", "failure"]


@pytest.mark.parametrize(
    ("outcome", "state", "verdicts"),
    [
        ("succeeded", "failed", ["skipped", "passed"]),  # --on-failure continue
        ("succeeded", "stopped", ["passed", "passed"]),  # a parameter server
        ("timed_out", "stopped", ["skipped", "failure"]),
        ("failed", "succeeded", ["passed", "failure"]),
        ("lost", "lost", ["error", "error"]),
    ],
)
def test_verdicts(outcome: str, state: str, verdicts: list[str]) -> None:
    result = RunResult.model_validate(
        {
            "run_id": "digits-1",
            "outcome": outcome,
            "exit_code": 0,
            "attempts": 1,
            "cause": None,
            "first_failure": None,
            "detection_s": None,
            "teardown_s": None,
            "tasks": [{"task": "worker:0", "state": state, "exit_code": 1, "signal": None}],
        }
    )
    assert [
        case.verdict for case in cases(junit_document(result, {}, name="n", host="", started_at=0.0))
    ] == verdicts
