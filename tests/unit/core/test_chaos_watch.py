"""Planned faults: when each is sent, to which live task, and what the report says about its effect."""

from __future__ import annotations

import signal
from typing import Any

from making import AT_WORK, COLLATERAL, OWN, START, STOPPED, exited, job, policies
from story import Story

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.fault import parse_chaos
from orchestrator.core.lifecycle.actions import Deadline
from orchestrator.core.state.events import SignalRequested
from orchestrator.core.state.result import FaultReport

KILL, STOP, CONT, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
CONTINUE, RESTART, ALONE = FailurePolicy.CONTINUE, FailurePolicy.RESTART, FailurePolicy.RESTART_TASK
# Seconds since the start of the run, the task and the signal.
Sent = tuple[float, str, int]
Seconds = tuple[float | None, ...]


def story(chaos: str, workers: int = 2, **fields: Any) -> Story:
    return Story(job(workers=workers, chaos=parse_chaos(chaos), **fields))


def sent(run: Story) -> list[Sent]:
    faults = [each for each in run.events if isinstance(each, SignalRequested)]
    for each in faults:
        assert (each.by, each.at, each.text) == ("chaos", each.mono, str(run.spec.chaos[each.fault or 0]))
    return [(round(each.mono - START, 6), each.task, each.signal) for each in faults]


def test_faults_are_sent_once_at_their_moment() -> None:
    kill_at_20, kill_at_3s = "kill worker:1 at step 20", "kill worker:1 at 3s"
    stop = "stop worker:0 at ready for 25s"
    attempts = "kill worker:0 at 3s; kill worker:1 at 4s in attempt 2; kill worker:1 at ready in attempt 3"
    of_12 = [{"epoch": epoch, "steps": 12} for epoch in (0, 1, 2)]
    silent, started = story(kill_at_20).ready(), story(kill_at_3s).plans().at(10).starts(0).at(11).starts(1)
    in_epochs = story(kill_at_20).ready().trains(1, 12, **of_12[1]).at(1).trains(1, 7, **of_12[2])
    again = story(attempts, on_failure=RESTART).ready().trains(0, 1).at(3).exits(0, signal=KILL).torn_down()
    gone = story(stop, on_failure=CONTINUE).ready().at(5).exits(0, signal=KILL).at(60)
    alone = story(stop, on_failure=ALONE).ready().trains(0, 1).at(5).exits(0, signal=KILL).at(9).ready(0)
    term_2, one_epoch = "term worker:0 at epoch 2", "term worker:0 at epoch 1; kill worker:0 at epoch 2"
    second = story(term_2).ready().trains(0, 12, **of_12[1]).at(1).trains(0, 0, **of_12[2])
    at_start = story("kill worker:1 at start").at(1).starts(0).at(2).starts(1)
    merged = story(kill_at_20).ready().at(1).trains(1, 18).at(2).trains(1, 23).at(3).trains(1, 24)
    killed, stopped = (2.0, "worker:1", KILL), (0.0, "worker:0", STOP)
    rows: dict[str, tuple[Story, list[Sent]]] = {
        "a step merged with later ones is not missed": (merged, [killed]),
        "steps count over all epochs": (in_epochs.at(2).trains(1, 8, **of_12[2]), [killed]),
        "the step of another task does not count": (story(kill_at_20).ready().trains(1, 2).trains(0, 30), []),
        "but for a silent target": (silent.trains(0, 30), [(0, "worker:1", KILL)]),
        "an epoch begins with its first report": (second, [(1, "worker:0", TERM)]),
        "a single epoch has no number": (story(one_epoch).ready().trains(0, 1), [(0, "worker:0", TERM)]),
        "ready is when all are": (
            story("kill worker:0 at ready").starts().ready(0).at(3).ready(1),
            [(3, "worker:0", KILL)],
        ),
        "start is when the task itself has started": (at_start, [killed]),
        "time counts from the attempt's start": (
            story(kill_at_3s).at(2).ready().at(9),
            [(5, "worker:1", KILL)],
        ),
        "a fault before the task's start waits for it": (started, [(11, "worker:1", KILL)]),
        "a stop is continued after its time": (story(stop).ready().at(60), [stopped, (25, "worker:0", CONT)]),
        "a gone process gets no SIGCONT": (gone, [stopped]),
        "a restarted process was never stopped": (alone.at(60), [stopped]),
        "an attempt has its own faults and clock": (
            again.at(20).ready().at(30),
            [(3, "worker:0", KILL), (24, "worker:1", KILL)],
        ),
    }
    wrong = {what: sent(run) for what, (run, faults) in rows.items() if sent(run) != faults}
    assert not wrong, wrong


def test_no_fault_is_due_on_an_ending_run() -> None:
    for end in (lambda run: run.exits(0, code=1), lambda run: run.exits(0, 1), Story.stops):
        run = story("kill worker:0 at 3s; stop worker:0 at step 5").ready()
        assert run.due == (3, Deadline.CHAOS)
        end(run)
        assert sent(run.at(9)) == [] and (run.due is None or run.due[1] != Deadline.CHAOS)


def seconds(report: FaultReport) -> Seconds:
    """(at, detection, teardown, recovery), to the microsecond."""
    times = (report.at_s, report.detection_s, report.teardown_s, report.recovery_s)
    return tuple(time if time is None else round(time, 6) for time in times)


KILLED, TERMED, STOPPED_5S = (f"{what} worker:1 at 3s" for what in ("kill", "term", "stop"))
STOPPED_5S += " for 5s"
UNNOTICED: Seconds = (3.0, None, None, None)


def killed(at: float, workers: int = 2, **fields: Any) -> Story:
    return story(KILLED, workers, **fields).ready().trains(0, 1).at(at).exits(1, signal=KILL)


