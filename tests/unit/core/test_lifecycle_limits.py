"""Time limits of tasks: --stall-timeout, --start-timeout, reported silence, and their suspension by a debugger."""

from __future__ import annotations

import json
from typing import Any

from making import AT_WORK, IN_TENSORFLOW, JOB, STOPPED, job
from story import Story, other_ends

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.lifecycle.actions import Deadline, PlanAttempt, SweepHost, TakeStacks, TearDown
from orchestrator.core.state import events
from orchestrator.core.state.events import TeardownReason

STALL = job(stall_timeout_s=5.0)
LATE = job(start_timeout_s=120.0)
LIMIT = TearDown(TeardownReason.LIMIT, JOB.failure_grace_s)
AT_STALL, AT_START = TakeStacks(Deadline.STALL_LIMIT), TakeStacks(Deadline.START_LIMIT)
LATE_0 = "timed_out 124: limit worker:0"
STALLED_1, STOPPED_1, LATE_1 = (f"timed_out 124: {kind} worker:1" for kind in ("stalled", "stopped", "limit"))


def stall(**fields: Any) -> Story:
    """A run that may be silent for 5 s."""
    return Story(job(stall_timeout_s=5.0, **fields)).ready().fresh()


def late(*ready: int, workers: int = 2) -> Story:
    """A run that may start for 120 s, in which only these tasks get ready, at 3 s."""
    story = Story(job(workers=workers, start_timeout_s=120.0)).starts().at(3)
    return (story.ready(*ready) if ready else story).fresh()


# -- --stall-timeout


def test_silent_task_is_blamed_with_all_stacks() -> None:
    story = stall()
    assert story.due == (5, Deadline.STALL_LIMIT)
    assert story.at(4.9).writes(0).at(5).ordered() == [AT_STALL]
    assert story.due is None  # until the stacks have arrived
    assert story.at(6).stacks(AT_WORK, STOPPED).ordered() == [LIMIT]
    assert (story.end(), story.ends()) == (STOPPED_1, ["stopped by orch"] * 2)
    assert story.result().stacks == {"worker:0": AT_WORK, "worker:1": STOPPED}


def test_task_that_is_blamed_for_a_silence() -> None:
    """A stopped task explains the silence of all others; one in TensorFlow may wait for them."""
    both = (AT_WORK, AT_WORK)
    continued = stall(workers=3, on_failure=FailurePolicy.CONTINUE).exits(2, code=5).at(4).writes(2).at(5)
    idle = stall().at(4).busy(1).writes(0).at(5).stacks(*both).busy().at(9).writes(0).at(10)
    waits = stall().at(4).writes(0).at(5).stacks(AT_WORK, IN_TENSORFLOW)
    assert waits.due == (9, Deadline.STALL_LIMIT)  # when the other one reaches the limit
    waits.at(8).writes(0).at(10)
    fewer = stall().at(1).trains(0, 3).trains(1, 20).at(5.5).writes(0).at(6)
    long = stall().busy(0, 1).at(5).stacks(*both).at(10).stacks(*both).at(15)
    rows = {
        # It was busy in the last sample before it was stopped, and wrote last.
        "stopped": (stall().busy(0, 1).at(4.5).writes(1).at(5).stacks(AT_WORK, STOPPED), STOPPED_1),
        "stopped, and all are busy": (stall().busy(0, 1).at(5).stacks(AT_WORK, STOPPED), STOPPED_1),
        "busy, and then idle": (idle.stacks(*both), STALLED_1),
        "outside TensorFlow": (waits.stacks(IN_TENSORFLOW, AT_WORK), STALLED_1),
        "busy for thrice the limit": (long.stacks(AT_WORK, IN_TENSORFLOW), "timed_out 124: stalled worker:0"),
        "fewer steps": (fewer.stacks(*both), STALLED_1),
        # The output of an ended task is not a sign of life.
        "the end of another": (continued.stacks(AT_WORK, STOPPED), STOPPED_1),
    }
    assert other_ends(rows) == {}
    assert rows["fewer steps"][0].cause.text.endswith("; in load_data (train.py:31)")
    looks = [sum(order == AT_STALL for order in row[0].orders) for row in rows.values()]
    assert looks == [1, 1, 2, 2, 3, 1, 1]


