"""The plugin in an inner session: fixtures, reports of failed tests, assertions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from inner_session import BASE, base_of

import orchestrator.pytest_plugin.clusters  # noqa: F401  (pytester forgets what an inner session imports)

pytest_plugins = ["pytester"]

IMPORTS = """
import os
import pytest
from orchestrator.testing import assert_chief_checkpoint, assert_failed_first, assert_succeeded
# worker:1 fails only after the other task has printed its line.
FAILS = ["sh", "-c", '''
echo said by $ORCH_TASK
[ $ORCH_TASK = worker:1 ] || { : > $ORCH_RUN_DIR/said; exec sleep 600; }
until [ -e $ORCH_RUN_DIR/said ]; do sleep 0.05; done
exit 3
''']
SLEEPS = ["sleep", "600"]
"""


def ran(pytester: pytest.Pytester, text: str, *words: str) -> pytest.RunResult:
    pytester.makepyfile(IMPORTS + text)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", base_of(pytester), *words)


def test_runs_are_kept_in_directory_of_test(pytester: pytest.Pytester, state_dir: Path) -> None:
    ran(
        pytester,
        """
def test_finished(orch_cluster, tmp_path):
    first = orch_cluster(workers=2, command=["sh", "-c", "echo $ORCH_TASK $MINE"], env={"MINE": "it is"})
    second = orch_cluster(command=["false"])
    assert first.status().run.state == "succeeded"
    assert second.status().run.state == "failed"
    assert first.log("worker:1").read_text() == "worker:1 it is\\n"
    assert first.dir.parent == second.dir.parent == tmp_path / "orch"
    assert os.environ["XDG_STATE_HOME"].endswith("orch-state")
    assert assert_succeeded(first).run_id == first.id
    with pytest.raises(AssertionError):
        assert_succeeded(second)

def test_after_it(tmp_path):
    assert not os.environ["XDG_STATE_HOME"].endswith("orch-state")
    assert list(tmp_path.iterdir()) == []
""",
    ).assert_outcomes(passed=2)
    assert not state_dir.exists()
    state = pytester.path / BASE / "orch-state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert len(list((state / "orch/runs").iterdir())) == 2


def test_runs_inside_of_runs_are_counted(pytester: pytest.Pytester) -> None:
    ran(
        pytester,
        """
from orchestrator import UsageError

def test_depth(orch_cluster, monkeypatch):
    assert orch_cluster.run(os.getenv, ["ORCH_DEPTH"]) == ["1"]
    monkeypatch.setenv("ORCH_DEPTH", "3")
    with pytest.raises(UsageError, match="ORCH_DEPTH is 3"):
        orch_cluster.run(os.getenv, ["ORCH_DEPTH"])
    with pytest.raises(UsageError, match="ORCH_DEPTH is 3"):
        orch_cluster(command=["true"])
""",
    ).assert_outcomes(passed=1)


def test_report_of_failed_test_shows_its_runs(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        """
@pytest.fixture
def cluster(orch_cluster):
    return orch_cluster(workers=2, command=FAILS)

def test_failed(cluster):
    assert cluster.id == "the test's own"

@pytest.fixture
def broken(orch_cluster):
    orch_cluster(command=SLEEPS, wait=False).wait_ready()
    raise ValueError("the fixture's own")

def test_broken(broken):
    pass

def test_passed(cluster):
    print(cluster.id)
""",
        "-rA",
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_broken*",
            "*- orch run *",
            "its tasks have written nothing",
            "* is running:",
            "  worker:0: running, pid *",
            "*test_failed*",
            "E *the test's own*",
            "*- orch run *",
            "last lines of all tasks (2):",
            "  worker:? | said by worker:?",
            "* failed after *",
            "  other tasks    worker:0: stopped by orch",
            "orch: worker:1 failed: exit 3",
            "run directory: *",
            "all its lines: XDG_STATE_HOME=*/orch-state orch logs *",
        ]
    )
    assert str(result.stdout).count("- orch run ") == 2


def test_summary_has_whole_causes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's own summary cuts a line at the width of the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    words = "the data set has 1797 examples, which 4 workers with 512 examples each cannot share"
    result = ran(
        pytester,
        f"""
