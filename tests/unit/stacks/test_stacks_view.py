"""The stacks of tasks as text for users, and their whole texts in files."""

from __future__ import annotations

import os
from pathlib import Path
from unicodedata import category

from making import cause, run_result

from orchestrator.client.view.report import end_lines
from orchestrator.client.view.stacks import stack_lines
from orchestrator.core.diagnosis.stack_text import to_task_stack
from orchestrator.core.state.result import CauseKind, TaskStack
from orchestrator.store.directory import Directory
from orchestrator.store.runs.task_files import append_stacks, read_stacks
from worker.wire.messages import Stacked

FRAMES = ("tensorflow/python/eager/execute.py:53 quick_execute", "train.py:9 main")


def waiting(index: int) -> TaskStack:
    return TaskStack(how="signal", state="S", frames=FRAMES, file=f"/run/stacks/worker-{index}.txt", length=9)


def workers(*stacks: TaskStack) -> dict[str, TaskStack]:
    return {f"worker:{index}": stack for index, stack in enumerate(stacks)}


def test_tasks_with_the_same_stack_are_grouped() -> None:
    stopped = TaskStack(how="py-spy", state="T", frames=("train.py:9 main",))
    assert stack_lines(workers(waiting(0), stopped, waiting(2)), None) == [
        "worker:0 and worker:2: in TensorFlow, called from main (train.py:9)",
        "    tensorflow/python/eager/execute.py:53 quick_execute",
        "    train.py:9 main",
        "    all threads: /run/stacks/worker-0.txt and 1 more",
        "worker:1: stopped by SIGSTOP",
        "    train.py:9 main",
    ]
    none = TaskStack(how="none", state="S", note="it is not a Python program; 1 thread")
    assert stack_lines({"chief:0": none}, None) == ["chief:0: not known", f"    ({none.note})"]
    assert stack_lines({}, 80) == []
    shown = [stack_lines(workers(*map(waiting, range(count))), None)[0] for count in (4, 5)]
    together = "worker:0, worker:1, worker:2 and"
    assert [line.split(": in")[0] for line in shown] == [f"{together} worker:3", f"{together} 2 others"]


def test_report_of_a_time_limit_shows_stacks_before_the_cause() -> None:
    stacks = workers(waiting(0), TaskStack(how="none", state="T"))
    stopped = cause(1, "stopped by SIGSTOP", CauseKind.STOPPED)
    result = run_result("timed_out", run_id="digits-1", cause=stopped, stacks=stacks)
    lines = end_lines(result, 60, colour=False)
    where = "worker:0: in TensorFlow, called from main (train.py:9)"
    assert lines[:2] == ["what the tasks were doing:", where]
    shown = "worker:1: stopped by SIGSTOP"
    assert lines[-3:] == [shown, "orch: digits-1 timed out", f"orch: {shown}"]


def test_control_codes_in_stacks_are_removed() -> None:
    evil = "\x1b]0;owned\x07/a\r\nb\x9b2J"
    stack = TaskStack(how="signal", state="S", frames=(evil, "a.py:1 f"), note=evil, file=evil)
    for width in (1, 20, 200, None):
        lines = stack_lines({"worker:0": stack}, width)
        assert lines and not any(category(character) == "Cc" for line in lines for character in line)


def test_narrow_terminal_cuts_frames_on_the_left_and_never_the_path() -> None:
    frame = "tensorflow/python/eager/polymorphic_function/concrete_function.py:1322 _call_flat"
    stack = TaskStack(how="signal", state="S", frames=(frame,), file="/run/of/somebody/stacks/worker-0.txt")
    assert stack_lines({"worker:0": stack}, 40)[-2:] == [
        "    …oncrete_function.py:1322 _call_flat",
        "    all threads: /run/of/somebody/stacks/worker-0.txt",
    ]


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
