"""Preloading and starting in the state of a run and in the messages to the user."""

from __future__ import annotations

from event_making import START, feed, lifecycle_of, planned, started
from job_making import JOB, changed

from orchestrator.client.view.messages import event_message
from orchestrator.core.state import events
from orchestrator.core.state.events import event_line, parse_event
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState
from orchestrator.supervisor import Now

AT: Now = {"at": START, "mono": START}
BEGAN = events.PreloadBegan(**AT, modules=("tensorflow", "keras"))
DONE = events.Preloaded(**AT, modules=("tensorflow", "keras"), seconds=2.14)
NOT = events.NotPreloaded(**AT, reason="it has 3 threads")


def test_run_is_preloading_until_done_or_refused() -> None:
    begun = apply(RunState(), BEGAN)
    assert begun.preloading == ("tensorflow", "keras")
    assert apply(begun, planned(1)).preloading == ("tensorflow", "keras")
    assert apply(begun, DONE).preloading == apply(begun, NOT).preloading == ()


def test_start_method_of_task_is_known() -> None:
    state = apply(RunState(), planned(2))
    state = apply(state, started(0).model_copy(update={"method": "fork"}))
    state = apply(state, started(1))
    assert [task.method for task in state.tasks.values()] == ["fork", "spawn"]


def test_events_of_older_version_are_read() -> None:
    line = b'{"at":1,"mono":1,"type":"task_started","task":"worker:0","pid":1,"start_ticks":1}'
    event = parse_event(line)
    assert isinstance(event, events.TaskStarted) and event.method == "spawn"
    assert parse_event(event_line(DONE)) == DONE


def test_verbose_messages() -> None:
    assert event_message(DONE, None, verbose=True) == "preloaded tensorflow, keras in 2.1 s"
    assert (
        event_message(DONE.model_copy(update={"seconds": 0.0}), None, verbose=True)
        == "preloaded tensorflow, keras by an earlier run"
    )
    assert event_message(NOT, None, verbose=True) == "not preloaded: it has 3 threads"
    assert event_message(BEGAN, None, verbose=True) is None
    assert event_message(DONE, None) is None


def test_verbose_notice_is_not_a_notice_of_the_run() -> None:
    quiet = events.Noticed(**AT, text="by the way", verbose=True)
    loud = events.Noticed(**AT, text="look")
    assert apply(apply(RunState(), quiet), loud).notices == ("look",)
    assert event_message(quiet, None, verbose=True) == "by the way"
    assert event_message(quiet, None) is None
    assert event_message(loud, None) == "look"


def test_preload_option_without_effect_is_a_notice() -> None:
    asked = lifecycle_of(changed(JOB, preload=("numpy",)))
    feed(asked, [NOT])
    assert asked.state.notices == ("--preload has no effect: it has 3 threads",)
    not_asked = lifecycle_of(JOB)
    feed(not_asked, [NOT])
    assert not_asked.state.notices == ()
