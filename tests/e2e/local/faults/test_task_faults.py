"""A task fails: the right task is named with its own exit code, and all processes are gone."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from faulty_runs import COLLATERAL, LONG, SLEEP, assert_gone, cluster, python, task_pids, up
from waiting import lives, until

from orchestrator import Cluster, TaskFailed
from orchestrator.core.state.result import CauseKind, RunResult
from orchestrator.store.runs.paths import RunPaths

FAULTS = {
    "exception": ("raise ValueError('boom')", 1, None),
    "exit": ("sys.exit(3)", 3, None),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", 137, signal.SIGKILL),
    "crashed": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, signal.SIGSEGV),
}


# These combinations run in the quick gate; all others are slow tests.
QUICK = {("exception", 1, "at once"), ("exit", 0, "later"), ("killed", 1, "later"), ("crashed", 0, "at once")}


@pytest.mark.parametrize(
    ("fault", "index", "moment"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in itertools.product(FAULTS, (0, 1), ("at once", "later"))
    ],
)
def test_failed_task_is_named_and_all_processes_are_gone(fault: str, index: int, moment: str) -> None:
    ends, exit_code, number = FAULTS[fault]
    wait = "wait_for('up-0', 'up-1')" if moment == "later" else ""
    with cluster("touch(f'up-{index}')", f"if index == {index}:\n {wait}\n {ends}", SLEEP) as run:
        with pytest.raises(TaskFailed) as caught:
            run.wait()
        # Already now, before the `with` is left.
        left = [task.pid for task in run.status().tasks if task.pid is not None and lives(task.pid)]
        assert left == []
    error, result = caught.value, caught.value.result
    assert (error.task, error.exit_code) == (f"worker:{index}", exit_code)
    assert error.log == run.log(f"worker:{index}")
    assert (result.outcome, result.exit_code) == ("failed", exit_code)
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == (f"worker:{index}", CauseKind.EXITED)
    assert (result.first_failure.task, result.first_failure.signal) == (f"worker:{index}", number)
    assert result.first_failure.exception == ("ValueError: boom" if fault == "exception" else None)
    assert result.detection_s is not None and result.teardown_s is not None
    ends_of = {task.task: (task.state, task.end) for task in result.tasks}
    assert ends_of[f"worker:{index}"] == ("failed", "failed")
    assert ends_of[f"worker:{1 - index}"] == ("stopped", "stopped by orch")
    assert RunResult.model_validate_json(RunPaths(run.dir).result.read_bytes()) == result


def failed(*program: str, **options: Any) -> RunResult:
    with cluster(*program, **options) as run:
        return run.wait(check=False)


def test_stopped_peer_is_the_cause() -> None:
    fails = f"if index == 0:\n wait_for('go')\n {indented(COLLATERAL)}"
    with cluster("touch(f'up-{index}')", fails, SLEEP) as run:
        victim = task_pids(run)[1]
        up()
        os.kill(victim, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        Path("go").touch()
        result = run.wait(check=False)
        assert_gone([victim])
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert result.first_failure.task == "worker:0"
    assert "Socket closed" in (result.first_failure.exception or "")
    assert result.exit_code == 1


def indented(program: str) -> str:
    return program.strip().replace("\n", "\n ")


def test_peer_that_left_early_is_the_cause() -> None:
    leaves = "if index == 1:\n touch(f'gone-{os.getpid()}'); sys.exit(0)"
    watches = (
        "import glob\nwhile not (found := glob.glob('gone-*')): time.sleep(0.005)\n"
        "while os.path.exists('/proc/' + found[0][5:]): time.sleep(0.005)\n"
    )
    result = failed(leaves, watches, COLLATERAL)
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.LEFT_EARLY)
    assert (result.first_failure.task, result.exit_code) == ("worker:0", 1)


def test_task_that_exits_slowly_after_its_exception_is_the_cause() -> None:
    """Its peer exits first, as happens when the interpreter needs long to exit."""
    raises = (
        "if index == 1:\n import traceback\n"
        " try: raise ValueError('boom')\n except ValueError: traceback.print_exc()\n"
        " touch('raised'); time.sleep(600)"
    )
    result = failed(raises, "wait_for('raised')", COLLATERAL)
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.text) == ("worker:1", "ValueError: boom")
    assert result.first_failure.task == "worker:0"


def test_same_exception_in_all_tasks_is_one_cause() -> None:
    """The teardown finds worker:1 after its exception and before its exit."""
    waits = "import atexit\nif index == 1: atexit.register(lambda: (touch('raised'), time.sleep(600)))"
    result = failed(waits, "if index == 0: wait_for('raised')", "raise ValueError('boom')")
    assert result.cause is not None and result.cause.tasks == ("worker:0", "worker:1")
    assert result.cause.text.startswith("both workers failed: ValueError: boom")
    assert [task.end for task in result.tasks] == ["failed", "failed"]


def test_first_failure_follows_the_order_of_exits() -> None:
    """The other tasks exit as soon as worker:2 has, perhaps before the agent has reaped it."""
    first = "if index == 2:\n touch(f'first-{os.getpid()}'); sys.exit(12)\n"
    others = (
        "import glob\nwhile not (found := glob.glob('first-*')): pass\n"
        "def runs():\n"
        " try: stat = open('/proc/' + found[0][6:] + '/stat').read()\n"
        " except OSError: return False\n"
        " return stat.rpartition(')')[2].split()[0] not in 'ZX'\n"
        "while runs(): pass\nsys.exit(10 + index)\n"
    )
    result = failed(first, others, workers=3)
    assert result.first_failure is not None
    assert (result.first_failure.task, result.exit_code) == ("worker:2", 12)


def test_last_lines_are_in_the_result() -> None:
    words = "for n in range(100): print('line', n, flush=True)"
    result = failed(words, "raise ValueError('boom')", workers=1)
    assert result.first_failure is not None
    assert len(result.first_failure.lines) == 20
    assert result.first_failure.lines[-1] == result.first_failure.exception == "ValueError: boom"
    assert "line 99" in result.first_failure.lines


def test_known_failure_has_advice() -> None:
    result = failed("raise OSError(98, 'Address already in use')", workers=1)
    assert result.first_failure is not None
    assert "port was taken" in (result.first_failure.advice or "")


def test_teardown_ends_when_all_tasks_have_exited() -> None:
    """All tasks exit at SIGTERM, so the grace period is not used up."""
    leaves = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); touch(f'up-{index}')"
    fails = "if index == 0: wait_for('up-1'); sys.exit(3)"
    result = failed(leaves, fails, SLEEP, failure_grace=LONG)
    assert result.exit_code == 3
    assert [task.end for task in result.tasks] == ["failed", "stopped by orch"]


def test_exception_raised_by_the_stop_is_not_the_cause() -> None:
    """The failed connection was not to a peer, and a peer's SIGTERM handler raises."""
    refuses = (
        "if index == 0:\n wait_for('up-1')\n raise ConnectionRefusedError('database: Connection refused')"
    )
    handles = (
        "def handler(*_): raise RuntimeError('shutting down')\n"
        "signal.signal(signal.SIGTERM, handler); touch(f'up-{index}')"
    )
    with cluster(refuses, handles, SLEEP, failure_grace=LONG) as run:
        result = run.wait(check=False)
        assert "RuntimeError: shutting down" in run.log("worker:1").read_text()
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == ("worker:0", CauseKind.EXITED)


