"""`orch up --junit FILE`: a case for each task and for the run, in any end of the run, as XML for any text."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from hypothesis import given
from hypothesis import strategies as st
from making import cause, first_failure, run_result, task_end
from orch_command import Orch

from orchestrator.client.junit import junit_document

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
    done = orch.run("-n", "2", "--name", "digits", "--junit", "report.xml", script=FAILS)
    assert done.code == 1
    stopped, failed, run = cases(orch.directory / "report.xml")
    message = "worker:1 failed: ValueError: <no> & data (train.py:4)"
    assert stopped[:3] == ("worker:0", "skipped", "stopped by orch")
    assert failed[:3] == ("worker:1", "failure", message)
    assert "last line" in failed.text and str(done.run) in failed.text
    assert run[:3] == ("run", "failure", message)
    assert sorted(entry.name for entry in orch.directory.iterdir()) == ["report.xml", "train.py"]


def test_successful_and_stopped_runs(orch: Orch) -> None:
    """The file that a link leads to is replaced, not the link. It is written when the run has ended."""
    link, report = orch.directory / "link.xml", orch.directory / "report.xml"
    link.symlink_to(report.name)
    report.write_text("older")
    assert orch("up", "-n", "2", "--wait", "done", "--junit", "link.xml", "--", "true").code == 0
    verdicts = [(case.name, case.verdict) for case in cases(report)]
    assert verdicts == [("worker:0", "passed"), ("worker:1", "passed"), ("run", "passed")]
    assert link.is_symlink()

    report.unlink()
    started = orch.start("up", "--junit", "report.xml", "--", "sh", "-c", "echo on; exec sleep 600")
    started.until_out("on")
    assert not report.exists()
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert [(case.name, case.verdict) for case in cases(report)] == [
        ("worker:0", "skipped"),
        ("run", "error"),
    ]


def test_file_that_cannot_be_written_is_refused_before_the_start(orch: Orch) -> None:
    os.mkfifo(orch.directory / "pipe")
    refused = {
        ("none/r.xml",): "none is not a directory; create it",
        (".",): "is a directory; name a file",
        ("pipe",): "is not a regular file",
        ("r" * 300,): "File name too long",
        ("r.xml", "-d"): "--junit: the file is written when the run has ended",
        ("r.xml", "--wait", "ready"): "use --wait done",
    }
    for words, said in refused.items():
        done = orch("up", "--junit", *words, "--", "true")
        assert done.code == 2 and said in done.err and "--junit" in done.err, (words, done.err)
    assert orch.run_dirs() == []


def test_file_that_cannot_be_written_any_more_fails_a_successful_run(orch: Orch) -> None:
    (orch.directory / "reports").mkdir()
    ends = {
        "reports/r.xml": (["rmdir", "reports"], "No such file or directory"),
        "r.xml": (["mkfifo", "r.xml"], "it is not a regular file any more"),
    }
    for path, (command, why) in ends.items():
        done = orch("up", "--junit", path, "--", *command)
        assert done.code == 125 and f"{path} cannot be written ({why})" in done.err
        assert orch.result(orch.run_dirs()[-1])["exit_code"] == 0
    assert (orch.directory / "r.xml").is_fifo()


texts = st.text(st.characters(codec=None)) | st.sampled_from(
    ["]]>", "\x00\x1b[31m\x85", "\ud800", "\ufffe\uffff", "\r\n"]
)


@given(texts, texts)
def test_any_text_gives_a_document_that_can_be_read(exception: str, line: str) -> None:
    first = first_failure(0, exception=exception, log=line, advice=line, lines=(line,))
    ended = task_end(0, "failed", end=line)
    result = run_result("failed", ended, cause=cause(0, line), first_failure=first)
    document = junit_document(result, {}, name=exception, host=line, started_at=0.0)
    assert [case.verdict for case in cases(document)] == ["failure", "failure"]


def test_verdicts() -> None:
    verdicts = {
        ("succeeded", "failed"): ["skipped", "passed"],  # --on-failure continue
        ("succeeded", "stopped"): ["passed", "passed"],  # a parameter server
        ("timed_out", "stopped"): ["skipped", "failure"],
        ("failed", "succeeded"): ["passed", "failure"],
        ("lost", "lost"): ["error", "error"],
    }
    for (outcome, state), expected in verdicts.items():
        result = run_result(outcome, task_end(0, state, code=1))
        document = junit_document(result, {}, name="n", host="", started_at=0.0)
        assert [case.verdict for case in cases(document)] == expected, (outcome, state)
