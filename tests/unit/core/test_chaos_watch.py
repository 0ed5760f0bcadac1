"""When planned faults fall: each once, at its moment, on a live task and on no other."""

from __future__ import annotations

import signal

import pytest
from chaos_run import Sent, WatchedRun, ended, result
from hypothesis import given
from hypothesis import strategies as st

KILL, STOP, CONT, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM


def test_step_merged_with_later_ones_is_not_missed() -> None:
    run = WatchedRun("kill worker:1 at step 20")
    run.runs()
    run.at(1).trains(1, 18)
    assert not run.sent
    run.at(2).trains(1, 23)
    assert run.sent == [Sent(2, "worker:1", KILL)]
    run.at(3).trains(1, 24)
    assert len(run.sent) == 1


def test_steps_count_over_all_epochs() -> None:
    run = WatchedRun("kill worker:1 at step 20")
    run.runs()
    run.trains(1, 12, epoch=1, steps=12)
    run.trains(1, 7, epoch=2, steps=12)
    assert not run.sent
    run.trains(1, 8, epoch=2, steps=12)
    assert run.sent == [Sent(0, "worker:1", KILL)]


def test_step_of_another_task_counts_only_for_a_silent_target() -> None:
    run = WatchedRun("kill worker:1 at step 20")
    run.runs()
    run.trains(1, 2)
    run.trains(0, 30)
    assert not run.sent
    silent = WatchedRun("kill worker:1 at step 20")
    silent.runs()
    silent.trains(0, 30)
    assert silent.sent == [Sent(0, "worker:1", KILL)]


def test_epoch_fault_is_due_at_the_start_of_its_epoch() -> None:
    run = WatchedRun("term worker:0 at epoch 2")
    run.runs()
    run.trains(0, 12, epoch=1, steps=12)
    assert not run.sent
    run.trains(0, 0, epoch=2, steps=12)
    assert run.sent == [Sent(0, "worker:0", TERM)]


def test_single_epoch_has_no_number() -> None:
    run = WatchedRun("term worker:0 at epoch 1; kill worker:0 at epoch 2")
    run.runs()
    run.trains(0, 1)
    assert run.sent == [Sent(0, "worker:0", TERM)]


def test_ready_is_when_all_are() -> None:
    run = WatchedRun("kill worker:0 at ready")
    run.planned()
    run.started()
    run.ready(0)
    assert not run.sent
    run.at(3).ready(1)
    assert run.sent == [Sent(3, "worker:0", KILL)]


def test_start_is_when_the_task_itself_has_started() -> None:
    run = WatchedRun("kill worker:1 at start")
    run.planned()
    run.at(1).started(0)
    assert not run.sent
    run.at(2).started(1)
    assert run.sent == [Sent(2, "worker:1", KILL)]


def test_time_counts_from_the_attempts_start() -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.at(2).runs()
    run.at(4.999)
    assert not run.sent
    run.at(9)
    assert run.sent == [Sent(5, "worker:1", KILL)]


def test_fault_before_the_tasks_start_waits_for_it() -> None:
    run = WatchedRun("kill worker:1 at 3s")
    run.planned()
    run.at(10).started(0)
    assert not run.sent
    run.at(11).started(1)
    assert run.sent == [Sent(11, "worker:1", KILL)]


def test_stop_is_continued_after_its_time() -> None:
    run = WatchedRun("stop worker:0 at ready for 25s")
    run.runs()
    assert run.watch.due(run.state) == run.mono + 25
    run.at(24)
    assert run.sent == [Sent(0, "worker:0", STOP)]
    run.at(60)
    assert run.sent == [Sent(0, "worker:0", STOP), Sent(25, "worker:0", CONT)]
    assert run.watch.due(run.state) is None


def test_gone_process_gets_no_sigcont() -> None:
    run = WatchedRun("stop worker:0 at ready for 25s")
    run.runs()
    run.at(5).exits(0, signal=KILL)
    run.at(60)
    assert run.sent == [Sent(0, "worker:0", STOP)]


def test_restarted_process_was_never_stopped() -> None:
    run = WatchedRun("stop worker:0 at ready for 25s")
    run.runs()
    run.at(5).exits(0, signal=KILL)
    run.at(6).starts_again(0)
    run.at(60)
    assert run.sent == [Sent(0, "worker:0", STOP)]