def stalled(chaos: str) -> Story:
    """worker:1 is found stopped when all have been silent for 5 s."""
    return story(chaos, stall_timeout_s=5.0).ready().trains(0, 1).trains(1, 1)


def restarted_alone(task: str, trains: bool = True) -> Story:
    """A task is killed, ready again 2 s after that was noticed, and trains a second later, if at all."""
    chaos, alone = parse_chaos(f"kill {task} at 3s"), policies({"ps": ALONE, "worker": ALONE})
    run = Story(job(roles={"worker": 2, "ps": 1}, role_settings=alone, chaos=chaos)).ready().trains(0, 1)
    if trains:
        run.trains(task, 5)
    run.at(3.2).exits(task, signal=KILL).at(4.2).starts(task).at(5.2).ready(task).at(6.2)
    if trains:
        run.trains(task, 2)
    return run.exits(0, 1)


def test_report_of_each_fault() -> None:
    early = story("kill worker:1 at 2s in attempt 2", on_failure=RESTART, max_restarts=1).ready().trains(0, 1)
    early.at(10).exits(0, code=1).torn_down().at(12).ready().at(14.1).exits(1, signal=KILL).at(14.3)
    again = killed(3.5, on_failure=RESTART).at(3.75).torn_down().at(5).ready().at(8).trains(0, 2).exits(0, 1)
    named = stalled("stop worker:1 at 3s").at(9).stacks(AT_WORK, STOPPED).at(9.25)
    twice = stalled("stop 1 at 3s for 1s; stop 1 at 4.5s").at(9).stacks(AT_WORK, STOPPED).at(9.25)
    three = story(f"{TERMED}; kill worker:1 at 4s; signal USR1 worker:1 at 5s").ready().at(5.5)
    three.exits(1, signal=KILL).at(5.75)
    # The teardown begins later than both exits.
    peer = exited(0, 1, mono=START + 3.1, symptom=COLLATERAL, peer_symptoms={"worker:1": OWN})
    while_decided = story("int worker:1 at 3s").ready().at(3.3)
    while_decided.tell(peer, exited(1, 1, mono=START + 3.2, symptom=OWN, order=1)).at(3.7)
    # The fault did not cause the later end of the run.
    continued = killed(3.1, 3, on_failure=CONTINUE).at(50).exits(0, code=3).exits(2).at(51)
    rows: dict[str, tuple[Story, list[Seconds]]] = {
        "a kill that ended the run": (killed(3.02).at(3.42), [(3.0, 0.02, 0.4, None)]),
        "a kill followed by another attempt": (again, [(3.0, 0.5, 0.25, 4.5)]),
        "faults that were never due": (
            story("kill worker:1 at step 20; kill any#3 at epoch 9").ready().trains(1, 19).exits(0, 1),
            [(None,) * 4] * 2,
        ),
        "a stop is noticed when it is named": (named, [(3.0, 6.0, 0.25, None)]),
        "an unnoticed stop": (story(STOPPED_5S).ready().at(20).exits(0, 1), [UNNOTICED]),
        "an exit after a survived stop": (story(STOPPED_5S).ready().at(20).exits(1, code=3), [UNNOTICED]),
        "another failure": (story(STOPPED_5S).ready().at(9).exits(0, code=1, symptom=OWN), [UNNOTICED]),
        "the last of two stops is the named one": (twice, [UNNOTICED, (4.5, 4.5, 0.25, None)]),
        # TensorFlow swallows SIGTERM: what ends the task long after is something else.
        "an exit long after a signal": (story(TERMED).ready().at(60).exits(1, 0), [UNNOTICED]),
        "an exit soon after it": (
            story(TERMED).ready().at(5).exits(1, code=42).at(5.25),
            [(3.0, 2.0, 0.25, None)],
        ),
        "an exit belongs to the signal it died of": (
            three,
            [UNNOTICED, (4.0, 1.5, 0.25, None), (5.0, None, None, None)],
        ),
        "a signal from outside": (story(TERMED).ready().at(4).exits(1, signal=KILL), [UNNOTICED]),
        "a task ended by orch": (story(TERMED).ready().at(4).stops().exits(1, signal=TERM), [UNNOTICED]),
        "while the teardown is decided, though a peer exits first": (while_decided, [(3.0, 0.2, 0.4, None)]),
        "restarted alone, it trains again": (restarted_alone("worker:1"), [(3.0, 0.2, None, 3.0)]),
        "without steps, it is ready again": (restarted_alone("ps:0", trains=False), [(3.0, 0.2, None, 2.0)]),
        "times count from the start of the run": (early, [(14.0, 0.1, 0.2, None)]),
        "the task's own exception": (
            story("int worker:1 at 3s").ready().at(3.7).exits(1, code=1, symptom=OWN).at(3.95),
            [(3.0, 0.7, 0.25, None)],
        ),
        "a run that continued without the killed task": (continued, [(3.0, 0.1, None, None)]),
    }
    found = {what: [*map(seconds, run.result().faults)] for what, (run, _) in rows.items()}
    wrong = {what: reports for what, reports in found.items() if reports != rows[what][1]}
    assert not wrong, wrong


def test_report_names_the_fault_and_its_task() -> None:
    """Also one that is not sent."""
    for ends_at in (1, 4):
        run = story(f"{KILLED}; kill any#3 at epoch 9").ready().at(ends_at).exits(0, 1)
        first, second = run.result().faults
        assert (first.fault, first.task, first.at_s) == (KILLED, "worker:1", None if ends_at < 3 else 3.0)
        assert second.fault == "kill any#3 at epoch 9" and second.task in ("worker:0", "worker:1")
