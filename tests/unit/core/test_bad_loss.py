"""A loss that is NaN or infinite: read from lines and reports, reported once, kept in the result, a cause if asked."""

from __future__ import annotations

import json

import pytest
from event_making import START, emptied, exited, feed, running, teardowns, the_result
from job_making import JOB, changed
from test_lifecycle_restarts import at_step

from orchestrator.client.view.messages import event_message
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import task_status
from orchestrator.client.view.tables import Moment, footer_lines
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import ProgressThrottle, parse_progress
from orchestrator.core.state import events
from orchestrator.core.state.events import Progress, parse_event
from orchestrator.core.state.result import BadLoss, CauseKind, RunResult, TaskBadLoss

T = START
NAN = BadLoss(value="nan", epoch=2, step=37)


def progressed(index: int, progress: Progress, mono: float = T) -> events.TaskProgressed:
    return events.TaskProgressed(at=mono, mono=mono, task=f"worker:{index}", progress=progress)


def with_nan(lifecycle: Lifecycle) -> Lifecycle:
    for index, loss in ((1, NAN), (0, BadLoss(value="nan", epoch=2, step=40)), (1, NAN)):
        feed(lifecycle, [progressed(index, Progress(phase="training", epoch=2, step=41, bad_loss=loss))])
    return lifecycle


def ended(lifecycle: Lifecycle, code: int | None = 0) -> RunResult:
    signal = None if code is not None else 15
    exits = [exited(index, code, signal, order=index) for index in range(2)]
    return the_result(feed(lifecycle, [*exits, emptied()]))


def test_steps_of_an_evaluation_are_not_those_of_the_training() -> None:
    lifecycle = running()
    feed(lifecycle, [progressed(0, Progress(phase="training", step=24, loss=0.5))])
    feed(lifecycle, [progressed(0, Progress(phase="evaluating", step=469, loss=0.5))])
    training = ended(lifecycle).training
    assert training is not None and (training.step, training.loss) == (None, 0.5)


def test_training_that_ends_with_nan_keeps_its_epochs_and_metrics() -> None:
    lifecycle = running()
    last = Progress(phase="training", epoch=2, epochs=2, step=41, metrics={"accuracy": 0.6}, bad_loss=NAN)
    feed(lifecycle, [progressed(0, last)])
    result = ended(lifecycle)
    lines = end_lines(result, None, colour=False)
    assert ": 2 epochs, accuracy 0.6" in lines[0]
    assert lines[-1].startswith("orch: the loss ") and "nan, first seen at epoch 2 step 37" in lines[-1]


def test_first_bad_loss_of_a_bar_is_remembered() -> None:
    reader, throttle = LineProgress(), ProgressThrottle()
    bar = b"%d/70 \xe2\x94\x81\xe2\x94\x81 0s 5ms/step - loss: %s\r"
    lines = [
        b"Epoch 2/3\n",
        *(bar % (step, loss) for step, loss in ((36, b"0.1000"), (37, b"nan"), (38, b"nan"))),
    ]
    for line in lines:
        progress = reader.read(line, 0.0)
        assert progress is not None
        throttle.put_from_lines("worker:0", progress)
    ((_, merged),) = throttle.take(9.0)
    assert (merged.loss, merged.bad_loss, merged.step) == (None, NAN, 38)
    again = parse_event(events.event_line(progressed(0, merged)))
    assert isinstance(again, events.TaskProgressed) and again.progress.bad_loss == NAN
    finite = reader.read(bar % (39, b"0.2000"), 1.0)
    assert finite is not None and (finite.loss, finite.bad_loss) == (0.2, None)


@pytest.mark.parametrize("loss", ["NaN", '"nan"', "Infinity", '"-inf"', "1e999"])
def test_bad_loss_of_a_report_is_not_lost(loss: str) -> None:
    progress = parse_progress(f'{{"epoch": 2, "step": 37, "loss": {loss}}}')
    assert progress is not None and progress.loss is None and progress.bad_loss is not None
    assert (progress.bad_loss.epoch, progress.bad_loss.step) == (2, 37)
    json.loads(progress.model_dump_json(), parse_constant=pytest.fail)


def test_bad_loss_is_reported_once_and_kept_in_the_result() -> None:
    lifecycle = with_nan(running())
    assert lifecycle.state.bad_loss == TaskBadLoss(task="worker:1", value="nan", epoch=2, step=37)
    result = ended(lifecycle)
    assert (result.outcome, result.bad_loss) == ("succeeded", lifecycle.state.bad_loss)
    assert (
        end_lines(result, None, colour=False)[-1]
        == "orch: the loss is nan, first seen at epoch 2 step 37 (worker:1)"
    )
    message = event_message(events.LossBecameBad(at=T, mono=T, task="worker:1", loss=NAN), None)
    assert message == "worker:1: the loss is nan, first seen at epoch 2 step 37"


def test_bad_loss_is_red_in_the_table() -> None:
    state = with_nan(running()).state
    rows = footer_lines(Moment("run", state, T, T), 120, 24, colour=True)
    assert any("\x1b[1;31mnan" in row for row in rows), rows
    document = task_status(state.tasks["worker:1"], state, {}, T)
    assert document.progress is not None and document.progress.bad_loss == NAN


def test_stop_on_nan_ends_the_run_with_that_cause() -> None:
    lifecycle = running(spec=changed(JOB, stop_on_nan=True))
    down = feed(lifecycle, [progressed(1, Progress(epoch=2, step=37, bad_loss=NAN))])
    assert len(teardowns(down)) == 1
    result = ended(lifecycle, None)
    assert (result.outcome, result.exit_code) == ("failed", 1)
    assert result.cause is not None and (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.NAN)
    assert result.cause.text == "the loss is nan, first seen at epoch 2 step 37 (--stop-on-nan)"
    assert [task.end for task in result.tasks] == ["stopped by orch", "stopped by orch"]


def test_bad_loss_at_the_end_of_a_task_fails_the_run() -> None:
    lifecycle = running(spec=changed(JOB, stop_on_nan=True))
    last = progressed(1, Progress(epoch=2, step=37, bad_loss=NAN))
    result = the_result(feed(lifecycle, [exited(0), last, exited(1, order=1), emptied()]))
    assert (result.outcome, result.exit_code, result.cause and result.cause.kind) == (
        "failed",
        1,
        CauseKind.NAN,
    )


def test_bad_loss_is_not_restarted() -> None:
    lifecycle = with_nan(at_step(changed(JOB, stop_on_nan=True, on_failure=FailurePolicy.RESTART)))
    result = ended(lifecycle, None)
    assert (result.exit_code, result.not_restarted) == (1, "--stop-on-nan ends the run")