def test_lost_peer_is_not_blamed_on_an_exception_raised_by_the_stop() -> None:
    """worker:0 lost a peer, but worker:1 raised nothing before the stop."""
    loses = f"if index == 0:\n wait_for('up-1')\n {indented(COLLATERAL)}"
    handles = (
        "def handler(*_): raise RuntimeError('shutting down')\n"
        "signal.signal(signal.SIGTERM, handler); touch(f'up-{index}')"
    )
    with cluster(loses, handles, SLEEP, failure_grace=LONG) as run:
        result = run.wait(check=False)
        assert "RuntimeError: shutting down" in run.log("worker:1").read_text()
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == ("worker:0", CauseKind.EXITED)


def test_finished_peer_is_not_blamed_for_an_eof_error() -> None:
    breaks = (
        "if index == 0:\n"
        " import glob\n"
        " while not (found := glob.glob('gone-*')): time.sleep(0.005)\n"
        " while os.path.exists('/proc/' + found[0][5:]): time.sleep(0.005)\n"
        " raise EOFError('Compressed file ended')\n"
    )
    result = failed(breaks, "touch(f'gone-{os.getpid()}')")
    assert result.cause is not None
    assert (result.cause.task, result.cause.kind) == ("worker:0", CauseKind.EXITED)
    assert [task.end for task in result.tasks] == ["failed", "done"]


def test_handled_exception_does_not_hide_a_stopped_peer() -> None:
    """The stopped process is a child of the task's shell, which only waits."""
    fails = (
        "if index == 0:\n"
        " import traceback\n"
        " try: raise ValueError('tried again')\n"
        " except ValueError: traceback.print_exc()\n"
        " for n in range(20): print('step', n, flush=True)\n"
        " touch('up-0'); wait_for('go')\n"
        " print('UNAVAILABLE: Socket closed', file=sys.stderr, flush=True); os.abort()\n"
    )
    sleeps = "open('pid.new', 'w').write(str(os.getpid())); os.rename('pid.new', 'pid')"
    command = ["sh", "-c", f"{shlex.join(python(fails, sleeps, SLEEP))}; exit $?"]
    with Cluster(workers=2, command=command) as run:
        until(lambda: Path("pid").exists() and Path("up-0").exists())
        below = int(Path("pid").read_text())
        assert below not in task_pids(run)
        os.kill(below, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{below}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        Path("go").touch()
        result = run.wait(check=False)
        assert_gone([below])
    assert result.cause is not None and result.first_failure is not None
    assert (result.cause.task, result.cause.kind) == ("worker:1", CauseKind.STOPPED)
    assert (result.first_failure.task, result.first_failure.exception) == ("worker:0", None)


def test_timeout_applies_to_tasks_that_flood_their_progress() -> None:
    floods = "while True: os.write(int(os.environ['ORCH_PROGRESS_FD']), b'{}\\n' * 20000)"
    result = failed(floods, timeout="3s")  # enough time for both to start
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    assert [task.end for task in result.tasks] == ["stopped by orch"] * 2
