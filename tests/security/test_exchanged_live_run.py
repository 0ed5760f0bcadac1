"""In a shared --log-dir without the sticky bit, another user exchanges the directory of a live run for an ended one."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from acting_as import as_user, needs_root
from agent_driving import Driver, run_order
from making import JOB
from run_records import make_run
from users import ORDINARY, User
from waiting import until

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state.events import Event, StorageFailed
from orchestrator.engines.local import LocalEngine
from orchestrator.supervisor.agent_orders import Attempts
from orchestrator.supervisor.here import LocalAgent
from orchestrator.supervisor.hosts import HERE, Hosts
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask
from worker.wire.messages import Exited, Held, NotPreloaded, PreloadOrder, Stacked

OTHER = ORDINARY + 1
REFUSED = "another directory was put in the place of the run's"
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


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of all users without the sticky bit, which all users can reach."""
    place = Path(tempfile.mkdtemp(prefix="orch-shared-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def exchange(one: Path, other: Path) -> None:
    for old, new in ((one, aside := one.with_name("aside")), (other, one), (aside, other)):
        old.rename(new)


def contents(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


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
    (tmp_path / "script.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with Driver(run) as agent:
        identity = run.stat().st_dev, run.stat().st_ino
        agent.link.serve(run_order("run-1", run, directory=identity))
        bootstrap = {"stacks_file": str(run / "stacks/worker-0.txt")}
        argv = [sys.executable, str(tmp_path / "script.py")]
        agent.start("worker:0", argv, bootstrap=bootstrap)
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
