"""Attempts on the screen: why one ended, the countdown to the next, where it resumed, and the report's history."""

from __future__ import annotations

from typing import Any

from making import attempt_end, attempt_planned, cause, event, exited, first_failure, run_result, started
from moments import footer, moment, progressed, report, running, status

from orchestrator.client.view import messages
from orchestrator.client.view.plain import AttemptMarks
from orchestrator.client.view.status_document import seconds_until
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import AttemptEnd, CauseKind
from orchestrator.core.state.state import RunState
from orchestrator.store.logs.lines import Block

KILLED = attempt_end(1, 137, cause=cause(1, "SIGKILL"), first_failure=first_failure(signal=9), position=115)
ASKED = attempt_end(code=0)
RESUMED = event(events.Resumed, 30, attempt=2, position=96, steps_lost=19, recovery_s=8.25)


def changed(end: AttemptEnd, **fields: Any) -> AttemptEnd:
    return end.model_copy(update=fields)


def between(*more: Event) -> RunState:
    """Attempt 1 ended in second 20; the next starts 2 s later."""
    over: list[Event] = [
        exited(1, signal=9),
        event(events.TeardownBegan, 18, reason=events.TeardownReason.FAILURE, grace_s=0.5),
        exited(0, signal=15),
        event(events.RestartPlanned, 20, ended=KILLED, delay_s=2),
    ]
    return running(2, *over, *more)


def second_attempt(*more: Event) -> RunState:
    return between(attempt_planned(2, number=2, mono=22), started(0, 22), *more)


def head(state: RunState, now: float, most: int | None = 4) -> str:
    return footer(moment(state, now, "^C stops", most_attempts=most))[0]


def status_of(state: RunState, now: float) -> list[str]:
    due = seconds_until(state.restart_due_mono, now)
    return status(state, now, restart_in_s=due, most_attempts=4, history=state.history)


def test_head_between_attempts_and_in_the_next_one() -> None:
    stopping = between(
        event(events.StopRequested, 21, reason=events.StopReason.INTERRUPT),
        event(events.TeardownBegan, 21, reason=events.TeardownReason.REQUEST, grace_s=10),
    )
    ended = apply(stopping, event(events.RunEndedEvent, 21, outcome="stopped", exit_code=130))
    resumed = second_attempt(progressed(0, Progress(epoch=3, step=1, steps=48)), RESUMED)
    counts, again, at_96 = "digits  attempt 2 of 4 in", "attempt 2 of 4", "resumed at step 96 (19 lost)"
    rows: list[tuple[RunState, float, str]] = [
        (between(), 20.0, f"{counts} 2s  10s  ^C stops"),
        (between(), 21.5, f"{counts} 1s  11s  ^C stops"),
        (stopping, 21.0, "digits  stopping  11s  ^C stops"),
        (ended, 30.0, "digits  stopped  11s  ^C stops"),
        (second_attempt(), 25.0, f"digits  starting (0 of 2 ready)  15s  {again}  ^C stops"),
        (resumed, 31.0, f"digits  starting (0 of 2 ready)  21s  {again}  ^C stops  {at_96}"),
    ]
    assert [head(state, now) for state, now, _ in rows] == [shown for *_, shown in rows]
    assert head(between(), 23.0, None) == "digits  attempt 2 now  13s  ^C stops"
    assert status_of(between(), 20.5)[0] == "digits-1  attempt 2 of 4 in 2s  10s"
    assert "stopping" in status_of(stopping, 21.0)[0]
    assert status_of(resumed, 31.0)[0].endswith(f"{again}  {at_96}")


def test_restart_of_single_task_counts_down_in_its_row() -> None:
    again = event(events.TaskRestartPlanned, 20, task=1, delay_s=4, text="SIGKILL")
    state = running(2, exited(1, signal=9), again)
    begun = apply(state, started(1, 24))
    for shown, now, counts in ((state, 21.0, True), (begun, 25.0, False)):
        for row in (footer(moment(shown, now))[3], status_of(shown, now)[-1]):
            assert ("restarts in 3s" in row) == counts and ("restarts in" in row) == counts


def test_messages_of_restart_events() -> None:
    again = event(events.TaskRestartPlanned, task="ps:0", delay_s=1, text="exit 1\x1b[2J")
    unknown = RESUMED.model_copy(update={"position": None, "steps_lost": None})
    rows = {
        "worker:1: SIGKILL; attempt 2 of 4 in 2.0s": event(events.RestartPlanned, ended=KILLED, delay_s=2),
        "attempt 2 resumed at step 96 (19 lost), 8.2s later": RESUMED,
        "attempt 2 is training again, 8.2s later": unknown,
        "ps:0: exit 1; restarting this task in 1.0s": again,
    }
    assert [messages.event_message(told, 4) for told in rows.values()] == [*rows]
    asked = event(events.RestartPlanned, ended=ASKED, delay_s=0)
    assert messages.event_message(asked, None) == "restarted on request; attempt 2 now"


