"""Whether a run says that its tasks trained separate models: events in, result out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from event_making import START, emptied, exited, feed, lifecycle_of, planned, ready, started, the_result
from job_making import JOB, changed

from orchestrator.core.job.choices import Strategy
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress
from orchestrator.core.state.result import CauseKind, RunResult

SCRIPT = Command(
    kind=CommandKind.SCRIPT,
    words=("python", "train.py"),
    argv=("python", "-u", "train.py", "1"),
    interpreter=("python", "-u"),
    serves=True,
)
TWO = changed(JOB, command=SCRIPT)
COPIES = (
    "train.py never joined the cluster: 2 independent copies were trained."
    " Create a MultiWorkerMirroredStrategy, or use --workers 1."
)


def facts(index: int, **fields: object) -> events.TaskProgressed:
    return events.TaskProgressed(
        at=START, mono=START, task=f"worker:{index}", progress=Progress.model_validate(fields)
    )


def result(spec: JobSpec, reported: Iterable[Event], tasks: int = 2, code: int = 0) -> RunResult:
    """The result of a run whose tasks start, report this, and exit with 0, but the last with `code`."""
    ends = [exited(index, code if index == tasks - 1 else 0, order=index) for index in range(tasks)]
    begun = [planned(tasks), *map(started, range(tasks))]
    lifecycle = lifecycle_of(spec)
    feed(lifecycle, [*begun, *reported, *ends])
    return the_result(feed(lifecycle, [emptied()]))


TRAINED = (facts(0, trains=True), facts(1, trains=True))


def test_tasks_that_trained_without_a_cluster_are_called_copies() -> None:
    ended = result(TWO, TRAINED)
    assert (ended.outcome, ended.not_distributed, ended.cause) == ("succeeded", COPIES, None)
    assert [task.joined for task in ended.tasks] == [False, False]


def test_expect_cluster_makes_it_a_failure() -> None:
    ended = result(changed(TWO, expect_cluster=True), TRAINED)
    assert (ended.outcome, ended.exit_code, ended.not_distributed) == ("failed", 1, None)
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.task, ended.cause.text) == (CauseKind.NOT_DISTRIBUTED, None, COPIES)
    assert ended.first_failure is None


@pytest.mark.parametrize(
    "joined",
    [
        (*TRAINED, facts(0, trains=True, cluster=2)),
        (*TRAINED, facts(1, trains=True, cluster=2, server="localhost:12345")),
        (ready(0), *TRAINED),
    ],
    ids=["by its own report", "at another address", "by its port"],
)
def test_tasks_that_joined_are_distributed(joined: tuple[Event, ...]) -> None:
    ended = result(changed(TWO, expect_cluster=True), joined)
    assert (ended.outcome, ended.not_distributed) == ("succeeded", None)
    assert any(task.joined for task in ended.tasks)


@pytest.mark.parametrize(
    ("spec", "reported", "tasks"),
    [
        (TWO, (), 2),
        (TWO, (facts(0, phase="training", step=3), facts(1, phase="training", step=3)), 2),
        (TWO, (facts(0, trains=True),), 2),
        (changed(TWO, roles={"worker": 1}), (facts(0, trains=True),), 1),
        (changed(TWO, strategy=StrategyChoice(strategy=Strategy.TPU)), TRAINED, 2),
    ],
    ids=["no TensorFlow", "lines that look like steps", "one trains", "one task", "one-process strategy"],
)
def test_nothing_is_said_where_it_may_be_wrong(
    spec: JobSpec, reported: tuple[Event, ...], tasks: int
) -> None:
    assert result(spec, reported, tasks).not_distributed is None


def test_cluster_of_one_is_not_a_cluster() -> None:
    alone = [facts(index, trains=True, cluster=1, server="localhost:1") for index in (0, 1)]
    assert result(TWO, alone).not_distributed == COPIES


def test_expect_cluster_fails_tasks_that_did_not_train_either() -> None:
    ended = result(changed(TWO, expect_cluster=True), ())
    assert ended.outcome == "failed" and ended.cause is not None
    assert ended.cause.text.startswith("train.py never joined the cluster of 2 tasks. Create ")


def test_failure_of_a_task_stays_the_cause() -> None:
    ended = result(changed(TWO, expect_cluster=True), TRAINED, code=3)
    assert (ended.exit_code, ended.not_distributed) == (3, None)
    assert ended.cause is not None and ended.cause.task == "worker:1"


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (("python", "-u", "-m", "pkg.mod", "x"), "pkg.mod"),
        (("python", "-u", "-c", "import x"), "the code after -c"),
        (("python", "-u"), "python"),
    ],
)
def test_program_is_named_as_the_user_knows_it(argv: tuple[str, ...], program: str) -> None:
    assert SCRIPT.model_copy(update={"argv": argv}).program == program
