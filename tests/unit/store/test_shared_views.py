"""Several threads use one run: wait() in one, down() in another, status() in a third."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from making import event
from run_records import make_run, one_task, view_of

from orchestrator.client.api import Run
from orchestrator.core.errors import RunLost
from orchestrator.core.state import events
from orchestrator.store.files import SharedFile
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.reader import RunView

_EVENTS = 3_000


@pytest.fixture(autouse=True)
def _hasty_threads() -> Iterator[None]:
    """Switch threads so often that every race occurs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], object]) -> None:
    """Call each function in its own thread and raise the first error."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def test_overlapping_users_share_one_file(tmp_path: Path) -> None:
    """The last user still sees the same run after its directory was moved."""
    store = make_run()
    view = view_of(store.paths)
    with ExitStack() as stays:
        with ExitStack() as leaves:
            leaves.enter_context(view.keep_open())
            stays.enter_context(view.keep_open())
            store.paths.root.rename(tmp_path / "moved")
        for each in one_task(5.0):
            store.append(each)
        view.refresh()
        assert view.state.tasks["worker:0"].phase == "running"
        assert view.liveness is Liveness.LIVE
    store.close()


def test_file_is_closed_by_its_last_user(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = SharedFile(path)
    with file.opened() as missing:
        assert missing == -1
        path.write_text("text")
        with file.opened() as fd, file.opened() as same, file.if_open() as kept:
            assert fd == same == kept
            assert os.pread(fd, 9, 0) == b"text"
        assert os.pread(fd, 9, 0) == b"text"
    with pytest.raises(OSError):
        os.fstat(fd)
    with file.if_open() as kept:
        assert kept == -1


def test_each_event_is_returned_to_one_thread() -> None:
    store = make_run()
    view = view_of(store.paths)
    texts: list[str] = []
    all_written = threading.Event()

    def look() -> None:
        last = False
        while not last:
            last = all_written.is_set()
            with view.keep_open():
                texts.extend(each.text for each in view.refresh() if isinstance(each, events.Noticed))
                assert view.liveness is Liveness.LIVE

    def write() -> None:
        try:
            for number in range(_EVENTS):
                store.append(event(events.Noticed, number + 1.0, text=str(number)))
        finally:
            all_written.set()

    at_once(look, look, look, write)
    store.close()
    assert sorted(map(int, texts)) == [*range(_EVENTS)]
    assert len(view.state.notices) == _EVENTS


def test_wait_and_status_work_in_several_threads() -> None:
    """The run is live until its store is closed; then each waiting thread gets RunLost."""
    store = make_run()
    for each in one_task(5.0):
        store.append(each)
    run = Run(view_of(store.paths))
    all_looked = threading.Barrier(3)

    def wait() -> None:
        with pytest.raises(TimeoutError):
            run.wait(0)
        all_looked.wait()
        with pytest.raises(RunLost):
            run.wait()

    def look() -> None:
        for _ in range(200):
            status = run.status()
            assert (status.run.state, status.tasks[0].state) == ("running", "running")
        all_looked.wait()
        store.close()

    at_once(wait, wait, look)
    assert isinstance(run.view, RunView) and run.view.liveness is Liveness.DEAD
