"""Uncaught exceptions that tasks write, and other contents of these files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.core.diagnosis.symptoms import Uncaught
from orchestrator.store.directory import Directory
from orchestrator.store.runs.task_files import read_exception, write_traceback

DOCUMENT = {
    "type": "builtins.ValueError",
    "message": "boom\nand more",
    "text": "Traceback ...",
    "at": "train.py:7",
}


def exception_in(path: Path) -> Uncaught | None:
    with Directory.at(path.parent) as run:
        return read_exception(run, path)


def test_exception_is_read_and_its_traceback_is_written(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    path.write_text(json.dumps(DOCUMENT | {"new": 1}))
    uncaught = exception_in(path)
    assert uncaught is not None
    assert (uncaught.line, uncaught.text) == ("ValueError: boom", "Traceback ...")
    readable = tmp_path / "readable"
    with Directory.at(tmp_path) as run:
        assert write_traceback(uncaught, run, readable)
        assert not write_traceback(uncaught, run, tmp_path / "nowhere" / "readable")
    assert readable.read_text() == "Traceback ...\n" and readable.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type": 1}', '{"type": "A"}', "\udcff"])
def test_other_documents_are_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "worker-0.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert exception_in(path) is None


def test_pipes_directories_and_links_are_ignored_without_blocking(tmp_path: Path) -> None:
    assert exception_in(tmp_path / "absent") is None
    assert exception_in(tmp_path) is None
    os.mkfifo(tmp_path / "pipe")
    assert exception_in(tmp_path / "pipe") is None
    (tmp_path / "file").write_text(json.dumps(DOCUMENT))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert exception_in(tmp_path / "link") is None


def test_too_long_exception_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    path.write_text(json.dumps(DOCUMENT | {"text": "x" * (5 << 20)}))
    assert exception_in(path) is None


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    path.write_text(json.dumps(DOCUMENT | {"message": "caf\udce9"}))
    uncaught = exception_in(path)
    assert uncaught is not None and uncaught.line == "ValueError: caf?"
