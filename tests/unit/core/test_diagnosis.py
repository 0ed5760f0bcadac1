"""The cause of a failure: from symptoms, exits, process states and the signals that were sent on purpose."""

from __future__ import annotations

import signal
from typing import Any

from making import COLLATERAL, OWN, UNKNOWN, job
from story import Story, other_ends

from orchestrator.client.view.report import end_lines
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.state.events import SignalRequested, Symptom, SymptomKind
from orchestrator.core.state.result import CauseKind

INTERRUPTED = Symptom(kind=SymptomKind.OWN, exception="KeyboardInterrupt")
KILL, STOP, CONT, TERM, INT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGINT


PLACE = "/home/u/train.py:2"
NO_MODULE = "ModuleNotFoundError: No module named 'sklearnx'"


def own(exception: str = NO_MODULE, place: str = PLACE) -> Symptom:
    return Symptom(kind=SymptomKind.OWN, exception=exception, place=place)


def running(workers: int = 2) -> Story:
    return Story(job(workers=workers)).ready()


def failing(symptom: Symptom | None, letter: str = "T", number: int | None = None) -> Story:
    """worker:0 fails while worker:1 is in the state of this letter."""
    return running().exits(0, code=1, signal=number, symptom=symptom, peers={"worker:1": letter})


def lost_peer(other: Symptom) -> Story:
    """worker:0 loses its peers while another task has already raised `other`."""
    return running().exits(0, code=1, symptom=COLLATERAL, peer_symptoms={"worker:1": other})


def test_task_that_the_failure_began_with() -> None:
    lost = {"code": 1, "symptom": COLLATERAL}
    by_0, by_1 = (f"failed 1: exited worker:{index}" for index in (0, 1))
    stopped_1, left_1, because = (
        "failed 1: stopped worker:1",
        "failed 1: left_early worker:1",
        "failed because of it",
    )
    rows: dict[str, tuple[Any, ...]] = {
        "a stopped peer does not explain an own exception": (failing(OWN), by_0),
        "nor a kill": (failing(UNKNOWN, number=KILL), "failed 137: exited worker:0"),
        "left early": (running().exits(1).exits(0, **lost), left_1, because, "left early"),
        "the first that left early": (
            running(3).exits(2, 1).exits(0, **lost),
            "failed 1: left_early worker:2",
        ),
        "a finished task does not explain an own exception": (
            running().exits(1).exits(0, code=1, symptom=OWN),
            by_0,
        ),
        "an own exception wins over a quicker peer": (
            lost_peer(OWN).exits(1, code=1, symptom=OWN),
            *(by_1, because, "failed"),
        ),
        "before its exit": (lost_peer(OWN), by_1, because),
        "raised by a stop": (lost_peer(INTERRUPTED).exits(1, code=1, symptom=INTERRUPTED), by_0),
        "raised during a stop": (running().exits(0, **lost).exits(1, code=1, symptom=OWN), by_0),
        "the first own exception": (
            running().exits(0, code=1, symptom=OWN, peer_symptoms={"worker:1": OWN}),
            by_0,
        ),
    }
    for symptom in (COLLATERAL, UNKNOWN, None):
        rows |= {f"a stopped peer {at} {symptom}": (failing(symptom, at), stopped_1, because) for at in "Tt"}
    rows |= {f"a peer in the state {letter}": (failing(COLLATERAL, letter), by_0) for letter in "RSDZX"}
    assert other_ends(rows) == {}
    firsts = [rows[what][0].result().first_failure for what in ("left early", "before its exit")]
    assert [first and first.task for first in firsts] == ["worker:0", "worker:0"]


def test_text_of_a_cause_is_how_the_task_ended() -> None:
    """TensorFlow's own exit codes are described."""
    rows = {
        "SIGSEGV": running().exits(0, signal=signal.SIGSEGV),
        "SIGKILL, likely out of memory (or a kill -9)": running().exits(0, signal=KILL),
        "signal 63": running().exits(0, signal=63),
        "exit 3": running().exits(0, code=3),
    }
    assert [story.cause.text for story in rows.values()] == [*rows]
    for code, says in ((42, "PreemptionCheckpointHandler"), (143, "SIGTERM")):
        story = running().exits(0, code=code)
        assert story.end() == f"failed {code}: exited worker:0"
        assert f"exit {code}: " in story.cause.text and says in story.cause.text
    advised = OWN.model_copy(update={"advice": "install it"})
    first = running().exits(0, code=1, symptom=advised).result().first_failure
    assert first is not None
    assert (first.advice, first.exception, first.lines) == ("install it", OWN.exception, OWN.lines)


def sends(story: Story, number: int, by: str = "user", text: str | None = None, task: int = 1) -> Story:
    """A signal is sent to worker:1 on purpose."""
    return story.happens(SignalRequested, task=task, signal=number, by=by, text=text)


