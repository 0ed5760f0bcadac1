"""Planned faults: when each is sent, to which live task, and what the report says about its effect."""

from __future__ import annotations

import signal

from chaos_run import Sent, WatchedRun, ended, result
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.state.events import Symptom, SymptomKind, TeardownReason
from orchestrator.core.state.result import CauseKind, FaultReport, RunResult

KILL, STOP, CONT, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
Seconds = tuple[float | None, ...]


def watched(chaos: str, workers: int = 2) -> WatchedRun:
    return WatchedRun(chaos, workers)


def test_faults_are_sent_once_at_their_moment() -> None:
    kill_at_20, kill_at_3s = "kill worker:1 at step 20", "kill worker:1 at 3s"
    stop = "stop worker:0 at ready for 25s"
    attempts = "kill worker:0 at 3s; kill worker:1 at 4s in attempt 2; kill worker:1 at ready in attempt 3"
    rows: dict[str, tuple[WatchedRun, list[Sent]]] = {
        "a step merged with later ones is not missed": (
            watched(kill_at_20).runs().at(1).trains(1, 18).at(2).trains(1, 23).at(3).trains(1, 24),
            [Sent(2, "worker:1", KILL)],
        ),
        "steps count over all epochs": (
            watched(kill_at_20).runs().trains(1, 12, 1, 12).at(1).trains(1, 7, 2, 12).at(2).trains(1, 8, 2, 12),
            [Sent(2, "worker:1", KILL)],
        ),
        "the step of another task does not count": (
            watched(kill_at_20).runs().trains(1, 2).trains(0, 30),
            [],
        ),
        "the step of another task counts for a silent target": (
            watched(kill_at_20).runs().trains(0, 30),
            [Sent(0, "worker:1", KILL)],
        ),
        "an epoch begins with its first report": (
            watched("term worker:0 at epoch 2").runs().trains(0, 12, 1, 12).at(1).trains(0, 0, 2, 12),
            [Sent(1, "worker:0", TERM)],
        ),
        "a single epoch has no number": (
            watched("term worker:0 at epoch 1; kill worker:0 at epoch 2").runs().trains(0, 1),
            [Sent(0, "worker:0", TERM)],
        ),
        "ready is when all are": (
            watched("kill worker:0 at ready").planned().started().ready(0).at(3).ready(1),
            [Sent(3, "worker:0", KILL)],
        ),
        "start is when the task itself has started": (
            watched("kill worker:1 at start").planned().at(1).started(0).at(2).started(1),
            [Sent(2, "worker:1", KILL)],
        ),
        "time counts from the attempt's start": (
            watched(kill_at_3s).at(2).runs().at(9),
            [Sent(5, "worker:1", KILL)],
        ),
        "a fault before the task's start waits for it": (
            watched(kill_at_3s).planned().at(10).started(0).at(11).started(1),
            [Sent(11, "worker:1", KILL)],
        ),
        "a stop is continued after its time": (
            watched(stop).runs().at(60),
            [Sent(0, "worker:0", STOP), Sent(25, "worker:0", CONT)],
        ),
        "a gone process gets no SIGCONT": (
            watched(stop).runs().at(5).exits(0, signal=KILL).at(60),
            [Sent(0, "worker:0", STOP)],
        ),
        "a restarted process was never stopped": (
            watched(stop).runs().at(5).exits(0, signal=KILL).at(6).starts_again(0).at(60),
            [Sent(0, "worker:0", STOP)],
        ),
        "an attempt has its own faults and clock": (
            watched(attempts).runs().at(3).exits(0, signal=KILL).torn_down().restarts(ended("worker:0")).at(20)
            .runs(attempt=2).at(30),
            [Sent(3, "worker:0", KILL), Sent(24, "worker:1", KILL)],
        ),
    }  # fmt: skip
    wrong = {name: run.sent for name, (run, sent) in rows.items() if run.sent != sent}
    assert not wrong, wrong


def test_stop_is_due_again_when_its_time_is_over() -> None:
    run = watched("stop worker:0 at ready for 25s").runs()
    assert run.watch.due(run.state) == run.mono + 25
    assert run.at(60).watch.due(run.state) is None


def test_no_fault_is_due_on_an_ending_run() -> None:
    for end in (lambda run: run.exits(0), WatchedRun.stopped, WatchedRun.torn_down):
        run = end(watched("kill worker:0 at 3s; stop worker:0 at step 5").runs()).at(10)
        assert (run.watch.due(run.state), run.sent) == (None, [])


