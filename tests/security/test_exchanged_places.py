"""In a directory that others may write to without the sticky bit, another user exchanges directories of the user.

orch is making, using or removing one of them at that moment.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from acting_as import as_user, needs_root
from agent_driving import Driver, run_order
from making import JOB, run_result
from run_records import make_run
from users import ORDINARY, User
from waiting import until

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state.events import Event, StorageFailed
from orchestrator.engines.local import LocalEngine
from orchestrator.host.directories import content_errors, write_error
from orchestrator.store.directory import Directory
from orchestrator.store.runs.lost_runs import remove_unpublished_in
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.prune_choice import PruneTerms
from orchestrator.store.runs.pruning import PruneReport, Scope, prune
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor.agent_orders import Attempts
from orchestrator.supervisor.here import LocalAgent
from orchestrator.supervisor.hosts import HERE, Hosts
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.messages import Exited, Held, NotPreloaded, PreloadOrder, Stacked

OTHER = ORDINARY + 1
RUN_ID = "job-20260101T000000Z-0000"
HIDDEN = f".{RUN_ID}.new"
REFUSED = "another directory was put in the place of the run's"
ActAt = Callable[..., None]


def contents(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of all users without the sticky bit. `own` belongs to the user of the tests and must not change."""
    place = Path(tempfile.mkdtemp(prefix="orch-shared-"))
    (place / "own/logs").mkdir(mode=0o700, parents=True)
    for name in ("file", "lock", "events.jsonl", "logs/worker-0.log"):
        (place / "own" / name).write_text("kept")
    (place / "own").chmod(0o700)
    place.chmod(0o777)
    inode, before = (place / "own").stat().st_ino, contents(place / "own")
    yield place
    (own,) = (path for path in place.iterdir() if path.stat().st_ino == inode)
    now = contents(own)
    shutil.rmtree(place)
    assert now == before


def exchange(one: Path, other: Path) -> None:
    for old, new in ((one, aside := one.with_name("aside")), (other, one), (aside, other)):
        old.rename(new)


def exchange_own(shared: Path, name: str) -> None:
    """Exchange the user's directory with another entry, as another user."""
    as_user(OTHER, lambda: exchange(shared / name, shared / "own"))