def test_signal_that_was_sent_on_purpose_is_named() -> None:
    asked = sends(running(), TERM)
    plan, sent = "kill worker:1 at step 20", "sent by `orch kill`"
    rows = {
        "SIGKILL, sent by `orch kill`": sends(running(), KILL).exits(1, signal=KILL),
        f"SIGKILL, sent by --chaos ({plan})": sends(running(), KILL, "chaos", plan).exits(1, signal=KILL),
        # Another signal than the one that ended the task, and another task.
        "SIGKILL, likely out of memory (or a kill -9)": (
            sends(sends(running(), TERM), KILL, task=0).exits(1, signal=KILL)
        ),
        "exit 42: it was asked to end, saved its state and asks for a restart (PreemptionCheckpointHandler),"
        " after SIGTERM, sent by `orch kill`": sends(running(), TERM).exits(1, code=42),
        f"exit 143: it was asked to end by SIGTERM, and did ({sent})": asked.exits(1, code=143),
        f"exit 3, after SIGINT, {sent}": sends(running(), INT).exits(1, code=3, symptom=INTERRUPTED),
        f"exit 4, after SIGINT, {sent}": sends(running(), INT).exits(1, code=4, symptom=own("SystemExit: x")),
        f"exit 5, after SIGINT, {sent}": sends(running(), INT).exits(1, code=5, symptom=UNKNOWN),
        # The task's own error has nothing to do with it.
        "exit 3": sends(running(), INT).exits(1, code=3, symptom=OWN),
    }
    assert [story.cause.text for story in rows.values()] == [*rows]


def test_stop_that_was_sent_on_purpose_is_named() -> None:
    plan = "stop worker:1 at 3s"
    lost: dict[str, Any] = {"code": 1, "symptom": COLLATERAL}
    continued = sends(sends(running(), STOP).at(22.5), CONT).at(23)
    later = sends(sends(running(), STOP).at(20).exits(0, **lost).at(21), CONT)
    rows = {
        f"stopped by SIGSTOP, sent by --chaos ({plan})": (
            sends(running(), STOP, "chaos", plan).at(20).exits(0, **lost, peers={"worker:1": "T"})
        ),
        "was stopped for 22.5s (SIGSTOP, sent by `orch kill`)": continued.exits(0, **lost),
        # A signal after the end changes nothing.
        "stopped by SIGSTOP, sent by `orch kill`": later,
        "stopped by SIGSTOP (or a debugger)": running().exits(0, **lost, peers={"worker:1": "T"}),
    }
    for how, story in rows.items():
        cause = story.cause
        assert (cause.task, cause.kind, cause.text) == (
            "worker:1",
            CauseKind.STOPPED,
            f"{how}, so its peers lost it",
        )
    # A signal that the task survived is not the cause.
    survived = sends(sends(running(), STOP), CONT).at(60).exits(0, code=1, symptom=OWN)
    assert survived.cause.task == "worker:0"


def raising(*symptoms: Symptom, workers: int = 2) -> Story:
    """Workers that raise these, the first one before the teardown begins; others are stopped."""
    story = running(workers)
    for index, symptom in enumerate(symptoms):
        story.exits(index, code=1, symptom=symptom)
    return story


def test_same_exception_of_tasks_that_were_stopped_meanwhile_is_one_cause() -> None:
    story = raising(own(), own())
    cause = story.cause
    assert cause.text == f"both workers failed: {NO_MODULE} (train.py:2)"
    assert (cause.task, cause.tasks) == ("worker:0", ("worker:0", "worker:1"))
    assert story.ends() == ["failed", "failed"]
    report = end_lines(story.result(), None, colour=False)
    assert not any("other tasks" in line for line in report)
    assert report[-1] == f"orch: {cause.text}"
    for workers, counted in ((4, "3 of 4 workers"), (3, "all 3 workers")):
        text = raising(own(), own(), own(), workers=workers).cause.text
        assert text.startswith(f"{counted} failed: ModuleNotFoundError")


def test_addresses_numbers_and_paths_in_messages_may_differ() -> None:
    messages = [
        ("ValueError: <Data at 0x7f01ab>", "ValueError: <Data at 0x7f99cd>"),
        ("ValueError: no extension: filepath=model.", "ValueError: no extension: filepath=worker_1/model."),
        ("OSError: [Errno 2] No such file: '/data/0.csv'", "OSError: [Errno 2] No such file: '/data/1.csv'"),
    ]
    found = [raising(own(first), own(second)).cause.text for first, second in messages]
    assert found == [f"both workers failed: {first} (train.py:2)" for first, _ in messages]


def test_silent_task_is_collateral_only_in_a_cluster() -> None:
    for serves, end in ((True, "failed because of it"), (False, "failed, too")):
        story = Story(job(on_failure=FailurePolicy.CONTINUE), serves=serves).ready()
        story.exits(0, code=3, symptom=UNKNOWN).exits(1, code=4, symptom=UNKNOWN)
        assert story.ends() == ["failed", end]


def test_other_exceptions_during_a_stop() -> None:
    """A different exception or place is another failure. What the stop itself raised is none."""
    for other in (own("ModuleNotFoundError: No module named 'x'"), own(place="/u/data.py:9")):
        story = raising(own(), other)
        assert story.cause.tasks == ()
        assert story.ends()[1] == f"failed while orch stopped it: {other.exception}"
    story = running().exits(0, code=1, symptom=own()).exits(1, signal=15, symptom=own("KeyboardInterrupt"))
    assert story.ends()[1] == "stopped by orch"
    assert raising(own(), COLLATERAL).ends()[1] == "failed because of it"