def test_any_selects_the_task_by_its_seed() -> None:
    hits = [watched(f"kill any#{seed} at ready", workers=3).runs().sent for seed in [*range(20)] * 2]
    assert hits[:20] == hits[20:]
    assert {sent.task for (sent,) in hits} == {"worker:0", "worker:1", "worker:2"}


def seconds(report: FaultReport) -> Seconds:
    """(at, detection, teardown, recovery), to the microsecond."""
    told = (report.at_s, report.detection_s, report.teardown_s, report.recovery_s)
    return tuple(second if second is None else round(second, 6) for second in told)


KILLED, TERMED = "kill worker:1 at 3s", "term worker:1 at 3s"
UNNOTICED: Seconds = (3.0, None, None, None)
INTERRUPTED = Symptom(kind=SymptomKind.OWN, exception="KeyboardInterrupt")


def killed(at: float = 3.1, workers: int = 2) -> WatchedRun:
    return watched(KILLED, workers).runs().at(at).exits(1, signal=KILL)


def restarted_alone(run: WatchedRun) -> WatchedRun:
    """Worker 1 is killed after 3.2 s, trains again after 6.2 s."""
    run.at(3.2).exits(1, signal=KILL).waits_for_restart(1, delay_s=1.0)
    return run.at(4.2).started(1).at(5.2).ready(1).at(6.2).trains(1, 2)


def test_report_of_each_fault() -> None:
    slow, recovered = (
        ended("worker:1", teardown_s=0.4),
        ended("worker:1").model_copy(update={"recovery_s": 4.5}),
    )
    decided = watched(KILLED).runs().at(3.1).exits(0, code=1)
    decided.watch.decide_teardown(1, decided.mono)
    in_attempt_2 = watched("kill worker:1 at 2s in attempt 2").runs().at(10).exits(0, code=1).torn_down()
    in_attempt_2.restarts(ended("worker:0")).at(12).runs(attempt=2).at(14.1).exits(1, signal=KILL).torn_down()
    rows: dict[str, tuple[WatchedRun, RunResult, list[Seconds]]] = {
        "a kill that ended the run": (killed(3.02).torn_down(), result(slow), [(3.0, 0.02, 0.4, None)]),
        "a kill followed by another attempt": (
            killed(3.5).torn_down().restarts(recovered).at(5).runs(attempt=2),
            result(None, recovered),
            [(3.0, 0.5, 0.25, 4.5)],
        ),
        "faults that were never due": (
            watched("kill worker:1 at step 20; kill any#3 at epoch 9").runs().trains(1, 19),
            result(None),
            [(None,) * 4] * 2,
        ),
        "a stop is noticed when it is named": (
            watched("stop worker:1 at 3s").runs().at(8).torn_down(TeardownReason.LIMIT),
            result(ended("worker:1", CauseKind.STALLED)),
            [(3.0, 5.0, 0.25, None)],
        ),
        "an unnoticed stop": (
            watched("stop worker:1 at 3s for 5s").runs().at(20).exits(0).exits(1)
            .torn_down(TeardownReason.FINISHED),
            result(None),
            [UNNOTICED],
        ),
        "an exit after a survived stop is not its effect": (
            watched("stop worker:1 at 3s for 5s").runs().at(20).exits(1, code=3).torn_down(),
            result(ended("worker:1")),
            [UNNOTICED],
        ),
        "a stop is not noticed by another failure": (
            watched("stop worker:1 at 3s for 2s").runs().at(9).exits(0, code=1).torn_down(),
            result(ended("worker:0")),
            [UNNOTICED],
        ),
        "the last of two stops is the named one": (
            watched("stop worker:1 at 3s for 2s; stop worker:1 at 8s").runs().at(13)
            .torn_down(TeardownReason.LIMIT),
            result(ended("worker:1", CauseKind.STOPPED)),
            [UNNOTICED, (8.0, 5.0, 0.25, None)],
        ),
        "TensorFlow swallows SIGTERM: what ends the task long after is something else": (
            watched(TERMED).runs().at(60).exits(1).exits(0),
            result(None),
            [UNNOTICED],
        ),
        "an exit soon after a signal is its effect": (
            watched(TERMED).runs().at(5).exits(1, code=42).torn_down(),
            result(ended("worker:1")),
            [(3.0, 2.0, 0.25, None)],
        ),
        "an exit belongs to the signal it died of": (
            watched(f"{TERMED}; kill worker:1 at 4s; signal USR1 worker:1 at 5s").runs().at(5.5)
            .exits(1, signal=KILL).torn_down(),
            result(ended("worker:1")),
            [UNNOTICED, (4.0, 1.5, 0.25, None), (5.0, None, None, None)],
        ),
        "a signal from outside is not a fault": (
            watched(TERMED).runs().at(4).exits(1, signal=KILL).torn_down(),
            result(ended("worker:1")),
            [UNNOTICED],
        ),
        "a task ended by orch is not ended by the fault": (
            watched(TERMED).runs().at(4).torn_down(TeardownReason.REQUEST).exits(1, signal=TERM),
            result(None),
            [UNNOTICED],
        ),
        "a teardown that begins late belongs to the failure": (
            killed().torn_down(after_s=60.0),
            result(slow),
            [(3.0, 0.1, 0.4, None)],
        ),
        "a fault noticed while the teardown is decided belongs to it, though a peer exits first": (
            decided.at(3.2).exits(1, signal=KILL).torn_down(),
            result(slow),
            [(3.0, 0.2, 0.4, None)],
        ),
        "a task restarted alone trains again with its first step": (
            restarted_alone(watched(KILLED).runs().trains(1, 5)),
            result(None),
            [(3.0, 0.2, None, 3.0)],
        ),
        "a task restarted alone, which never reported steps, is ready again": (
            restarted_alone(watched(KILLED).runs()),
            result(None),
            [(3.0, 0.2, None, 2.0)],
        ),
        "times count from the start of the run": (
            in_attempt_2,
            result(ended("worker:1", attempt=2), ended("worker:0")),
            [(14.0, 0.1, 0.25, None)],
        ),
        "an exit by the task's own exception is the noticed one": (
            watched("int worker:1 at 3s").runs().at(3.7).exits(1, code=1, symptom=INTERRUPTED).torn_down(),
            result(ended("worker:1")),
            [(3.0, 0.7, 0.25, None)],
        ),
    }  # fmt: skip
    # --on-failure continue: however the run ended at last, that end was not the fault's.
    for task in ("worker:0", "worker:1"):
        for later in (3.11, 50.0):
            run = killed(workers=3).at(later).exits(0, code=3).torn_down()
            rows[f"continued until {later} {task}"] = run, result(ended(task)), [(3.0, 0.1, None, None)]
    found = {name: [*map(seconds, run.watch.reports(end))] for name, (run, end, _) in rows.items()}
    wrong = {name: reports for name, reports in found.items() if reports != rows[name][2]}
    assert not wrong, wrong