def test_failed(orch_cluster):
    program = 'raise ValueError("{words}")'
    assert_succeeded(orch_cluster(command=["python3", "-c", program]))

def test_passed(orch_cluster):
    orch_cluster(command=["false"])
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    summary = str(result.stdout).partition(" orch runs of failed tests ")[2].splitlines()
    assert [line.rstrip() for line in summary[1:4]] == [
        "test_summary_has_whole_causes.py::test_failed",
        "  worker:0 failed: ValueError: the data set has 1797 examples, which 4 workers",
        "  with 512 examples each cannot share (<string>:1)",
    ]


def test_live_runs_are_stopped_at_end_of_test(pytester: pytest.Pytester) -> None:
    """With both fixtures. Other fixtures of the test may still use the run in their teardown."""
    ran(
        pytester,
        """
runs = []

@pytest.fixture
def user(orch_cluster):
    runs.append(orch_cluster(workers=2, command=SLEEPS, wait=False))
    yield
    assert runs[-1].status().run.state in ("starting", "running")

def test_a(user, orch_cluster):
    runs.append(orch_cluster(command=SLEEPS, wait=False))
    assert all(run.view.is_live for run in runs)

def test_b(orch_preloaded):
    assert [run.wait(timeout_s=0, check=False).outcome for run in runs] == ["stopped", "stopped"]
    runs.append(orch_preloaded(command=SLEEPS, wait=False))
    runs[-1].wait_ready()

def test_c(orch_preloaded):
    assert runs[-1].wait(timeout_s=0, check=False).outcome == "stopped"
    runs.append(orch_preloaded(command=["true"]))
    assert_succeeded(runs[-1])
    assert runs[-1].view.record.supervisor_pid == runs[-2].view.record.supervisor_pid
    assert "PYTEST_CURRENT_TEST" in os.environ
""",
    ).assert_outcomes(passed=3)


def test_preloaded_modules_are_kept_between_tests(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("look.py").write_text("import decimal")
    ran(
        pytester,
        """
import json
seconds = []

@pytest.mark.parametrize("times", [1, 2])
def test_it(orch_preloaded, times, tmp_path):
    run = orch_preloaded(workers=2, command=["look.py"], preload="decimal")
    assert_succeeded(run)
    assert run.dir.parent == tmp_path / "orch"
    events = map(json.loads, run.view.paths.events.read_text().splitlines())
    seconds.extend(event["seconds"] for event in events if event["type"] == "preloaded")
    assert len(seconds) == times and seconds[0] > 0 and not any(seconds[1:])
""",
    ).assert_outcomes(passed=2)


def test_default_time_limit_of_runs(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\norch_timeout = 300ms\n")
    ran(
        pytester,
        """
def test_default(orch_cluster):
    assert orch_cluster(command=SLEEPS).wait(check=False).outcome == "timed_out"

def test_own(orch_cluster):
    assert orch_cluster(command=["sleep", "1"], timeout="5m").wait(check=False).outcome == "succeeded"
    assert orch_cluster(command=["sleep", "1"], timeout=None).wait(check=False).outcome == "succeeded"
""",
    ).assert_outcomes(passed=2)


def test_invalid_arguments_fail_test_and_start_nothing(
    pytester: pytest.Pytester,
) -> None:
    result = ran(
        pytester,
        """
def test_option(orch_cluster):
    orch_cluster(worker=2)

def test_command(orch_preloaded):
    orch_preloaded(command=["no-such-command"])
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*UsageError: unknown option*", "*UsageError: *no-such-command*"])


def test_plugin_imports_lazily() -> None:
    program = "import sys, orchestrator.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] in ("orchestrator", "pydantic")}
    assert loaded == {"orchestrator", "orchestrator.pytest_plugin"}