def test_signs_of_life() -> None:
    story = stall().at(4).trains(1, 3).writes(0).at(5)
    assert story.ordered() == []
    assert story.due is not None and 5 < story.due[0] <= 10
    # The limit applies from the moment a task is ready until it ends.
    story = Story(STALL).starts().at(60).fresh()
    assert story.reaches(Deadline.STALL_LIMIT).ordered() == []
    assert story.at(100).ready(0).at(101).ready(1).due == (105, Deadline.STALL_LIMIT)
    assert story.exits(0).due == (106, Deadline.STALL_LIMIT)


def test_stacks_that_blame_no_task() -> None:
    failed = stall().at(5).exits(1, code=3).stacks(AT_WORK)
    user = stall().stacks(None, STOPPED, why="user")
    assert user.ordered() == [] and user.exits(0, 1).result().stacks == {}
    silent = stall().at(5).stacks()
    debugged_1 = debugger(debugged().at(60), "attached").stacks(AT_WORK, AT_WORK)
    assert (silent.ordered(), debugged_1.ordered()) == ([AT_STALL, SweepHost()], [AT_STALL])
    assert "agent does not answer" in silent.cause.text
    ends = [story.end() for story in (failed, user, silent)]
    assert ends == ["failed 3: exited worker:1", "succeeded 0", "failed 125: orch"]


def test_stall_is_restarted_like_a_failure() -> None:
    story = stall(on_failure=FailurePolicy.RESTART).trains(0, 20).at(5).stacks(AT_WORK, STOPPED).torn_down()
    assert story.at(6).ordered()[-1] == PlanAttempt(2)
    result = story.ready().exits(0, 1).result()
    assert (result.exit_code, result.stacks, result.earlier_attempts[0].exit_code) == (0, {}, 124)


# -- --start-timeout


def test_task_that_is_blamed_for_a_late_start() -> None:
    server, text = "localhost:12345", "not joined after 2m (--start-timeout)"
    never = late(0, 2, workers=3).at(124).stacks(None, AT_WORK)
    own = late(workers=3).reports(0, "waiting", server=server).at(4).reports(1, "waiting", server=server)
    own.reports(2, "waiting", server=server)
    other = late().reports(0, "waiting", server=server)
    gone = late().exits(1).ready(0).reports(0, "waiting", server="127.0.0.1:20000")
    hand = late(0).happens(events.SignalRequested, task=1, signal=19, by="user")
    joining = late(0, 1).reports(0, "waiting").reports(1, "waiting")
    rows: dict[str, tuple[Story, str]] = {
        "never ready": (never, LATE_1),
        "without a stack": (late(0).at(123).stacks(AT_WORK), LATE_1),
        "all wait elsewhere": (own.at(123).stacks(AT_WORK, AT_WORK, AT_WORK), LATE_0),
        "one waits elsewhere": (other.at(123).stacks(AT_WORK, AT_WORK), LATE_1),
        "one waits for an ended task": (gone.at(123).stacks(AT_WORK), LATE_0),
        "stopped by hand": (hand.at(123).stacks(AT_WORK, STOPPED), STOPPED_1),
        "stopped while others wait for it": (joining.at(123).stacks(AT_WORK, STOPPED), STOPPED_1),
    }
    assert other_ends(rows) == {}
    assert all([*row[0].orders].count(AT_START) == 1 for row in rows.values())
    texts = {name: row[0].cause.text for name, row in rows.items()}
    assert texts["never ready"] == (
        "not ready 2m (--start-timeout) after the first task was (starting, 2m4s; in train.py:31 load_data)"
    )
    assert texts["all wait elsewhere"] == (
        f"{text}: it, worker:1 and worker:2 wait for the others at localhost:12345,"
        " not at its own address 127.0.0.1:20000 (its script does not use orch's TF_CONFIG)"
    )
    missing = "; worker:0 waits for it at localhost:12345, not at its own address 127.0.0.1:20000"
    assert "; in train.py:31 load_data)" in texts["one waits elsewhere"]
    assert missing in texts["one waits elsewhere"]
    assert texts["one waits for an ended task"] == (
        f"{text}: it waits for the others at 127.0.0.1:20000; worker:1 ended before"
    )
    assert texts["stopped by hand"].endswith("; stopped by SIGSTOP, sent by `orch kill`)")