@pytest.fixture
def act_at(monkeypatch: pytest.MonkeyPatch) -> ActAt:
    """Let the other user act when a function of `os` is called for the `nth` time with a path that `matches`."""

    def act_at(
        function: str,
        matches: Callable[[str], bool],
        act: Callable[[str], None],
        nth: int = 1,
        after: bool = True,
    ) -> None:
        real, calls = getattr(os, function), 0

        def wrapper(path: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            name = Path(path).name if isinstance(path, str | os.PathLike) else ""
            calls += matches(name)
            is_now = matches(name) and calls == nth
            if is_now and not after:
                act(name)
            result = real(path, *args, **kwargs)
            if is_now and after:
                act(name)
            return result

        monkeypatch.setattr(os, function, wrapper)

    return act_at


def ended_run(log_dir: Path, *, with_checkpoints: bool = False) -> RunPaths:
    with closing(make_run(log_dir=log_dir)) as store:
        store.write_result(run_result(run_id=store.paths.run_id))
    if with_checkpoints:
        (store.paths.checkpoints / "model").write_text("kept")
    return store.paths


def prune_all(keep: int = 0) -> PruneReport:
    return prune(Scope(), PruneTerms(keep=keep), with_checkpoints=False, dry_run=False)


@needs_root
def test_pruned_run_that_is_exchanged_at_its_end(shared: Path, act_at: ActAt) -> None:
    run = ended_run(shared)
    act_at("unlink", "run.json".__eq__, lambda _: exchange_own(shared, f".{run.run_id}.gone"))
    (pruned,) = prune_all().pruned
    assert pruned.problem is not None and "was replaced by another directory" in pruned.problem


@needs_root
@pytest.mark.parametrize("moment", ["mkdir", "rename"])
def test_trimmed_files_that_are_moved_into_another_directory(
    shared: Path, act_at: ActAt, moment: str
) -> None:
    gone = f".{ended_run(shared, with_checkpoints=True).run_id}.gone"
    # The first file is renamed by descriptors of both directories, whose names no longer matter.
    at = gone if moment == "mkdir" else "events.jsonl"
    act_at(moment, at.__eq__, lambda _: exchange_own(shared, gone), after=moment == "mkdir")
    (pruned,) = prune_all().pruned
    assert pruned.problem is not None and "remove it yourself" in pruned.problem


@needs_root
def test_run_that_another_user_renames_as_one_that_is_being_removed(shared: Path) -> None:
    run = ended_run(shared, with_checkpoints=True)
    gone = shared / f".{run.run_id}.gone"
    as_user(OTHER, lambda: run.root.rename(gone))
    before = contents(gone)
    prune_all(keep=10)
    assert contents(gone) == before


@needs_root
def test_abandoned_run_that_is_exchanged_after_the_look_at_it(shared: Path, act_at: ActAt) -> None:
    (shared / HIDDEN).mkdir(mode=0o700)
    os.utime(shared / HIDDEN, (0, 0))
    act_at("open", HIDDEN.__eq__, lambda name: exchange_own(shared, name), nth=2, after=False)
    with Directory.shared(shared) as directory:
        remove_unpublished_in(directory)


@needs_root
def test_new_run_that_is_exchanged_before_it_is_opened(shared: Path, act_at: ActAt) -> None:
    act_at("mkdir", HIDDEN.__eq__, lambda name: exchange_own(shared, name))
    with pytest.raises(FileExistsError, match="another process put a directory with files in its place"):
        RunStore.create(RUN_ID, shared, None)


@needs_root
def test_new_run_that_is_exchanged_before_it_is_given_up(shared: Path, act_at: ActAt) -> None:
    def fail(_: str) -> None:
        exchange_own(shared, HIDDEN)
        raise OSError(errno.ENOSPC, "No space left on device")

    act_at("mkdir", "checkpoints".__eq__, fail)
    with pytest.raises(OSError, match="No space left on device"):
        RunStore.create(RUN_ID, shared, None)


@needs_root
@pytest.mark.parametrize("check", [write_error, content_errors])
def test_probe_of_a_directory_that_is_exchanged(
    shared: Path, act_at: ActAt, check: Callable[[Path], object]
) -> None:
    act_at("mkdir", lambda name: name.startswith(".orch-probe-"), lambda name: exchange_own(shared, name))
    assert check(shared)


def test_directory_that_is_shared_is_removed_by_its_identity_only(shared: Path) -> None:
    with Directory.shared(shared) as directory, pytest.raises(ValueError, match="others may exchange"):
        directory.remove_tree("own")


# Waits for the exchange, then fails in all ways that write a file.
SCRIPT = """
import os, threading, time
print("started", flush=True)
while not os.path.exists("exchanged"):
    time.sleep(0.005)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("after the exchange")
"""


@needs_root
def test_live_run_that_is_exchanged_writes_nothing_into_the_other(state_dir: Path, shared: Path) -> None:
    with User(ORDINARY, state_dir) as user:
        up = ("--workers", "1", "--log-dir", str(shared))
        ended = user.detached(*up, "--", "true").resolve()
        assert user("wait", ended.name).returncode == 0
        live = user.detached(*up, "--", user.script("script.py", SCRIPT)).resolve()
        user.until_logged(live, "started")
        before = contents(ended)
        as_user(OTHER, lambda: exchange(ended, live))
        user.script("exchanged", "")
        # The two have each other's names now.
        until((ended / "result.json").exists)
        assert contents(live) == before
        assert json.loads((ended / "result.json").read_text())["outcome"] == "failed"
        assert not (ended / "scratch").exists()


def test_agent_opens_no_file_in_a_directory_that_replaced_that_of_its_run(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for place in (run, other):
        for name in ("logs", "exceptions", "stacks"):
            (place / name).mkdir(mode=0o700, parents=True)
    for name in ("agent.log", "stacks/worker-0.txt"):
        (other / name).touch(0o600)
    argv = [sys.executable, "-c", "import time\nprint('up', flush=True)\ntime.sleep(600)"]
    with Driver(run) as agent:
        agent.link.serve(run_order("run-1", run, directory=(run.stat().st_dev, run.stat().st_ino)))
        agent.start("worker:0", argv, bootstrap={"stacks_file": str(run / "stacks/worker-0.txt")})
        agent.wait_for_line("worker:0")
        exchange(run, other)
        before = contents(run)
        agent.ask_stacks("worker:0")
        assert REFUSED in (agent.wait_for(Stacked).note or "")
        agent.start("worker:1", argv, log=str(run / "logs/worker-1.log"))
        assert REFUSED in (agent.wait_for(Exited).exit.start_error or "")
        agent.link.send(PreloadOrder((sys.executable,), {}, "/", ("json",), {}, str(run / "preloader.log")))
        assert REFUSED in agent.wait_for(NotPreloaded).reason
        agent.end()
    assert contents(run) == before


def test_supervisor_starts_nothing_in_a_directory_that_replaced_that_of_its_run(tmp_path: Path) -> None:
    other, queue = tmp_path / "other", deque[Event]()
    other.mkdir()
    with closing(make_run(log_dir=tmp_path)) as store:
        root = store.paths.root
        with RunLogs(store.directory.sub("logs"), ProgressThrottle()) as logs:
            tensorboard = TensorBoardTask(None, NetworkOption.HOST, store, queue)
            hosts = Hosts(JOB, LocalAgent(LocalEngine()))
            attempts = Attempts(JOB, hosts, store, logs, tensorboard, queue)
            hosts.serve(JOB, store)
            try:
                attempts.hold_ports(1, JOB)
                attempts.take_held(HERE, Held(1, (2001, 2002)))
                exchange(root, other)
                attempts.start_all()
            finally:
                hosts.end()
        assert isinstance(failed := queue[-1], StorageFailed)
        assert failed.reason == f"{root}: was moved or removed"
        assert [*root.iterdir()] == []
