"""Attempts on the screen: why one ended, the countdown to the next, where it resumed, and the report's history."""

from __future__ import annotations

import pytest
from moments import exited, moment, planned, progressed, running

from orchestrator.client.view.messages import (
    attempt_text,
    due_text,
    end_text,
    event_message,
    history_text,
    most_attempts,
    resumed_text,
)
from orchestrator.client.view.plain import AttemptMarks
from orchestrator.client.view.report import end_lines
from orchestrator.client.view.status_document import RunStatus, Status, seconds_until, task_statuses
from orchestrator.client.view.tables import Moment, RunRow, footer_lines, run_lines, status_lines
from orchestrator.core.state.events import (
    AttemptPlanned,
    Event,
    Progress,
    RestartPlanned,
    Resumed,
    RunEndedEvent,
    StopReason,
    StopRequested,
    TaskRestartPlanned,
    TaskStarted,
    TeardownBegan,
    TeardownReason,
)
from orchestrator.core.state.fold import apply
from orchestrator.core.state.result import AttemptEnd, Cause, CauseKind, FirstFailure, RunResult
from orchestrator.core.state.state import RunState
from orchestrator.store.logs.lines import Block

KILLED = AttemptEnd(
    attempt=1,
    cause=Cause(task="worker:1", kind=CauseKind.EXITED, text="SIGKILL"),
    first_failure=FirstFailure(
        task="worker:1", exit_code=None, signal=9, exception=None, log="/logs/worker-1.log", advice=None
    ),
    exit_code=137,
    position=115,
)
ASKED = AttemptEnd(attempt=1, cause=None, first_failure=None, exit_code=0)
RESUMED = Resumed(at=0, mono=30, attempt=2, position=96, steps_lost=19, recovery_s=8.25)


def between(ended: AttemptEnd = KILLED, *more: Event) -> RunState:
    """Attempt 1 ended in second 20; the next starts 2 s later."""
    over: list[Event] = [
        exited("worker:1", None, 9),
        TeardownBegan(at=0, mono=18, reason=TeardownReason.FAILURE, grace_s=0.5),
        exited("worker:0", None, 15),
        RestartPlanned(at=0, mono=20, ended=ended, delay_s=2),
    ]
    return running(2, *over, *more)


def second_attempt(*more: Event) -> RunState:
    begun: list[Event] = [
        AttemptPlanned(at=0, mono=22, attempt=2, tasks=(planned("worker:0"), planned("worker:1"))),
        TaskStarted(at=0, mono=22, task="worker:0", pid=7, start_ticks=1),
    ]
    return between(KILLED, *begun, *more)


def head(state: RunState, now: float, most: int | None = 4) -> str:
    at = Moment(name="digits", state=state, now=now, started=10.0, hint="^C stops", most_attempts=most)
    return footer_lines(at, 120, 24, colour=False)[0]


def status_of(state: RunState, now: float, most: int | None = 4) -> list[str]:
    run = RunStatus(
        id="digits-1",
        name="digits",
        state=state.phase,
        attempt=state.attempt,
        started_at=0.0,
        uptime_s=now - 10,
        dir="/runs/digits-1",
        directory="/work",
        checkpoint_dir="/c",
        exit_code=None,
        restart_in_s=seconds_until(state.restart_due_mono, now),
        most_attempts=most,
        history=state.history,
    )
    return status_lines(Status(run=run, tasks=task_statuses(state, {}, now)), None, colour=False)


def test_countdown_between_attempts() -> None:
    state = between()
    assert head(state, 20.0) == "digits  attempt 2 of 4 in 2s  10s  ^C stops"
    assert head(state, 21.5) == "digits  attempt 2 of 4 in 1s  11s  ^C stops"
    assert head(state, 23.0, None) == "digits  attempt 2 now  13s  ^C stops"
    assert status_of(state, 20.5)[0] == "digits-1  attempt 2 of 4 in 2s  10s"


def test_stop_between_attempts_replaces_countdown() -> None:
    stopping = between(
        KILLED,
        StopRequested(at=0, mono=21, reason=StopReason.INTERRUPT),
        TeardownBegan(at=0, mono=21, reason=TeardownReason.REQUEST, grace_s=10),
    )
    assert head(stopping, 21.0).startswith("digits  stopping")
    assert "stopping" in status_of(stopping, 21.0)[0]
    ended = apply(stopping, RunEndedEvent(at=0, mono=21, outcome="stopped", exit_code=130))
    assert head(ended, 30.0).startswith("digits  stopped  11s")


