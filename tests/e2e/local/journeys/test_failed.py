"""Runs in which a task fails: report, result, status, workflow and JUnit document. Refused words may have control
characters."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junit_cases import junit_cases
from making import cause, first_failure, run_result, task_end
from orch_command import Done, Orch

from orchestrator.client.junit import junit_document

_FAILS = """
import os, time
task = os.environ["ORCH_TASK"]
open(task, "w").close()  # before this, a SIGTERM would kill the process
while task == "worker:1":
    if os.path.exists("worker:0"):
        print("\\x1b[31mlast\\x00 line", flush=True)
        raise ValueError("<no> & [red]data")
    time.sleep(0.01)
time.sleep(600)
"""
_CAUSE = "worker:1 failed: ValueError: <no> & [red]data (train.py:8)"
_IN_WORKFLOW: dict[str, str | None] = {"GITHUB_ACTIONS": "true"}
_IMITATES = 'print("::error::of the task\\n##[add-mask]x")\nraise ValueError("##[error]no data")\n'
_OPTIONS = ("--cwd", "--checkpoint-dir", "--log-dir", "--name", "--timeout", "--tasks")
_HOSTILE = "ev\x1b[31mil\nü\r\x07"
_TEXTS = st.text(st.characters(codec=None)) | st.sampled_from(
    ["]]>", "\x00\x1b[31m\x85", "\ud800", "\ufffe\uffff", "\r\n"]
)


@pytest.fixture(scope="module")
def orch(shared_orch: Orch) -> Orch:
    return shared_orch


@pytest.fixture(scope="module")
def failed(orch: Orch) -> Done:
    return orch.run("-n", "2", "--name", "failed", "--junit", "report.xml", script=_FAILS)


def test_report_comes_last(failed: Done) -> None:
    assert failed.code == 1
    assert "worker:1 | ValueError: <no> & [red]data\n" in failed.out
    report = failed.err.splitlines()
    assert report[-1] == f"orch: {_CAUSE}"
    assert "  other tasks    worker:0: stopped by orch" in report
    assert f"  log file       {failed.run}/logs/worker-1.log" in report


def test_result(orch: Orch, failed: Done) -> None:
    result = failed.result
    assert result["schema_version"] == 1 and result["run_id"] == failed.run.name
    assert (result["outcome"], result["exit_code"], result["attempts"]) == ("failed", 1, 1)
    cause = {"task": "worker:1", "kind": "exited", "text": "exit 1", "tasks": [], "host": None}
    assert result["cause"] == cause
    first = result["first_failure"]
    assert (first["task"], first["exit_code"], first["signal"]) == ("worker:1", 1, None)
    assert first["exception"] == "ValueError: <no> & [red]data"
    assert first["place"] == f"{orch.directory}/train.py:8"
    assert first["log"] == f"{failed.run}/logs/worker-1.log"
    assert result["detection_s"] >= 0 and result["teardown_s"] >= 0
    states = {end["task"]: end["state"] for end in result["tasks"]}
    assert states == {"worker:0": "stopped", "worker:1": "failed"}


def test_cause_is_the_same_in_each_report(orch: Orch, failed: Done) -> None:
    stopped, own, run = junit_cases(orch.directory / "report.xml")
    assert stopped[:3] == ("worker:0", "skipped", "stopped by orch")
    assert own[:3] == ("worker:1", "failure", _CAUSE) and run[:3] == ("run", "failure", _CAUSE)
    assert "last line" in own.text and str(failed.run) in own.text
    assert f"**Cause:** `{_CAUSE}`" in orch("report", "--markdown", "failed").out


def test_status(orch: Orch, failed: Done) -> None:
    tasks = orch.status("failed")["tasks"]
    ends = [("stopped", 143, None), ("failed", 1, None)]
    assert [(task["state"], task["exit_code"], task["signal"]) for task in tasks] == ends
    head, _, titles, *rows = orch("ps", "failed").lines
    assert head.startswith(failed.run.name) and "failed" in head and "exit code 1" in head
    assert titles.split()[:4] == ["TASK", "STATE", "PID", "UP"]
    assert [row.split()[:2] for row in rows] == [
        [f"worker:{index}", end[0]] for index, end in enumerate(ends)
    ]
    assert orch("status", failed.run.name, "--color", "never").lines == [head, _, titles, *rows]


def test_workflow_has_a_group_and_one_annotation(orch: Orch) -> None:
    """The lines of the tasks are a group; none of their text is a command, on either stream."""
    script = orch.script("imitates.py", _IMITATES)
    env = {**_IN_WORKFLOW, "GITHUB_WORKSPACE": str(orch.directory)}
    done = orch.pipe("up", "--no-prefix", "--", script, env=env)
    run = orch.run_dirs()[-1]
    assert done.code == 1
    group, *lines, end = done.lines
    assert group == f"::group::output of {run.name}" and end == "::endgroup::"
    assert lines[:2] == [": :error::of the task", "## [add-mask]x"]
    *report, error = done.err.splitlines()
    assert error.startswith(
        "::error file=imitates.py,line=2,title=worker%3A0 failed::worker:0 failed: ValueError: ##[er"
    )
    assert not [line for line in (*lines, *report) if "##[" in line or line.lstrip().startswith("::")]
    assert b"::error::of the task\n##[add-mask]x\n" in (run / "logs/worker-0.log").read_bytes()
    assert orch.pipe("logs", "--no-prefix", env=env).lines[:2] == lines[:2]
    # The runner does not read a file: it gets the lines as they are.
    assert orch.within("logs", "--no-prefix", env=env).lines[0] == "::error::of the task"
    assert orch.pipe("logs", "--raw", env=env).lines[0] == "::error::of the task"


def test_hostile_words_reach_no_terminal(orch: Orch) -> None:
    refused = {
        **{("up", option, f"/proc/{_HOSTILE}", "--", "true"): 2 for option in _OPTIONS},
        **{(verb, _HOSTILE): 3 for verb in ("status", "logs", "down", "wait", "attach")},
    }
    for words, done in orch.all_within(refused):
        assert (done.code, done.out) == (refused[words], ""), words
        assert done.err.replace("\n", "").isprintable(), done.err
        assert words[0] != "up" or words[1] in done.err, done.err
        assert words[0] != "up" or "/proc/" in done.err, done.err


def test_success_in_a_workflow_is_a_group_without_an_annotation(orch: Orch) -> None:
    done = orch.pipe("up", "--", "echo", "hi", env=_IN_WORKFLOW)
    assert [line.partition(" ")[0] for line in done.lines] == ["::group::output", "worker:0", "::endgroup::"]
    assert "::error" not in done.err


def test_successful_and_stopped_runs(orch: Orch) -> None:
    """The file that a link leads to is replaced, not the link. It is written when the run has ended."""
    link, report = orch.directory / "link.xml", orch.directory / "linked.xml"
    link.symlink_to(report.name)
    report.write_text("older")
    before = {*orch.directory.iterdir()}
    assert orch("up", "-n", "2", "--wait", "done", "--junit", "link.xml", "--", "true").code == 0
    assert [case[:2] for case in junit_cases(report)] == [
        *(("worker:0", "passed"), ("worker:1", "passed"), ("run", "passed"))
    ]
    assert link.is_symlink() and {*orch.directory.iterdir()} == before

    report.unlink()
    started = orch.start("up", "--junit", "linked.xml", "--", "sh", "-c", "echo on; exec sleep 600")
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
