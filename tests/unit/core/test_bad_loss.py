"""A loss that is NaN or infinite: read from lines and reports, reported once, kept in the result, a cause if asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from making import START, event, job, progressed
from story import Story, other_ends

from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import task_status
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import ProgressThrottle, parse_progress
from orchestrator.core.state import events
from orchestrator.core.state.events import parse_event
from orchestrator.core.state.result import BadLoss, TaskBadLoss

NAN = BadLoss(value="nan", epoch=2, step=37)
STOPS = job(stop_on_nan=True)


def running(spec: JobSpec | None = None) -> Story:
    return Story(spec or job()).ready()


def with_nan(story: Story) -> Story:
    for index, loss in ((1, NAN), (0, BadLoss(value="nan", epoch=2, step=40)), (1, NAN)):
        story.trains(index, 41, epoch=2, bad_loss=loss)
    return story


def test_training_in_the_result_has_its_last_values() -> None:
    story = running().trains(0, 24, loss=0.5).reports(0, "evaluating", step=469, loss=0.5)
    training = story.exits(0, 1).result().training
    assert training is not None and (training.step, training.loss) == (None, 0.5)
    story = running().trains(0, 41, epoch=2, epochs=2, metrics={"accuracy": 0.6}, bad_loss=NAN)
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
    again = parse_event(events.event_line(event(events.TaskProgressed, task=0, progress=merged)))
    assert isinstance(again, events.TaskProgressed) and again.progress.bad_loss == NAN
    finite = reader.read((bar % (39, "0.2000")).encode(), 1.0)
    assert finite is not None and (finite.loss, finite.bad_loss) == (0.2, None)


def test_bad_loss_of_a_report_is_not_lost() -> None:
    for loss in ("NaN", '"nan"', "Infinity", '"-inf"', "1e999"):
        progress = parse_progress(f'{{"epoch": 2, "step": 37, "loss": {loss}}}')
        assert progress is not None and progress.loss is None and progress.bad_loss is not None, loss
        assert (progress.bad_loss.epoch, progress.bad_loss.step) == (2, 37), loss
        json.loads(progress.model_dump_json(), parse_constant=pytest.fail)


def test_bad_loss_is_reported_once_and_kept_in_the_result() -> None:
    story = with_nan(running())
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
    during = running(STOPS).tell(progressed(1, epoch=2, step=37, bad_loss=NAN)).exits(0, 1, signal=15)
    at_end = running(STOPS).exits(0).trains(1, 37, epoch=2, bad_loss=NAN).exits(1)
    restarting = with_nan(running(job(stop_on_nan=True, on_failure=FailurePolicy.RESTART)).trains(0, 20))
    rows: dict[str, tuple[Any, ...]] = {
        "during the training": (during, "failed 1: nan worker:1", "stopped by orch", "stopped by orch"),
        "at the end": (at_end, "failed 1: nan worker:1"),
        "with restarts": (restarting.exits(0, 1, signal=15), "failed 1: nan worker:1"),
    }
    assert other_ends(rows) == {}
    cause = during.result().cause
    assert cause is not None
    assert cause.text == "the loss is nan, first seen at epoch 2 step 37 (--stop-on-nan)"
    assert restarting.result().not_restarted == "--stop-on-nan ends the run"