def test_next_attempt_has_number_and_resumed_step() -> None:
    assert head(second_attempt(), 25.0) == "digits  starting (0 of 2 ready)  15s  attempt 2 of 4  ^C stops"
    resumed = second_attempt(progressed("worker:0", Progress(epoch=3, step=1, steps=48)), RESUMED)
    tail = "attempt 2 of 4  ^C stops  resumed at step 96 (19 lost)"
    assert head(resumed, 31.0).endswith(tail)
    assert status_of(resumed, 31.0)[0].endswith("attempt 2 of 4  resumed at step 96 (19 lost)")


def test_restart_of_single_task_counts_down_in_its_row() -> None:
    again = TaskRestartPlanned(at=0, mono=20, task="worker:1", delay_s=4, text="SIGKILL")
    state = running(2, exited("worker:1", None, 9), again)
    assert "restarts in 3s" in footer_lines(moment(state, 21.0), 120, 24, colour=False)[3]
    assert "restarts in 3s" in status_of(state, 21.0)[-1]
    begun = apply(state, TaskStarted(at=0, mono=24, task="worker:1", pid=8, start_ticks=1))
    assert "restarts in" not in footer_lines(moment(begun, 25.0), 120, 24, colour=False)[3]
    assert "restarts in" not in status_of(begun, 25.0)[-1]


def test_messages_of_restart_events() -> None:
    planned_restart = RestartPlanned(at=0, mono=20, ended=KILLED, delay_s=2)
    assert event_message(planned_restart, 4) == "worker:1: SIGKILL; attempt 2 of 4 in 2.0s"
    asked = RestartPlanned(at=0, mono=20, ended=ASKED, delay_s=0)
    assert event_message(asked, None) == "restarted on request; attempt 2 now"
    assert event_message(RESUMED, 4) == "attempt 2 resumed at step 96 (19 lost), 8.2s later"
    unknown = RESUMED.model_copy(update={"position": None, "steps_lost": None})
    assert event_message(unknown, 4) == "attempt 2 is training again, 8.2s later"
    again = TaskRestartPlanned(at=0, mono=20, task="ps:0", delay_s=1, text="exit 1\x1b[2J")
    assert event_message(again, 4) == "ps:0: exit 1; restarting this task in 1.0s"
    assert event_message(exited("worker:0", 0), 4) is None


@pytest.mark.parametrize(
    ("position", "lost", "exact", "text"),
    [
        (96, 19, True, "resumed at step 96 (19 lost)"),
        (1234567, 0, True, "resumed at step 1,234,567 (none lost)"),
        (96, None, True, "resumed at step 96"),
        (0, 115, True, "started from step 0 (115 steps lost)"),
        (0, 1, True, "started from step 0 (1 step lost)"),
        (0, None, False, "started from step 0"),
        (None, None, True, ""),
        (96, 19, False, "resumed at step 96 (at least 19 lost)"),
        (96, 0, False, "resumed at step 96 (lost steps unknown)"),
        (0, 115, False, "started from step 0 (at least 115 steps lost)"),
    ],
)
def test_resumed_text(position: int | None, lost: int | None, exact: bool, text: str) -> None:
    assert resumed_text(position, lost, exact) == text


def test_attempt_limit_counts_restarts_after_failures_only() -> None:
    assert [attempt_text(number, 3) for number in (2, 3, 4)] == [
        "attempt 2 of 3",
        "attempt 3 of 3",
        "attempt 4",
    ]
    restart = {"on_failure": "restart", "max_restarts": 3}
    assert most_attempts(restart, ()) == most_attempts(restart, (KILLED, KILLED)) == 4
    assert most_attempts(restart, (KILLED, ASKED)) == 5
    assert most_attempts({"on_failure": "abort", "max_restarts": 3}, ()) is None
    assert most_attempts({}, ()) is None
    assert [due_text(seconds) for seconds in (4.0, 0.8, 0.0, -4.0)] == ["in 4s", "in 1s", "now", "now"]


def test_attempt_end_is_cause_or_first_failure() -> None:
    assert end_text(KILLED) == "worker:1: SIGKILL"
    assert end_text(KILLED.model_copy(update={"cause": None})) == "worker:1: SIGKILL"
    limit = Cause(task=None, kind=CauseKind.LIMIT, text="two\nlines")
    assert end_text(KILLED.model_copy(update={"cause": limit})) == "two lines"
    assert end_text(ASKED) == "restarted on request"