@pytest.mark.parametrize("end", ["exits", "stopped", "torn_down"])
def test_no_fault_is_due_on_an_ending_run(end: str) -> None:
    run = WatchedRun("kill worker:0 at 3s; stop worker:0 at step 5")
    run.runs()
    run.exits(0) if end == "exits" else getattr(run, end)()
    run.at(10)
    assert run.watch.due(run.state) is None
    assert not run.sent


def test_attempt_has_its_own_faults_and_clock() -> None:
    run = WatchedRun(
        "kill worker:0 at 3s; kill worker:1 at 4s in attempt 2; kill worker:1 at ready in attempt 3"
    )
    run.runs()
    run.at(3).exits(0, signal=KILL)
    run.torn_down()
    run.restarts(ended("worker:0"))
    run.at(20).runs(attempt=2)
    run.at(30)
    assert run.sent == [Sent(3, "worker:0", KILL), Sent(24, "worker:1", KILL)]


def test_any_selects_the_task_by_its_seed() -> None:
    hit = set()
    for seed in range(20):
        run = WatchedRun(f"kill any#{seed} at ready", workers=3)
        run.runs()
        (sent,) = run.sent
        hit.add(sent.task)
        again = WatchedRun(f"kill any#{seed} at ready", workers=3)
        again.runs()
        assert again.sent == run.sent
    assert hit == {"worker:0", "worker:1", "worker:2"}


MOMENTS = [
    "at step 3",
    "at epoch 2",
    "at 2s",
    "at ready",
    "at start",
    "at 4s in attempt 2",
    "at step 1 in attempt 2",
]
TARGETS = ["0", "1", "any#1", "any#2"]
FAULTS = st.builds(
    lambda verb, task, moment: f"{verb} {task} {moment}",
    st.sampled_from(["kill", "stop", "term", "signal USR1"]),
    st.sampled_from(TARGETS),
    st.sampled_from(MOMENTS),
) | st.builds(
    lambda task, moment: f"stop {task} {moment} for 2s",
    st.sampled_from(TARGETS),
    st.sampled_from(MOMENTS[:5]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["started", "ready", "trains", "exits", "killed", "torn", "stopped", "again", "nothing"]
        ),
        st.integers(0, 1),
        st.floats(0.0, 3.0),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(st.lists(FAULTS, min_size=1, max_size=4), STEPS)
def test_each_fault_is_sent_at_most_once_to_live_tasks(
    chaos: list[str], steps: list[tuple[str, int, float, int]]
) -> None:
    run = WatchedRun("; ".join(chaos))
    run.planned()
    attempt = 1
    for what, index, later, step in steps:
        run.at(run.now + later)
        if what == "again" and run.state.teardown is not None:
            run.restarts(ended("worker:0", attempt=attempt))
            attempt += 1
            run.planned(attempt)
        task = run.state.tasks[f"worker:{index}"]
        live = task.pid is not None and not task.phase.is_end
        before = len(run.sent)
        if what == "started" and task.pid is None:
            run.started(index)
        elif what == "ready" and live:
            run.ready(index)
        elif what == "trains" and live:
            run.trains(index, step, epoch=1 + step // 3, steps=3)
        elif what == "exits" and live:
            run.exits(index, code=step)
        elif what == "killed" and live:
            run.exits(index, signal=KILL)
        elif what == "torn":
            run.torn_down()
        elif what == "stopped":
            run.stopped()
        for sent in run.sent[before:]:
            hit = run.state.tasks[sent.task]
            assert hit.pid is not None and not hit.phase.is_end
        if run.state.teardown is not None or run.state.stop is not None:
            assert len(run.sent) == before and run.watch.due(run.state) is None
    blows = [sent for sent in run.sent if sent.signal != CONT]
    assert len(blows) <= len(chaos)
    taken_back = [sent for sent in run.sent if sent.signal == CONT]
    assert len(taken_back) <= sum("for 2s" in text for text in chaos)
    history = [ended("worker:0", attempt=number) for number in range(1, attempt)]
    reports = run.watch.reports(result(ended("worker:1", attempt=attempt), *history))
    assert len(reports) == len(chaos)
    assert sum(report.at_s is not None for report in reports) == len(blows)
    assert all(report.detection_s is None or report.detection_s >= 0 for report in reports)
