"""Functions of a test that every task calls: orch_cluster.run and orch_preloaded.run."""

from __future__ import annotations

import pytest
from inner_session import base_of

import orchestrator.client.functions
import orchestrator.pytest_plugin.clusters  # noqa: F401  (pytester forgets what an inner session imports)

pytest_plugins = ["pytester"]

TESTS = """
import os
import pytest

SHARED = {"rate": 2}

class Failed(Exception):
    pass

@pytest.fixture(params=["orch_cluster", "orch_preloaded"])
def clusters(request):
    return request.getfixturevalue(request.param)

def index():
    assert "PYTEST_CURRENT_TEST" not in os.environ
    return int(os.environ["ORCH_TASK"][-1]) * SHARED["rate"]

def test_values(clusters, tmp_path):
    def offset(start):
        return start + index()

    assert clusters.run(offset, (10,), workers=2) == [10, 12]
    assert clusters.run(lambda: os.environ["ORCH_RUN_DIR"])[0].startswith(str(tmp_path / "orch"))

def test_exception(clusters):
    def fail():
        raise Failed("in the task")

    with pytest.raises(Failed, match="in the task"):
        clusters.run(fail, workers=2)

def test_assertion(orch_cluster):
    def compares():
        print("from", os.environ["ORCH_TASK"])
        left = [1, 2, 3]
        assert left == [1, 2, 4]

    orch_cluster.run(compares)
"""


@pytest.mark.parametrize("mode", [pytest.param("prepend", marks=pytest.mark.slow), "importlib"])
def test_functions_of_a_test(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(TESTS)
    words = ("-p", "no:cacheprovider", "-p", "no:xdist", f"--import-mode={mode}", base_of(pytester))
    result = pytester.runpytest_inprocess(*words)
    result.assert_outcomes(passed=4, failed=1)
    # pytest's own comparison, although the assertion was in another process; and the lines of the run.
    result.stdout.fnmatch_lines(["*AssertionError: assert [[]1, 2, 3] == [[]1, 2, 4]"])
    result.stdout.fnmatch_lines(["*raised by compares() in worker:0*"])
    result.stdout.fnmatch_lines(["*orch run *", "*worker:0 | from worker:0"])
