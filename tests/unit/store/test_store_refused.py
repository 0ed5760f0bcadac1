"""A run's directory that cannot be created, published or cleaned up leaves no partial files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from run_records import make_run

from orchestrator.store.files import write_once
from orchestrator.store.runs.locks import is_held, lock_name
from orchestrator.store.runs.paths import names_dir, runs_dir
from orchestrator.store.runs.writer import new_run_id


def test_failed_link_to_the_run_leaves_no_run(tmp_path: Path) -> None:
    log_dir, run_id = tmp_path / "logs", new_run_id("job")
    runs_dir().mkdir(parents=True)
    (runs_dir() / run_id).write_text("somebody else's\n")
    with pytest.raises(FileExistsError):
        make_run(run_id=run_id, log_dir=log_dir, name_lock=lock_name("job"))
    assert list(log_dir.iterdir()) == []
    assert (runs_dir() / run_id).read_text() == "somebody else's\n"
    assert not is_held(names_dir() / "job")


def test_directory_in_place_of_the_control_socket_is_not_removed() -> None:
    store = make_run()
    (store.paths.control / "something").mkdir(parents=True)
    store.close()
    assert (store.paths.control / "something").exists()
    assert not is_held(store.paths.lock)


def test_write_once_does_not_replace_a_document(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert write_once(path, "the first")
    assert not write_once(path, "the second")
    assert path.read_text() == "the first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_write_once_works_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """This simulates vfat and some network file systems, which a test cannot mount."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "result.json"
    assert write_once(path, "the first")
    with pytest.raises(OSError, match=os.strerror(number)):
        write_once(path, "the second")
    assert path.read_text() == "the first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_closing_twice_does_not_close_another_descriptor() -> None:
    """Other files can have the same descriptor numbers when close() is called a second time."""
    store = make_run()
    store.close()
    others = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(8)]
    store.close()
    for fd in others:
        os.close(fd)
