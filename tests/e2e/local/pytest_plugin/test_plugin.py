"""The plugin in inner sessions: fixtures, functions, reports of failed tests. No cluster outlives a killed session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from waiting import until

_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) test_inner\.py::(\w+(?:\[\S+\])?)", re.MULTILINE)
# The start of a session takes several times as long on a busy machine.
_SESSION_STARTS_S = 200.0
pytestmark = pytest.mark.timeout(300)

# Tests that must fail are named so.
TESTS = '''
import json
import os
import pytest
from orchestrator.testing import assert_succeeded
# worker:1 fails only after the other task has printed its line.
FAILS = ["sh", "-c", """
echo said by $ORCH_TASK
[ $ORCH_TASK = worker:1 ] || { : > $ORCH_RUN_DIR/said; exec sleep 600; }
until [ -e $ORCH_RUN_DIR/said ]; do sleep 0.05; done
exit 3
"""]
SLEEPS = ["sleep", "600"]
SHARED = {"rate": 2}
runs, seconds = [], []

@pytest.fixture(params=["orch_cluster", "orch_preloaded"])
def clusters(request):
    return request.getfixturevalue(request.param)

# -- runs and their directories

def test_finished(orch_cluster, orch_preloaded, tmp_path):
    first = orch_cluster(workers=2, command=["sh", "-c", "echo $ORCH_TASK $MINE"], env={"MINE": "it is"})
    second = orch_preloaded(command=["false"])
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

def test_time_limit(orch_preloaded):
    limits = [orch_preloaded(command=["true"], **given) for given in ({}, {"timeout": "7m"}, {"timeout": None})]
    assert [run.view.record.spec["timeout_s"] for run in limits] == [240, 420, None]

# -- live runs are stopped at the end of their test; its other fixtures may still use them in their teardown

@pytest.fixture
def user(orch_cluster):
    runs.append(orch_cluster(workers=2, command=SLEEPS, wait=False))
    yield
    assert runs[-1].status().run.state in ("starting", "running")

def test_live(user, orch_cluster):
    runs.append(orch_cluster(command=SLEEPS, wait=False))
    assert all(run.view.is_live for run in runs)

def test_live_of_the_session(orch_preloaded):
    assert [run.wait(timeout_s=0, check=False).outcome for run in runs] == ["stopped", "stopped"]
    runs.append(orch_preloaded(command=SLEEPS, wait=False))
    runs[-1].wait_ready()

def test_next_of_the_session(orch_preloaded):
    assert runs[-1].wait(timeout_s=0, check=False).outcome == "stopped"
    runs.append(orch_preloaded(command=["true"]))
    assert_succeeded(runs[-1])
    assert runs[-1].view.record.supervisor_pid == runs[-2].view.record.supervisor_pid
    assert "PYTEST_CURRENT_TEST" in os.environ

@pytest.mark.parametrize("times", [1, 2])
def test_preloaded(orch_preloaded, times, tmp_path):
    run = orch_preloaded(workers=2, command=["look.py"], preload="decimal")
    assert_succeeded(run)
    assert run.dir.parent == tmp_path / "orch"
    events = map(json.loads, run.view.paths.events.read_text().splitlines())
    took = [event["seconds"] for event in events if event["type"] == "preload"]
    seconds.extend(each for each in took if each is not None)
    assert len(seconds) == times and seconds[0] > 0 and not any(seconds[1:])

# -- functions

def index():
    assert "PYTEST_CURRENT_TEST" not in os.environ
    return int(os.environ["ORCH_TASK"][-1]) * SHARED["rate"]

def test_values(clusters, tmp_path):
    def offset(start):
        return start + index()

    (zero, place), (two, _) = clusters.run(lambda: (offset(10), os.environ["ORCH_RUN_DIR"]), workers=2)
    assert (zero, two) == (10, 12) and place.startswith(str(tmp_path / "orch"))

def test_fails_by_an_assertion(orch_preloaded):
    def compares():
        print("from", os.environ["ORCH_TASK"])
        left = [1, 2, 3]
        assert left == [1, 2, 4]

    orch_preloaded.run(compares)

# -- failed tests

@pytest.fixture
def cluster(orch_preloaded):
    return orch_preloaded(workers=2, command=FAILS)

def test_fails_with_a_cluster(cluster):
    assert cluster.id == "the test's own"

def test_passes(cluster):
    print(cluster.id)

@pytest.fixture
def broken(orch_preloaded):
    orch_preloaded(command=SLEEPS, wait=False).wait_ready()
    raise ValueError("the fixture's own")

def test_broken(broken):
    pass

def test_fails_for_a_long_reason(orch_preloaded):
    words = "the data set has 1797 examples, which 4 workers with 512 examples each cannot share"
    assert_succeeded(orch_preloaded(command=["python3", "-c", f"raise ValueError('{words}')"]))

def test_fails_by_a_command(orch_preloaded):
    orch_preloaded(command=["no-such-command"])
'''
WAITS = """
def test_waits(orch_cluster, orch_preloaded):
    live = {fixture}(command=["sleep", "600"], wait=False)
    orch_cluster(workers=2, command=["sh", "-c", "touch {here}/up-$ORCH_TASK; exec sleep 600"])
