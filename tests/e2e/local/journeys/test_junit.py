"""`orch up --junit FILE`: a case for each task and for the run, in any end of the run, as XML for any text.

The document of a failed run is in test_failed."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st
from junit_cases import junit_cases
from making import cause, first_failure, run_result, task_end
from orch_command import Orch

from orchestrator.client.junit import junit_document

_TEXTS = st.text(st.characters(codec=None)) | st.sampled_from(
    ["]]>", "\x00\x1b[31m\x85", "\ud800", "\ufffe\uffff", "\r\n"]
)


def test_successful_and_stopped_runs(orch: Orch) -> None:
    """The file that a link leads to is replaced, not the link. It is written when the run has ended."""
    link, report = orch.directory / "link.xml", orch.directory / "report.xml"
    link.symlink_to(report.name)
    report.write_text("older")
    assert orch("up", "-n", "2", "--wait", "done", "--junit", "link.xml", "--", "true").code == 0
    assert [case[:2] for case in junit_cases(report)] == [
        *(("worker:0", "passed"), ("worker:1", "passed"), ("run", "passed"))
    ]
    assert link.is_symlink() and len([*orch.directory.iterdir()]) == 2

    report.unlink()
    started = orch.start("up", "--junit", "report.xml", "--", "sh", "-c", "echo on; exec sleep 600")
    started.until_out("on")
    assert not report.exists()
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert [case[:2] for case in junit_cases(report)] == [("worker:0", "skipped"), ("run", "error")]


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


@given(_TEXTS, _TEXTS)
def test_any_text_gives_a_document_that_can_be_read(exception: str, line: str) -> None:
    first = first_failure(0, exception=exception, log=line, advice=line, lines=(line,))
    ended = task_end(0, "failed", end=line)
    result = run_result("failed", ended, cause=cause(0, line), first_failure=first)
    document = junit_document(result, {}, name=exception, host=line, started_at=0.0)
    assert [case.verdict for case in junit_cases(document)] == ["failure", "failure"]


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
        assert [case.verdict for case in junit_cases(document)] == expected, (outcome, state)
