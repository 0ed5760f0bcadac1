"""Whether a run says that its tasks trained separate models: events in, result out."""

from __future__ import annotations

from typing import Any

from making import command, job
from story import Story

from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.core.state.result import CauseKind, RunResult

ARGV = ("python", "-u", "train.py", "1")
SCRIPT = command(*ARGV, kind=CommandKind.SCRIPT, words=("python", "train.py"), interpreter=("python", "-u"))
TWO = job(command=SCRIPT)
EXPECTED = job(command=SCRIPT, expect_cluster=True)
COPIES = (
    "train.py never joined the cluster: 2 independent copies were trained."
    " Create a MultiWorkerMirroredStrategy, or use --workers 1."
)


def reporting(spec: JobSpec, *facts: dict[str, Any]) -> Story:
    """A run whose workers have started and report these facts, the first one those of worker:0."""
    story = Story(spec).starts()
    for index, fields in enumerate(facts):
        story.reports(index, **fields)
    return story


def training(spec: JobSpec = TWO, **more: Any) -> Story:
    return reporting(spec, {"trains": True} | more, {"trains": True} | more)


def result(story: Story, code: int = 0) -> RunResult:
    """The result once all tasks have exited with 0, but the last with `code`."""
    *others, last = story.state.tasks
    return story.exits(*others).exits(last, code=code).result()


def test_tasks_that_trained_without_a_cluster_are_called_copies() -> None:
    """A cluster of one is not a cluster."""
    for more in ({}, {"cluster": 1, "server": "localhost:1"}):
        ended = result(training(**more))
        assert (ended.outcome, ended.not_distributed, ended.cause) == ("succeeded", COPIES, None)
        assert [task.joined for task in ended.tasks] == [False, False]


def test_expect_cluster_makes_it_a_failure() -> None:
    ended = result(training(EXPECTED))
    assert (ended.outcome, ended.exit_code, ended.not_distributed) == ("failed", 1, None)
    assert ended.cause is not None and ended.first_failure is None
    assert (ended.cause.kind, ended.cause.task, ended.cause.text) == (CauseKind.NOT_DISTRIBUTED, None, COPIES)
    # Also if they were not seen to train.
    ended = result(reporting(EXPECTED))
    assert ended.outcome == "failed" and ended.cause is not None
    assert ended.cause.text.startswith("train.py never joined the cluster of 2 tasks. Create ")


def test_nothing_is_said_of_tasks_that_joined_or_where_it_may_be_wrong() -> None:
    tpu = job(command=SCRIPT, strategy=StrategyChoice(strategy=Strategy.TPU))
    joined = {
        "by its own report": training(EXPECTED).reports(0, cluster=2),
        "at another address": training(EXPECTED).reports(1, cluster=2, server="localhost:12345"),
        "by its port": training(EXPECTED).ready(0),
    }
    others = {
        "no TensorFlow": reporting(TWO),
        "lines that look like steps": reporting(TWO, *[{"phase": "training", "step": 3}] * 2),
        "one trains": reporting(TWO, {"trains": True}),
        "one task": reporting(job(command=SCRIPT, workers=1), {"trains": True}),
        "a strategy of one process": training(tpu),
    }
    ends = {how: result(story) for how, story in (joined | others).items()}
    said = {how: ended.not_distributed or ended.cause for how, ended in ends.items()}
    assert not any(said.values()), said
    assert all(any(task.joined for task in ends[how].tasks) for how in joined)


def test_failure_of_a_task_stays_the_cause() -> None:
    ended = result(training(EXPECTED), code=3)
    assert (ended.exit_code, ended.not_distributed) == (3, None)
    assert ended.cause is not None and ended.cause.task == "worker:1"


def test_program_is_named_as_the_user_knows_it() -> None:
    rows = {"-u -m pkg.mod x": "pkg.mod", "-u -c import": "the code after -c", "-u": "python"}
    argvs = {words: ("python", *words.split()) for words in rows}
    assert {words: SCRIPT.model_copy(update={"argv": argv}).program for words, argv in argvs.items()} == rows
