"""The cause of a failure: from symptoms, exits, process states, signals that were sent on purpose, and resources that a
task certainly ran out of."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import Any

from making import COLLATERAL, OWN, UNKNOWN, event, exited, job, planned_task
from story import Story, other_ends

from orchestrator.client.view.report import end_lines
from orchestrator.core.diagnosis import shortages
from orchestrator.core.diagnosis.cause import advice_on
from orchestrator.core.diagnosis.shortages import FULL_DISK, find_shortage
from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.state.events import SignalRequested, Symptom, SymptomKind
from orchestrator.core.state.result import CauseKind
from orchestrator.core.state.state import TaskPhase, TaskState
from orchestrator.core.text.sizes import format_size, parse_size

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


def failed(code: int | None = 1, number: int | None = None, **fields: Any) -> TaskState:
    """worker:1 after its exit. `fields`: of its state, and of its exit."""
    own = {name: fields.pop(name) for name in ("signals", "full_disk") if name in fields}
    ended = exited(1, code, number, **fields)
    return TaskState(plan=planned_task(1), phase=TaskPhase.FAILED, ended=ended, **own)


def killed(**fields: Any) -> TaskState:
    return failed(number=signal.SIGKILL, **{"oom_kills": 0} | fields)


DISK = "/data: No space left on device"


def sent(number: int) -> tuple[SignalRequested, ...]:
    return (event(SignalRequested, task=1, signal=number, by="user"),)


def test_what_a_task_ran_out_of() -> None:
    gib = 1 << 30
    started = "could not be started: "
    refused = "python3: no more processes or threads can be started (Resource temporarily unavailable)"
    full, quota = "[Errno 28] No space left on device: '/x.log'", "[Errno 122] Disk quota exceeded: '/x.log'"
    files, missing = "[Errno 24] Too many open files", "nosuch: no such file or directory"
    not_started = partial(failed, 126)
    oom = "killed by the kernel: out of memory (it had used up to 300 MiB)"
    rows: list[tuple[TaskState, str | None]] = [
        # The memory in the units of the limit.
        (killed(over_limit=(int(1.2 * gib), gib)), "used 1.2 GiB, over --memory-limit 1 GiB"),
        (killed(over_limit=(612_000_000, 500_000_000)), "used 612 MB, over --memory-limit 500 MB"),
        (killed(oom_kills=1, peak_bytes=300 << 20), oom),
        # The killed process was below a shell.
        (failed(137, oom_kills=1, peak_bytes=300 << 20), "exit 137: " + oom.replace(":", ",")),
        (killed(), None),
        (killed(oom_kills=None), None),
        (killed(oom_kills=2, signals=sent(signal.SIGKILL)), None),
        (failed(number=signal.SIGSEGV, oom_kills=2), None),
        (failed(oom_kills=2), None),
        # A full disk explains a failure without a symptom.
        (failed(120, full_disk=DISK), f"exit 120, on a full disk ({DISK})"),
        (failed(full_disk=DISK, symptom=OWN), None),
        (failed(full_disk=DISK, symptom=COLLATERAL), None),
        (failed(full_disk=DISK, signals=sent(signal.SIGTERM)), None),
        *((not_started(start_error=error), f"{started}{error}") for error in (refused, full, quota, files)),
        (not_started(start_error=missing), None),
        (failed(number=signal.SIGXCPU, signals=sent(signal.SIGXCPU)), None),
    ]
    found = [lack and lack.text for lack in (find_shortage(task) for task, _ in rows)]
    assert found == [text for _, text in rows]
    advised = {refused: shortages.NO_PROCESSES, full: FULL_DISK, quota: FULL_DISK, files: shortages.NO_FILES}
    assert {error: advice_on(not_started(start_error=error)) for error in advised} == advised


def test_signals_of_limits_and_from_outside_are_explained() -> None:
    rows = {signal.SIGXCPU: "CPU time (ulimit -t)", signal.SIGXFSZ: "a file's size (ulimit -f)"}
    lacks = {number: find_shortage(failed(number=number)) for number in rows}
    assert not [number for number, lack in lacks.items() if lack is None or rows[number] not in lack.text]
    assert "the kernel counted no out-of-memory kill" in shortages.describe_kill(killed())
    assert "likely out of memory" in shortages.describe_kill(killed(oom_kills=None))


def test_full_disk_of_a_host_has_advice_about_that_host() -> None:
    there = planned_task(1, host="n1")
    raised = Symptom(kind=SymptomKind.OWN, exception="OSError: [Errno 28]", advice=FULL_DISK)
    for full in (failed(full_disk=DISK), failed(symptom=raised)):
        assert advice_on(full) == FULL_DISK
        assert advice_on(replace(full, plan=there)) == shortages.FULL_DISK_OF_HOST


def test_run_that_cannot_be_stored_has_advice() -> None:
    elsewhere = "Put runs on another disk with --log-dir."
    rows = {
        "Disk quota exceeded": "The disk is full: free some space (`orch prune`",
        "File too large": "The limit on a file's size was reached: raise it",
        "Input/output error": elsewhere,
        "Permission denied": "",
    }
    found = {reason: shortages.storage_advice(f"/x: {reason}") or "" for reason in rows}
    wrong = {reason: advice for reason, advice in found.items() if not advice.startswith(rows[reason])}
    assert not wrong and not found["Permission denied"], wrong


def test_formatted_size_can_be_read_back() -> None:
    rows: dict[tuple[int, int | None], str] = {
        (0, None): "0 B",
        (1023, None): "1023 B",
        (1 << 20, None): "1 MiB",
        (1_610_612_736, None): "1.5 GiB",
        (10**10, 10**10): "10 GB",
        (512 << 20, 10**9): "537 MB",
        (3 << 50, None): "3072 TiB",
    }
    assert {(size, like): format_size(size, like) for size, like in rows} == rows
    assert all(abs(parse_size(text) - size) <= size * 0.06 for (size, _), text in rows.items() if size)
