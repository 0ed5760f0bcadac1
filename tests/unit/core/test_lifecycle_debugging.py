"""Time limits of a run whose tasks are debugged: events in, actions out, no clock."""

from __future__ import annotations

import json

import pytest
from event_making import START, deadline, exited, feed, running, teardowns
from job_making import JOB, changed

from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.lifecycle.actions import Deadline
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events

T = START
LIMITED = changed(JOB, timeout_s=300.0, stall_timeout_s=60.0)
PAUSE_S = 180.0


def debugger(state: str, mono: float, index: int = 1) -> events.TaskProgressed:
    progress = events.Progress.model_validate({"debugger": {"state": state, "port": 5678}})
    return events.TaskProgressed(at=mono, mono=mono, task=f"worker:{index}", progress=progress)


def notices(lifecycle: Lifecycle, event: events.Event) -> list[str]:
    """The notices that an event causes."""
    before = len(lifecycle.state.notices)
    feed(lifecycle, [event])
    return list(lifecycle.state.notices[before:])


def due(lifecycle: Lifecycle) -> dict[str, float]:
    """The next deadline."""
    found = lifecycle.next_deadline()
    return {} if found is None else {found[1]: found[0]}


@pytest.mark.parametrize("state", ["waiting", "attached"])
def test_a_debugger_suspends_all_limits(state: str) -> None:
    lifecycle = running(spec=LIMITED)
    assert due(lifecycle) == {Deadline.STALL_LIMIT: T + 60}
    feed(lifecycle, [debugger(state, T + 10)])
    assert due(lifecycle) == {}


def test_a_task_that_will_wait_for_its_debugger_suspends_limits_before_it_says_so() -> None:
    named = (TaskRef(type="worker", index=1),)
    assert due(running(spec=LIMITED.model_copy(update={"debug": named}))) == {}
    no_wait = {"debug": named, "debug_no_wait": True}
    assert due(running(spec=LIMITED.model_copy(update=no_wait))) == {Deadline.STALL_LIMIT: T + 60}


def test_a_debugger_that_nobody_uses_suspends_nothing() -> None:
    lifecycle = running(spec=LIMITED)
    feed(lifecycle, [debugger("listening", T + 10)])
    assert due(lifecycle) == {Deadline.STALL_LIMIT: T + 60}


def test_the_time_in_a_debugger_does_not_count() -> None:
    lifecycle = running(spec=LIMITED)
    feed(lifecycle, [debugger("attached", T + 10), debugger("listening", T + 10 + PAUSE_S)])
    assert due(lifecycle) == {Deadline.STALL_LIMIT: T + 70 + PAUSE_S}
    stopped = feed(lifecycle, [deadline(Deadline.TIMEOUT, T + 300 + PAUSE_S)])
    assert teardowns(stopped)


def test_timeout_is_later_by_the_time_in_a_debugger() -> None:
    lifecycle = running(spec=changed(JOB, timeout_s=300.0, start_timeout_s=None, silence_notice_s=None))
    feed(lifecycle, [debugger("attached", T + 10), debugger("listening", T + 10 + PAUSE_S)])
    assert due(lifecycle) == {Deadline.TIMEOUT: T + 300 + PAUSE_S}


def test_a_limit_that_was_reached_right_before_is_ignored() -> None:
    lifecycle = running(spec=LIMITED)
    feed(lifecycle, [debugger("attached", T + 10)])
    assert feed(lifecycle, [deadline(Deadline.TIMEOUT, T + 300)]) == []
    assert feed(lifecycle, [deadline(Deadline.STALL_LIMIT, T + 300)]) == []


def test_stacks_that_arrive_in_a_debugger_blame_no_task() -> None:
    lifecycle = running(spec=LIMITED)
    silent = events.DeadlineReached(
        at=T + 60, mono=T + 60, deadline=Deadline.STALL_LIMIT, quiet_s={"worker:0": 60.0, "worker:1": 60.0}
    )
    assert feed(lifecycle, [silent])
    taken = events.StacksTaken(at=T + 61, mono=T + 61, why=Deadline.STALL_LIMIT, stacks={})
    assert not teardowns(feed(lifecycle, [debugger("attached", T + 61), taken]))


def test_limits_apply_again_when_the_debugged_task_has_ended() -> None:
    lifecycle = running(spec=LIMITED)
    feed(lifecycle, [debugger("attached", T + 10), exited(1, 0, mono=T + 100)])
    assert Deadline.STALL_LIMIT in due(lifecycle)


def test_notices_say_where_to_attach_and_what_it_means() -> None:
    lifecycle = running(spec=LIMITED)
    (waits,) = notices(lifecycle, debugger("waiting", T))
    before, _, text = waits.partition(": ")
    assert before == "worker:1 waits for a debugger; in VS Code"
    configuration = json.loads(text)
    assert configuration["connect"] == {"host": "127.0.0.1", "port": 5678}
    assert (configuration["type"], configuration["request"]) == ("debugpy", "attach")
    (attached,) = notices(lifecycle, debugger("attached", T + 1))
    assert attached == "a debugger is attached to worker:1; time limits are suspended"
    assert notices(lifecycle, debugger("attached", T + 2)) == []
    (left,) = notices(lifecycle, debugger("listening", T + 3))
    assert left == "the debugger has left worker:1; time limits apply again"


def test_limits_stay_suspended_while_another_task_is_debugged() -> None:
    lifecycle = running(spec=LIMITED)
    feed(lifecycle, [debugger("attached", T), debugger("attached", T, index=0)])
    (left,) = notices(lifecycle, debugger("listening", T + 3))
    assert left == "the debugger has left worker:1; time limits are still suspended"
    assert due(lifecycle) == {}
