"""Gives each test its own state directory, without orch's variables and an activated environment; finds leftovers."""

from __future__ import annotations

import functools
import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from forks import ForkServer
from kept import Kept
from lasting import LASTING
from leftover_processes import end_leftovers, processes_of
from orch_command import remove_variables
from terminal_signals import restore_terminal_signals

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["shared_fixtures"]
restore_terminal_signals()

# TensorFlow's servers are reached through a proxy unless no_proxy excludes this machine. orch sets that for its tasks;
# this sets it for the tasks that tests start without orch.
if any(os.environ.get(name) for name in ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")):
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "localhost", "127.0.0.1")))

# No deadlines, because the machine may be busy. The gate's examples are the same each time, so that a failure comes
# from the change; `scripts/test --all` draws new ones.
hypothesis.settings.register_profile(
    "without_a_clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile(
    "gate", hypothesis.settings.get_profile("without_a_clock"), derandomize=True, max_examples=30
)
hypothesis.settings.load_profile("without_a_clock")

# All tests of a set run in the same test process: creating what they share costs more than most tests.
_TOGETHER = {
    "tests/e2e/local/browser/test_page_in_browser.py": "a browser",
    "tests/e2e/local/browser/test_real_pages.py": "a browser",
    "tests/e2e/local/journeys/test_scripts.py": "TensorFlow",
    "tests/keras/test_scripts_under_orch.py": "TensorFlow",
    "tests/keras/test_training.py": "TensorFlow",
}
# Tests on pretend machines wait most of the time. Each set runs in one process, beside tests that compute.
_TOGETHER_BY_NAME = {"tests/e2e/slurm/": "machines with Slurm", "tests/e2e/hosts/": "machines"}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "not slow":
        hypothesis.settings.load_profile("gate")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With `--dist loadgroup`: each test by itself, but for those sets.

    The mark `xdist_group` counts for nothing with pytest 9.2, which lets no plugin change a test's id.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Sets(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            found = (name for start, name in _TOGETHER_BY_NAME.items() if file.startswith(start))
            return _TOGETHER.get(file) or next(found, file if _shares(file) else nodeid)

    @functools.cache
    def _shares(file: str) -> bool:
        """Whether the tests of this file share what a fixture of the module makes, such as a run."""
        return 'scope="module"' in (config.rootpath / file).read_text()

    return Sets(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, so that no test process is left with one at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_time_limit, reverse=True)


def pytest_collection_finish() -> None:
    """Exclude the collected tests and modules from garbage collections: they last as long as this process."""
    if "tensorflow" in sys.modules:
        raise pytest.UsageError(
            "a test module imports tensorflow; import it in a test: each process collects all"
        )
    gc.collect()
    gc.freeze()


def _time_limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of this test are kept; the variable also marks all its processes."""
    remove_variables(monkeypatch)
    directory = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    return directory


@pytest.fixture(autouse=True)
def nothing_left(state_dir: Path) -> Iterator[None]:
    """Fails a test that leaves a process: below this one, or anywhere with the test's state directory."""
    started, children = _started(), _own_children()
    lasting = {*ForkServer.pids, Kept.pid, *LASTING}
    is_alone = children is not None and children <= lasting
    before = lasting if is_alone else {process.pid for process in processes_of(state_dir)}
    yield
    if children is not None and _own_children() == children and _started() == started:
        return  # to look at every process of the machine takes longer than most tests do
    end_leftovers(state_dir, before)


@pytest.fixture
def no_leaked_descriptors() -> Iterator[None]:
    """Fails a test that leaves a descriptor open in this process."""
    before = _descriptors()

    def opened() -> dict[str, str]:
        return {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}

    yield
    left = opened()
    if left:  # a collection takes longer than most tests do
        gc.collect()
        left = opened()
    assert not left, f"left open: {left}"


def _started() -> tuple[float, ...]:
    """Changes when a child has been waited for, a fork server has started one, or the kept processes have got a run."""
    return (*resource.getrusage(resource.RUSAGE_CHILDREN), ForkServer.started, Kept.runs)


def _own_children() -> set[int] | None:
    """The children of this process, the ended among them; None where the kernel does not list them."""
    try:
        lists = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return None
    return {int(pid) for pid in " ".join(lists).split()}


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = str(fd.readlink())
        except OSError:
            continue  # the listing's own
    return found
