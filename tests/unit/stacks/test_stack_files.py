"""The whole texts of stacks are saved and can be read back."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.diagnosis.stack_text import to_task_stack
from orchestrator.core.state.result import TaskStack
from orchestrator.store.directory import Directory
from orchestrator.store.runs.task_files import append_stacks, read_stacks
from worker.wire.messages import Stacked


def answer(text: str, file: str | None = None) -> Stacked:
    return Stacked("worker:0", False, "py-spy", text=text, file=file)


def stored(message: Stacked, file: Path) -> TaskStack:
    with Directory.at(file.parent.parent) as run:
        return append_stacks(to_task_stack(message), message.text, run, file)


def test_each_text_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "stacks" / "worker-0.txt"
    texts = ["first\n", "zweite Ä\n", "third"]
    kept = [stored(answer(text), file) for text in texts]
    assert [read_stacks(stack, file) for stack in kept] == texts
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert file.read_text().count("by py-spy:\n") == 3


def test_text_that_cannot_or_need_not_be_saved_is_left_out(tmp_path: Path) -> None:
    file, mine = tmp_path / "worker-0.txt", tmp_path / "mine"
    for message in (answer("text", file="/elsewhere"), answer("")):
        assert stored(message, file) == to_task_stack(message)
    assert not file.exists()
    mine.write_text("mine")
    file.symlink_to(mine)
    for place in (file, mine / "below"):
        assert stored(answer("text"), place) == to_task_stack(answer("text"))
    assert mine.read_text() == "mine"


def test_missing_text_is_none(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.txt"
    stack = stored(answer("text"), file)
    for changed in ({"file": None}, {"offset": -1}, {"offset": 1 << 70}, {"length": 0}):
        assert read_stacks(stack.model_copy(update=changed), file) is None
    file.write_text("")
    assert read_stacks(stack, file) is None
    file.unlink()
    # A pipe would never end, a link may lead to another user's secrets.
    secret, pipe, link = (tmp_path / name for name in ("id_rsa", "pipe", "link"))
    secret.write_text("hunter2")
    os.mkfifo(pipe)
    link.symlink_to(secret)
    stack = TaskStack(how="signal", file=str(secret), offset=0, length=7)
    assert [read_stacks(stack, place) for place in (file, pipe, link, tmp_path)] == [None] * 4
