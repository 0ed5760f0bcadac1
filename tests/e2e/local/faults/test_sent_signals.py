"""An end by a signal that was sent on purpose is described so; any other end is not."""

from __future__ import annotations

import signal

import pytest
from chaos_run import WatchedRun

from orchestrator.core.diagnosis.cause import find_cause
from orchestrator.core.state import events
from orchestrator.core.state.events import SignalSource, Symptom, SymptomKind
from orchestrator.core.state.result import Cause, CauseKind

KILL, STOP, CONT, TERM, INT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGINT
COLLATERAL = Symptom(kind=SymptomKind.COLLATERAL, exception="UnavailableError: Socket closed")


def running() -> WatchedRun:
    run = WatchedRun("kill worker:0 at step 999999")
    run.runs()
    return run


def send(
    run: WatchedRun, index: int, number: int, by: SignalSource = "user", text: str | None = None
) -> None:
    sent = events.SignalRequested(
        at=run.mono, mono=run.mono, task=f"worker:{index}", signal=number, by=by, text=text
    )
    run.happens(sent)


def cause_of(run: WatchedRun, index: int) -> Cause:
    return find_cause(run.state, run.state.tasks[f"worker:{index}"])


def test_kill_by_a_user() -> None:
    run = running()
    send(run, 1, KILL)
    run.exits(1, signal=KILL)
    cause = cause_of(run, 1)
    assert cause == Cause(task="worker:1", kind=CauseKind.EXITED, text="SIGKILL, sent by `orch kill`")


def test_kill_for_a_limit_names_the_option() -> None:
    run = running()
    send(run, 1, KILL, by="limit")
    run.exits(1, signal=KILL)
    assert cause_of(run, 1).text == "SIGKILL, sent by orch: over --memory-limit"


def test_planned_kill_is_described_with_its_plan() -> None:
    run = running()
    send(run, 1, KILL, "chaos", "kill worker:1 at step 20")
    run.exits(1, signal=KILL)
    assert cause_of(run, 1).text == "SIGKILL, sent by --chaos (kill worker:1 at step 20)"


def test_signal_from_outside() -> None:
    run = running()
    send(run, 1, TERM)
    send(run, 0, KILL)
    run.exits(1, signal=KILL)
    assert "orch kill" not in cause_of(run, 1).text


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        (None, True),
        ("KeyboardInterrupt", True),
        ("SystemExit: told to end", True),
        ("ValueError: nothing to do with it", False),
    ],
)
def test_exit_after_a_signal_unless_it_has_its_own_error(exception: str | None, told: bool) -> None:
    run = running()
    send(run, 1, INT)
    kind = SymptomKind.OWN if exception else SymptomKind.UNKNOWN
    run.exits(1, code=3, symptom=Symptom(kind=kind, exception=exception))
    assert cause_of(run, 1).text == ("exit 3, after SIGINT, sent by `orch kill`" if told else "exit 3")


def test_meaning_of_an_exit_code_is_added() -> None:
    run = running()
    send(run, 1, TERM)
    run.exits(1, code=42)
    text = cause_of(run, 1).text
    assert text.startswith("exit 42: ") and text.endswith("after SIGTERM, sent by `orch kill`")


def test_signal_in_the_exit_code_is_named_once() -> None:
    run = running()
    send(run, 1, TERM)
    run.exits(1, code=143)
    assert cause_of(run, 1).text == "exit 143: it was asked to end by SIGTERM, and did (sent by `orch kill`)"


def test_task_stopped_when_its_peer_fails() -> None:
    run = running()
    send(run, 1, STOP, "chaos", "stop worker:1 at 3s")
    run.at(20)
    lost = events.TaskExited(
        at=run.mono,
        mono=run.mono,
        task="worker:0",
        exit_code=1,
        signal=None,
        order=0,
        peers={"worker:1": "T"},
        symptom=COLLATERAL,
    )
    run.happens(lost)
    cause = cause_of(run, 0)
    assert (cause.task, cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert cause.text == "stopped by SIGSTOP, sent by --chaos (stop worker:1 at 3s), so its peers lost it"


def test_continued_task_that_its_peer_gave_up() -> None:
    run = running()
    send(run, 1, STOP)
    run.at(22.5)
    send(run, 1, CONT)
    run.at(23).exits(0, code=1, symptom=COLLATERAL)
    cause = cause_of(run, 0)
    assert (cause.task, cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert cause.text == "was stopped for 22.5s (SIGSTOP, sent by `orch kill`), so its peers lost it"


def test_signal_after_the_end_changes_nothing() -> None:
    run = running()
    send(run, 1, STOP)
    run.at(20).exits(0, code=1, symptom=COLLATERAL)
    run.at(21)
    send(run, 1, CONT)
    assert cause_of(run, 0).text == "stopped by SIGSTOP, sent by `orch kill`, so its peers lost it"


def test_stop_that_was_survived_is_not_the_cause() -> None:
    run = running()
    send(run, 1, STOP)
    send(run, 1, CONT)
    run.at(60).exits(0, code=1, symptom=Symptom(kind=SymptomKind.OWN, exception="ValueError: boom"))
    assert cause_of(run, 0).task == "worker:0"


def test_task_stopped_from_outside() -> None:
    run = running()
    lost = events.TaskExited(
        at=run.mono,
        mono=run.mono,
        task="worker:0",
        exit_code=1,
        signal=None,
        order=0,
        peers={"worker:1": "T"},
        symptom=COLLATERAL,
    )
    run.happens(lost)
    assert cause_of(run, 0).text == "stopped by SIGSTOP (or a debugger), so its peers lost it"


def test_kill_for_a_limit_without_other_evidence() -> None:
    run = running()
    send(run, 1, KILL, "limit")
    run.exits(1, signal=KILL)
    assert cause_of(run, 1).text == "SIGKILL, sent by orch: over --memory-limit"