def test_report_names_the_fault_and_its_task() -> None:
    first, second = watched(f"{KILLED}; kill any#3 at epoch 9").runs().watch.reports(result(None))
    assert (first.fault, first.task) == (KILLED, "worker:1")
    assert second.task in ("worker:0", "worker:1")


MOMENTS = [f"at {when}" for when in ("step 3", "epoch 2", "2s", "ready", "start")]
LATER = ["at 4s in attempt 2", "at step 1 in attempt 2"]
TARGETS = ["0", "1", "any#1", "any#2"]
VERBS = ["kill", "stop", "term", "signal USR1"]
FAULTS = st.tuples(*map(st.sampled_from, (VERBS, TARGETS, MOMENTS + LATER))).map(" ".join) | st.tuples(
    *map(st.sampled_from, (["stop"], TARGETS, MOMENTS, ["for 2s"]))
).map(" ".join)
HAPPENINGS = ["started", "ready", "trains", "exits", "killed", "torn", "stopped", "again", "nothing"]
STEPS = st.lists(
    st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 1), st.floats(0.0, 3.0), st.integers(0, 6)),
    max_size=40,
)


@given(st.lists(FAULTS, min_size=1, max_size=4), STEPS)
def test_each_fault_is_sent_at_most_once_to_live_tasks(
    chaos: list[str], steps: list[tuple[str, int, float, int]]
) -> None:
    run = watched("; ".join(chaos)).planned()
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
    sent_faults = [sent for sent in run.sent if sent.signal != CONT]
    assert len(sent_faults) <= len(chaos)
    assert len(run.sent) - len(sent_faults) <= sum("for 2s" in text for text in chaos)
    history = [ended("worker:0", attempt=number) for number in range(1, attempt)]
    reports = run.watch.reports(result(ended("worker:1", attempt=attempt), *history))
    assert len(reports) == len(chaos)
    assert sum(report.at_s is not None for report in reports) == len(sent_faults)
    assert all(report.detection_s is None or report.detection_s >= 0 for report in reports)