def test_start_limit_lasts_from_the_first_ready_task_until_all_have_joined() -> None:
    elsewhere = {"server": "localhost:12345"}
    story = late()
    assert story.due is None
    assert story.at(9999).reaches(Deadline.START_LIMIT).ordered() == []
    # Or with a server of a cluster at another address.
    assert late().reports(0, "serving", cluster=2, **elsewhere).due == (123, Deadline.START_LIMIT)
    trains = late().reports(0, "waiting", **elsewhere).reports(1, "waiting", **elsewhere)
    trains.reports(0, "training", **elsewhere).reports(1, "training", **elsewhere)
    assert (late(0, 1).due, trains.due) == (None, None)
    without_port = late(0).trains(1, 3).due
    assert without_port is None or without_port[1] != Deadline.START_LIMIT
    # Stacks are taken once when both limits are reached.
    story = Story(job(stall_timeout_s=5.0, start_timeout_s=5.0)).starts().ready(0).fresh()
    assert story.at(5).reaches(Deadline.START_LIMIT).ordered() == [AT_STALL]
    assert story.stacks(AT_WORK).end() == "timed_out 124: stalled worker:0"
    # Even while the stacks are taken.
    in_time = late(0).at(123).ready(1).stacks(None, AT_WORK)
    assert (in_time.ordered(), in_time.due) == ([AT_START], None)
    # The delay before a restart does not count.
    spec = job(on_failure=FailurePolicy.RESTART_TASK, start_timeout_s=0.5)
    story = Story(spec).ready().trains(0, 20).exits(1, signal=9)
    assert story.due == (1, Deadline.TASK_RESTART)
    assert story.at(1).starts(1).due == (1.5, Deadline.START_LIMIT)
    waiting = Story(spec).ready().reports(0, "waiting").trains(1, 1).exits(1, code=3)
    assert waiting.due == (1, Deadline.TASK_RESTART)


# -- silence without a limit


def watched() -> Story:
    """A run without --stall-timeout, whose tasks are silent and idle after 300 s."""
    return Story(job(silence_notice_s=300.0)).ready()


def test_silent_and_idle_task_is_reported_and_not_ended() -> None:
    story = watched()
    assert story.due == (300, Deadline.SILENCE)
    assert story.at(299).writes(0).fresh().at(300).ordered() == [TakeStacks(Deadline.SILENCE)]
    story.stacks(IN_TENSORFLOW, AT_WORK)
    assert story.notices == ("worker:1 has been silent and idle for 5m: in load_data (train.py:31)",)
    # Once, until it writes again.
    assert story.at(590).writes(0).at(600).ordered() == []
    assert story.at(899).writes(0, 1).at(900).ordered() == []
    story.at(1199).writes(0).at(1200).stacks(IN_TENSORFLOW, AT_WORK)
    assert len(story.notices) == 2