"""
DIES = """
import os, signal

def test_dies(orch_cluster):
    orch_cluster(workers=2, command=["sleep", "600"], wait=False).wait_ready()
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it():
    pass
"""


@dataclass(frozen=True)
class Inner:
    """A finished session whose tests are in test_inner.py."""

    directory: Path
    out: str

    def part(self, start: str, end: str) -> str:
        """The output after a text and before the next one."""
        assert start in self.out, self.out
        return self.out.partition(start)[2].partition(end)[0]


@contextmanager
def session(directory: Path, text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a test file in an inner session, which is killed at the end of the block."""
    (directory / "test_inner.py").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    with subprocess.Popen(
        [*argv, f"--basetemp={directory / 'base'}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        # pytest's own summary cuts a line there.
        env={**os.environ, "COLUMNS": "80"},
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def processes_of(directory: Path) -> list[psutil.Process]:
    """The live processes that inner sessions in this directory have started."""
    mark = f"{directory / 'base'}/"
    found = psutil.process_iter(["environ"])
    return [each for each in found if (each.info["environ"] or {}).get("XDG_STATE_HOME", "").startswith(mark)]


@pytest.fixture(scope="module", params=["importlib", pytest.param("prepend", marks=pytest.mark.slow)])
def inner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Inner:
    directory = tmp_path_factory.mktemp("inner")
    (directory / "look.py").write_text("import decimal")
    (directory / "pytest.ini").write_text("[pytest]\norch_timeout = 4m\n")
    words = ("-p", "no:xdist", "-rA", f"--import-mode={request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "of the user"))
        with session(directory, TESTS, *words) as started:
            out, _ = started.communicate()
    until(lambda: not processes_of(directory))
    return Inner(directory, out)


def test_each_test_has_its_outcome(inner: Inner) -> None:
    names = re.findall(r"^def (test_\w+)\((.*)", TESTS, re.MULTILINE)
    more = {"clusters": ("[orch_cluster]", "[orch_preloaded]"), "orch_preloaded, times": ("[1]", "[2]")}
    expected = {}
    for name, parameters in names:
        ends = next((ends for start, ends in more.items() if parameters.startswith(start)), ("",))
        outcome = "ERROR" if name == "test_broken" else "FAILED" if "fails" in name else "PASSED"
        expected |= {name + end: outcome for end in ends}
    assert {name: outcome for outcome, name in _OUTCOME.findall(inner.out)} == expected, inner.out


def test_runs_are_kept_outside_of_the_state_directory_of_the_user(inner: Inner) -> None:
    assert not (inner.directory / "of the user").exists()
    state = inner.directory / "base/orch-state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert len(list((state / "orch/runs").iterdir())) > 10


# The texts in the report of a test, in this order.
REPORTS = {
    "test_broken": (
        r"- orch run ",
        r"its tasks have written nothing",
        r" is running:",
        r"  worker:0: running, pid ",
    ),
    "test_fails_with_a_cluster": (
        r"E .*the test's own",
        r"- orch run ",
        r"last lines of all tasks \(2\):",
        r"  worker:\d \| said by worker:\d",
        r" failed after ",
        r"  other tasks    worker:0: stopped by orch",
        r"orch: worker:1 failed: exit 3",
        r"run directory: ",
        r"all its lines: XDG_STATE_HOME=.*/orch-state orch logs ",
    ),
    # pytest's own comparison, although the assertion was in another process.
    "test_fails_by_an_assertion": (
        r"AssertionError: assert \[1, 2, 3\] == \[1, 2, 4\]",
        r"raised by compares\(\) in worker:0",
        r"- orch run ",
        r"worker:0 \| from worker:0",
    ),
    "test_fails_by_a_command": (r"UsageError: .*no-such-command",),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report_of_a_failed_test_shows_its_runs(inner: Inner, name: str) -> None:
    title = rf"\n_+ (?:ERROR at setup of )?{name} _+\n(.*?)\n(?:_+ [A-Za-z].* _+|=+ .* =+)\n"
    report = re.search(title, inner.out, re.DOTALL)
    assert report and re.search(".*".join(REPORTS[name]), report[1], re.DOTALL), inner.out
    assert report[1].count("- orch run ") == ("- orch run " in REPORTS[name])


def test_report_of_a_test_that_passed_does_not(inner: Inner) -> None:
    assert "- orch run " not in inner.part("_ test_passes _", "\n_")


def test_summary_has_whole_causes(inner: Inner) -> None:
    summary = inner.part(" orch runs of failed tests ", "\n=").splitlines()
    start = summary.index("test_inner.py::test_fails_for_a_long_reason")
    assert [line.rstrip() for line in summary[start + 1 : start + 3]] == [
        "  worker:0 failed: ValueError: the data set has 1797 examples, which 4 workers",
        "  with 512 examples each cannot share (<string>:1)",
    ]
    assert not any("test_finished" in line or "test_passes" in line for line in summary)


def test_plugin_imports_lazily() -> None:
    program = "import sys, orchestrator.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] in ("orchestrator", "pydantic")}
    assert loaded == {"orchestrator", "orchestrator.pytest_plugin"}


@pytest.mark.parametrize(
    ("number", "fixture", "code", "shown"),
    [
        (signal.SIGINT, "orch_cluster", 2, ""),
        # The signal of pytest-timeout.
        pytest.param(signal.SIGALRM, "orch_cluster", 1, "- orch run ", marks=pytest.mark.slow),
        (signal.SIGKILL, "orch_preloaded", -signal.SIGKILL, ""),
    ],
)
def test_clusters_end_with_a_session_that_gets_a_signal(
    tmp_path: Path, number: signal.Signals, fixture: str, code: int, shown: str
) -> None:
    text = WAITS.format(fixture=fixture, here=tmp_path)
    tasks = [tmp_path / f"up-worker:{index}" for index in (0, 1)]

    def has_started() -> bool:
        return all(task.exists() for task in tasks) or started.poll() is not None

    words = ("-p", "no:xdist", "--timeout", "600", "--timeout-method", "signal")
    with session(tmp_path, text, *words) as started:
        until(has_started, timeout_s=_SESSION_STARTS_S)
        assert started.poll() is None, started.communicate()
        assert processes_of(tmp_path)
        os.kill(started.pid, number)
        out, _ = started.communicate()
        assert (started.returncode, shown in out) == (code, True), out
        assert ("Timeout" in out) == (number == signal.SIGALRM)
        if number != signal.SIGKILL:
            # The fixtures have been closed.
            assert not processes_of(tmp_path)
    until(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_clusters_end_when_xdist_worker_is_killed(tmp_path: Path) -> None:
    with session(tmp_path, DIES, "-n", "1") as started:
        out, _ = started.communicate()
    assert "worker 'gw0' crashed" in out
    assert "1 failed, 1 passed" in out
    until(lambda: not processes_of(tmp_path))
