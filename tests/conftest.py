"""Gives each test its own state directory, without orch's variables and an activated environment; finds leftovers."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest
from forks import ForkServer
from kept import Kept
from pretend_machines import PROCESSES as MACHINES
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
    "gate", hypothesis.settings.get_profile("without_a_clock"), derandomize=True
)
hypothesis.settings.load_profile("without_a_clock")

# Processes that are exiting may take this long on a busy machine: an unused supervisor first finishes its imports.
_LAST_EXITS_S = 60.0
_LOOK_S = 0.01

# An activated environment's Python runs scripts, and need not have TensorFlow.
_NOT_OURS = frozenset(
    {"TF_CONFIG", "TF_GRPC_REUSE_PORT", "PORTSERVER_ADDRESS", "VIRTUAL_ENV", "CONDA_PREFIX", "GITHUB_ACTIONS"}
)

# All tests of a set run in the same test process: creating what they share costs more than most tests.
_TOGETHER = {
    **{
        f"tests/e2e/local/browser/{name}.py": "a browser"
        for name in ("test_page_in_browser", "test_real_pages")
    },
    "tests/security/test_another_user.py": "the live run of a user",
    "tests/e2e/local/examples/test_worker_records.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_training.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_data_files.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_data_sharing.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_history.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_kept_iterators.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_parameter_server.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_equal_losses.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_mesh.py": "TensorFlow",
    "tests/e2e/local/examples/test_worker_strategies.py": "TensorFlow",
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
            return _TOGETHER.get(file) or next(found, nodeid)

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
    for name in list(os.environ):
        if name.startswith("ORCH_") or name in _NOT_OURS:
            monkeypatch.delenv(name)
    directory = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    return directory


@pytest.fixture(autouse=True)
def nothing_left(state_dir: Path) -> Iterator[None]:
    """Fails a test that leaves a process: below this one, or anywhere with the test's state directory."""
    started, children = _started(), _own_children()
    lasting = {*ForkServer.pids, Kept.pid, *MACHINES}
    is_alone = children is not None and children <= lasting
    before = lasting if is_alone else {process.pid for process in _of_this_test(state_dir)}
    yield
    if children is not None and _own_children() == children and _started() == started:
        return  # to look at every process of the machine takes longer than most tests do
    left = [process for process in _of_this_test(state_dir) if process.pid not in before]
    deadline = time.monotonic() + _LAST_EXITS_S
    # The process that adopts an orphan may not reap it, so a zombie counts as gone.
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=_LOOK_S)
        left = [process for process in left if _lives(process)]
    told = [_description(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not told, f"left behind: {told}"


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


def _of_this_test(state_dir: Path) -> list[psutil.Process]:
    mark = os.fsencode(f"XDG_STATE_HOME={state_dir}\0")
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = {pid for pid in pids if _has_mark(pid, mark)} | set(_children(pids))
    return [process for pid in found - {os.getpid()} if (process := _running(pid)) is not None]


def _children(pids: set[int]) -> Iterator[int]:
    parents = {}
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        parents[pid] = int(stat.rpartition(b")")[2].split()[1])
    for pid in parents:
        below, above = pid, parents[pid]
        while above in parents and above != os.getpid():
            below, above = above, parents[above]
        # Kept.check() checks the children of the kept supervisor.
        if above == os.getpid() and below not in {*MACHINES, *ForkServer.pids, Kept.pid}:
            yield pid


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _running(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return process if _lives(process) else None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _description(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.cmdline()}"
    except psutil.Error:
        return str(process.pid)


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = str(fd.readlink())
        except OSError:
            continue  # the listing's own
    return found