def test_only_the_task_that_blocks_others_is_reported_as_silent() -> None:
    silent = "worker:1 has been silent and idle for 5m: "
    blocks = f"{silent}in load_data (train.py:31), while the other one waits in TensorFlow"
    waits, all_silent = watched().at(299).writes(0).at(300), watched().at(300)
    rows: dict[str, tuple[Story, tuple[str, ...]]] = {
        "it waits in TensorFlow for others": (waits.stacks(AT_WORK, IN_TENSORFLOW), ()),
        "all are silent": (all_silent.stacks(IN_TENSORFLOW, AT_WORK), (blocks,)),
        "stopped": (watched().at(300).stacks(IN_TENSORFLOW, STOPPED), (f"{silent}stopped by SIGSTOP",)),
        "output": (watched().at(299).writes(0, 1).at(300), ()),
        "work": (watched().busy(0, 1).at(700), ()),
        "progress": (watched().at(299).trains(0, 1).trains(1, 1).at(300), ()),
    }
    wrong = {name: story.notices for name, (story, notices) in rows.items() if story.notices != notices}
    assert not wrong, wrong
    assert not any(isinstance(order, TearDown) for story, _ in rows.values() for order in story.orders)
    hangs = Story(job(workers=1, silence_notice_s=300.0)).starts().at(300).stacks(AT_WORK)
    assert len(hangs.notices) == 1


def test_silence_is_not_watched_with_a_stall_limit() -> None:
    story = stall(silence_notice_s=1.0)
    assert story.due == (5, Deadline.STALL_LIMIT)
    assert story.at(1).reaches(Deadline.SILENCE).ordered() == []
    assert JobSpec.model_fields["silence_notice_s"].default == 300.0


# -- a debugger suspends the limits


def debugged(state: str | None = None, **fields: Any) -> Story:
    """A run with limits, in which a debugger in worker:1 reports this at 10 s."""
    story = Story(job(**{"timeout_s": 300.0, "stall_timeout_s": 60.0} | fields)).ready().fresh()
    return story.at(10) if state is None else debugger(story.at(10), state)


def debugger(story: Story, state: str, task: int = 1) -> Story:
    return story.reports(task, debugger={"state": state, "port": 5678})


def test_debugger_that_is_used_suspends_all_limits() -> None:
    wait = {"debug": (TaskRef(type="worker", index=1),)}
    both = debugger(debugger(debugged("attached"), "attached", 0), "listening")
    suspended = [debugged("waiting"), debugged("attached"), debugged(**wait), both]
    assert [story.due for story in suspended] == [None] * 4
    unused = [debugged("listening"), debugged(**wait, debug_no_wait=True)]
    assert [story.due for story in unused] == [(60, Deadline.STALL_LIMIT)] * 2
    assert both.notices[-1] == "the debugger has left worker:1; time limits are still suspended"
    story = debugged("attached").at(300)
    # Reached right before the debugger came.
    assert story.reaches(Deadline.TIMEOUT).reaches(Deadline.STALL_LIMIT).ordered() == []
    assert story.exits(1).due == (360, Deadline.STALL_LIMIT)


def test_time_in_a_debugger_does_not_count() -> None:
    assert debugger(debugged("attached").at(190), "listening").due == (250, Deadline.STALL_LIMIT)
    story = debugger(debugged("attached", stall_timeout_s=None).at(190), "listening")
    assert story.due == (480, Deadline.TIMEOUT)
    assert story.at(480).end() == "timed_out 124: limit"


def test_notices_say_where_to_attach_and_what_it_means() -> None:
    story = debugged("waiting")
    before, _, text = story.notices[0].partition(": ")
    assert before == "worker:1 waits for a debugger; in VS Code"
    configuration = json.loads(text)
    assert configuration["connect"] == {"host": "127.0.0.1", "port": 5678}
    assert (configuration["type"], configuration["request"]) == ("debugpy", "attach")
    debugger(debugger(debugger(story, "attached"), "attached"), "listening")
    assert story.notices[1:] == (
        "a debugger is attached to worker:1; time limits are suspended",
        "the debugger has left worker:1; time limits apply again",
    )