def result(history: tuple[AttemptEnd, ...], **more: object) -> RunResult:
    return RunResult(
        run_id="digits-1",
        outcome="succeeded",
        exit_code=0,
        attempts=len(history) + 1,
        cause=None,
        first_failure=None,
        detection_s=None,
        teardown_s=None,
        tasks=(),
        took_s=41.0,
        history=history,
    ).model_copy(update=more)


def test_report_has_one_line_per_attempt() -> None:
    first = KILLED.model_copy(update={"resumed_at": 96, "steps_lost": 19, "recovery_s": 8.25})
    second = ASKED.model_copy(update={"attempt": 2, "position": 200})
    assert end_lines(result((first, second)), None, colour=False) == [
        "orch: digits-1 succeeded after 41s in 3 attempts",
        "  attempt        1, at step 115: worker:1: SIGKILL; attempt 2 resumed at step 96 (19 lost), 8.2s later",
        "  attempt        2, at step 200: restarted on request",
    ]


def test_report_shows_last_attempts_of_many() -> None:
    history = tuple(KILLED.model_copy(update={"attempt": number}) for number in range(1, 101))
    lines = end_lines(result(history), None, colour=False)
    assert lines[1] == "  attempts       92 before these"
    assert [line.split(",")[0].split()[-1] for line in lines[2:]] == [str(n) for n in range(93, 101)]


def test_reason_for_no_restart_precedes_cause() -> None:
    cause = Cause(task="worker:0", kind=CauseKind.EXITED, text="exit 1")
    lines = end_lines(
        result((), outcome="failed", cause=cause, not_restarted="it failed"), None, colour=False
    )
    assert lines[-2:] == ["  not restarted  it failed", "orch: worker:0 failed: exit 1"]
    assert history_text(ASKED) == "1: restarted on request"


def test_ls_shows_attempts_if_more_than_one() -> None:
    row = RunRow("digits-1", "digits", "failed", 2, 9.0, 3.0, 2_000_000, "/work")
    again = RunRow("digits-2", "digits", "running", 2, 9.0, 3.0, 2_000_000, "/work", attempts=3)
    assert "ATTEMPTS" not in run_lines([row], None, colour=False)[0]
    lines = run_lines([row, again], None, colour=False)
    at = lines[0].split().index("ATTEMPTS")
    assert lines[2].split()[at] == "3"


def block(attempt: int, text: bytes = b"x\n") -> Block:
    return Block("worker:0", attempt, 0.0, text)


def test_log_is_split_where_new_attempt_starts() -> None:
    marks = AttemptMarks()
    one, two, three = block(1), block(2), block(3)
    assert [*marks.split([one, one])] == [(None, [one, one])]
    assert [*marks.split([])] == [(None, [])]
    assert [*marks.split([one, two, one, two])] == [(None, [one]), (2, [two, one, two])]
    assert [*marks.split([two, three])] == [(None, [two]), (3, [three])]
    assert [*AttemptMarks().split([two])] == [(None, [two])]


@pytest.mark.parametrize(
    ("workers", "batches", "line"),
    [
        ([4, 3, 4], [96, 96, 96], "4 -> 3 -> 4; global batch 96 kept"),
        ([4, 3, 3], [128, 96, 96], "4 -> 3; global batch 128 -> 96"),
        ([4, 3], [None, None], "4 -> 3; the program does not report its global batch"),
        ([4, 3, 4], [96, 0, 96], "4 -> 3 -> 4; global batch 96 kept"),  # attempt 2 did no step
        ([4, 4], [96, 64], None),
        ([None, 4], [None, None], None),  # an older file
        (
            [*(range(1, 13))],
            [12] * 12,
            "... -> 5 -> 6 -> 7 -> 8 -> 9 -> 10 -> 11 -> 12; global batch 12 kept",
        ),
    ],
)
def test_report_says_what_became_of_the_workers_and_the_batch(
    workers: list[int | None], batches: list[int | None], line: str | None
) -> None:
    *ends, (last, batch) = zip(workers, batches, strict=True)
    history = [
        ASKED.model_copy(update={"workers": w, "global_batch": b or None, "position": None if b == 0 else 8})
        for w, b in ends
    ]
    result = RunResult(
        run_id="r", outcome="succeeded", exit_code=0, attempts=len(workers), cause=None, first_failure=None,
        detection_s=None, teardown_s=None, tasks=(), history=tuple(history), workers=last, global_batch=batch,
    )  # fmt: skip
    found = [text for text in end_lines(result, None, colour=False) if text.startswith("  workers ")]
    assert found == ([] if line is None else [f"  workers        {line}"])