def test_resumed_text() -> None:
    """By the step, the lost steps, and whether these are exact."""
    rows = {
        (96, 19, True): "resumed at step 96 (19 lost)",
        (1234567, 0, True): "resumed at step 1,234,567 (none lost)",
        (96, None, True): "resumed at step 96",
        (0, 115, True): "started from step 0 (115 steps lost)",
        (0, 1, True): "started from step 0 (1 step lost)",
        (0, None, False): "started from step 0",
        (None, None, True): "",
        (96, 19, False): "resumed at step 96 (at least 19 lost)",
        (96, 0, False): "resumed at step 96 (lost steps unknown)",
        (0, 115, False): "started from step 0 (at least 115 steps lost)",
    }
    assert {facts: messages.resumed_text(*facts) for facts in rows} == rows


def test_attempt_limit_counts_restarts_after_failures_only() -> None:
    shown = ["attempt 2 of 3", "attempt 3 of 3", "attempt 4"]
    assert [messages.attempt_text(number, 3) for number in (2, 3, 4)] == shown
    restart, abort = ({"on_failure": policy, "max_restarts": 3} for policy in ("restart", "abort"))
    rows = [(restart, (), 4), (restart, (KILLED, KILLED), 4), (restart, (KILLED, ASKED), 5)]
    assert [messages.most_attempts(spec, history) for spec, history, _ in rows] == [most for *_, most in rows]
    assert messages.most_attempts(abort, ()) is None and messages.most_attempts({}, ()) is None
    assert [messages.due_text(seconds) for seconds in (4.0, 0.8, 0.0, -4.0)] == [
        "in 4s",
        "in 1s",
        "now",
        "now",
    ]


def test_attempt_end_is_cause_or_first_failure() -> None:
    limit = changed(KILLED, cause=cause(None, "two\nlines", CauseKind.LIMIT))
    texts = [messages.end_text(end) for end in (KILLED, changed(KILLED, cause=None), limit, ASKED)]
    assert texts == ["worker:1: SIGKILL"] * 2 + ["two lines", "restarted on request"]
    assert messages.history_text(ASKED) == "1: restarted on request"


def test_report_has_one_line_for_each_of_the_last_attempts() -> None:
    first = changed(KILLED, resumed_at=96, steps_lost=19, recovery_s=8.25)
    second = changed(ASKED, attempt=2, position=200)
    assert report(run_result(history=(first, second), took_s=41.0)) == [
        "orch: run-1 succeeded after 41s in 3 attempts",
        "  attempt        1, at step 115: worker:1: SIGKILL; attempt 2 resumed at step 96 (19 lost), 8.2s later",
        "  attempt        2, at step 200: restarted on request",
    ]
    lines = report(run_result(history=[changed(KILLED, attempt=number) for number in range(1, 101)]))
    assert lines[1] == "  attempts       92 before these"
    assert [line.split(",")[0].split()[-1] for line in lines[2:]] == [str(n) for n in range(93, 101)]


def test_report_says_what_became_of_the_workers_and_the_batch() -> None:
    """A batch of 0: the attempt did no step. None: an older file, or a program that does not report it."""
    rows: list[tuple[list[int | None], list[int | None], list[str]]] = [
        ([4, 3, 4], [96, 96, 96], ["4 -> 3 -> 4; global batch 96 kept"]),
        ([4, 3, 3], [128, 96, 96], ["4 -> 3; global batch 128 -> 96"]),
        ([4, 3], [None, None], ["4 -> 3; the program does not report its global batch"]),
        ([4, 3, 4], [96, 0, 96], ["4 -> 3 -> 4; global batch 96 kept"]),
        ([4, 4], [96, 64], []),
        ([None, 4], [None, None], []),
        ([*range(1, 10)], [12] * 9, ["... -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> 8 -> 9; global batch 12 kept"]),
    ]
    for workers, batches, shown in rows:
        history = [
            changed(ASKED, workers=count, global_batch=batch or None, position=None if batch == 0 else 8)
            for count, batch in zip(workers, batches, strict=True)
        ]
        lines = report(run_result(history=history[:-1], workers=workers[-1], global_batch=batches[-1]))
        assert [line[17:] for line in lines if line.startswith("  workers ")] == shown, workers


def test_log_is_split_where_new_attempt_starts() -> None:
    marks = AttemptMarks()
    one, two, three = (Block("worker:0", attempt, 0.0, b"x\n") for attempt in (1, 2, 3))
    assert [*marks.split([one, one])] == [(None, [one, one])]
    assert [*marks.split([])] == [(None, [])]
    assert [*marks.split([one, two, one, two])] == [(None, [one]), (2, [two, one, two])]
    assert [*marks.split([two, three])] == [(None, [two]), (3, [three])]
    assert [*AttemptMarks().split([two])] == [(None, [two])]
