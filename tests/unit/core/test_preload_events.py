"""Preloading in the state of a run and in the messages to the user."""

from __future__ import annotations

from making import attempt_planned, event

from orchestrator.client.view.messages import event_message
from orchestrator.core.state import events
from orchestrator.core.state.fold import apply
from orchestrator.core.state.state import RunState

BEGAN = event(events.Preload, modules=("tensorflow", "keras"))
DONE = event(events.Preload, modules=("tensorflow", "keras"), seconds=2.14)
NOT = event(events.Preload, refused="it has 3 threads")
QUIET = event(events.Noticed, text="by the way", verbose=True)


def test_run_is_preloading_until_done_or_refused() -> None:
    begun = apply(apply(RunState(), BEGAN), attempt_planned(1))
    assert begun.preloading == ("tensorflow", "keras")
    assert apply(begun, DONE).preloading == apply(begun, NOT).preloading == ()


def test_messages() -> None:
    earlier, loud = DONE.model_copy(update={"seconds": 0.0}), event(events.Noticed, text="look")
    told = [(made, event_message(made, None, verbose=True)) for made in (BEGAN, DONE, earlier, NOT, QUIET)]
    assert [text for _, text in told] == [
        None,
        "preloaded tensorflow, keras in 2.1 s",
        "preloaded tensorflow, keras by an earlier run",
        "not preloaded: it has 3 threads",
        "by the way",
    ]
    assert [event_message(made, None) for made in (DONE, QUIET, loud)] == [None, None, "look"]
    assert apply(apply(RunState(), QUIET), loud).notices == ("look",)
