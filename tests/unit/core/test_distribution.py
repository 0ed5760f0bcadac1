"""What a run says about its training: whether its tasks trained separate models, and whether a loss was NaN or
infinite."""

from __future__ import annotations

import json
from typing import Any

import pytest
from making import START, command, job
from story import Story, other_ends

from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import task_status
from orchestrator.core.job.choices import FailurePolicy, Strategy
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import ProgressThrottle, parse_progress
from orchestrator.core.state import events
from orchestrator.core.state.result import BadLoss, TaskBadLoss

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


def ended(story: Story, code: int = 0) -> Story:
    """All tasks have exited with 0, but the last with `code`."""
    *others, last = story.state.tasks
    return story.exits(*others).exits(last, code=code)


def test_tasks_that_trained_without_a_cluster_are_called_copies() -> None:
    """A cluster of one is not a cluster."""
    for more in ({}, {"cluster": 1, "server": "localhost:1"}):
        result = ended(training(**more)).result()
        assert (result.outcome, result.not_distributed, result.cause) == ("succeeded", COPIES, None)
        assert [task.joined for task in result.tasks] == [False, False]


def test_expect_cluster_makes_it_a_failure() -> None:
    """Also if they were not seen to train. The failure of a task stays the cause."""
    unseen = "train.py never joined the cluster of 2 tasks. Create "
    rows = {
        "copies": (ended(training(EXPECTED)), "failed 1: not_distributed"),
        "unseen": (ended(reporting(EXPECTED)), "failed 1: not_distributed"),
        "a failure": (ended(training(EXPECTED), code=3), "failed 3: exited worker:1"),
    }
    assert other_ends(rows) == {}
    copies = rows["copies"][0]
    assert copies.cause.text == COPIES and rows["unseen"][0].cause.text.startswith(unseen)
    assert [row[0].result().not_distributed for row in rows.values()] == [None] * 3
    assert copies.result().first_failure is None


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
    ends = {how: ended(story).result() for how, story in (joined | others).items()}
    said = {how: end.not_distributed or end.cause for how, end in ends.items()}
    assert not any(said.values()), said
    assert all(any(task.joined for task in ends[how].tasks) for how in joined)


def test_program_is_named_as_the_user_knows_it() -> None:
    rows = {"-u -m pkg.mod x": "pkg.mod", "-u -c import": "the code after -c", "-u": "python"}
    argvs = {words: ("python", *words.split()) for words in rows}
    assert {words: SCRIPT.model_copy(update={"argv": argv}).program for words, argv in argvs.items()} == rows


NAN = BadLoss(value="nan", epoch=2, step=37)


def losing(**fields: Any) -> Story:
    return Story(job(**fields)).ready()


def with_nan(story: Story) -> Story:
    for index, loss in ((1, NAN), (0, BadLoss(value="nan", epoch=2, step=40)), (1, NAN)):
        story.trains(index, 41, epoch=2, bad_loss=loss)
    return story


def test_training_in_the_result_has_its_last_values() -> None:
    story = losing().trains(0, 24, loss=0.5).reports(0, "evaluating", step=469, loss=0.5)
    training = story.exits(0, 1).result().training
    assert training is not None and (training.step, training.loss) == (None, 0.5)
    story = losing().trains(0, 41, epoch=2, epochs=2, metrics={"accuracy": 0.6}, bad_loss=NAN)
    lines = end_lines(story.exits(0, 1).result(), None, colour=False)
    assert ": 2 epochs, accuracy 0.6" in lines[0]


def test_first_bad_loss_of_a_bar_is_remembered() -> None:
    reader, throttle = LineProgress(), ProgressThrottle()
    bar = "%d/70 ━━ 0s 5ms/step - loss: %s\r"
    for line in ("Epoch 2/3\n", bar % (36, "0.1000"), bar % (37, "nan"), bar % (38, "nan")):
        progress = reader.read(line.encode(), 0.0)
        assert progress is not None
        throttle.put_from_lines("worker:0", progress)
    ((_, merged),) = throttle.take(9.0)
    assert (merged.loss, merged.bad_loss, merged.step) == (None, NAN, 38)
    finite = reader.read((bar % (39, "0.2000")).encode(), 1.0)
    assert finite is not None and (finite.loss, finite.bad_loss) == (0.2, None)


def test_bad_loss_of_a_report_is_not_lost() -> None:
    for loss, value in {
        "NaN": "nan",
        '"nan"': "nan",
        "Infinity": "inf",
        '"-inf"': "-inf",
        "1e999": "inf",
    }.items():
        progress = parse_progress(f'{{"epoch": 2, "step": 37, "loss": {loss}}}')
        assert progress is not None and progress.loss is None
        assert progress.bad_loss == BadLoss(value=value, epoch=2, step=37)
        json.loads(progress.model_dump_json(), parse_constant=pytest.fail)


def test_bad_loss_is_reported_once_and_kept_in_the_result() -> None:
    story = with_nan(losing())
    assert story.state.bad_loss == TaskBadLoss(task="worker:1", value="nan", epoch=2, step=37)
    (became_bad,) = [each for each in story.events if isinstance(each, events.Noticed)]
    assert event_message(became_bad, None) == "worker:1: the loss is nan, first seen at epoch 2 step 37"
    assert became_bad.nan_in == "worker:1"
    document = task_status(story.state.tasks["worker:1"], story.state, {}, START)
    assert document.progress is not None and document.progress.bad_loss == NAN
    result = story.exits(0, 1).result()
    assert (result.outcome, result.bad_loss) == ("succeeded", story.state.bad_loss)
    last = end_lines(result, None, colour=False)[-1]
    assert last == "orch: the loss is nan, first seen at epoch 2 step 37 (worker:1)"


def test_stop_on_nan_ends_the_run_with_that_cause_and_without_a_restart() -> None:
    """Also at the end of a task."""
    during = losing(stop_on_nan=True).trains(1, 37, epoch=2, bad_loss=NAN).exits(0, 1, signal=15)
    at_end = losing(stop_on_nan=True).exits(0).trains(1, 37, epoch=2, bad_loss=NAN).exits(1)
    restarting = with_nan(losing(stop_on_nan=True, on_failure=FailurePolicy.RESTART).trains(0, 20))
    rows: dict[str, tuple[Any, ...]] = {
        "during the training": (during, "failed 1: nan worker:1", "stopped by orch", "stopped by orch"),
        "at the end": (at_end, "failed 1: nan worker:1"),
        "with restarts": (restarting.exits(0, 1, signal=15), "failed 1: nan worker:1"),
    }
    assert other_ends(rows) == {}
    assert during.cause.text == "the loss is nan, first seen at epoch 2 step 37 (--stop-on-nan)"
    assert restarting.result().not_restarted == "--stop-on-nan ends the run"
