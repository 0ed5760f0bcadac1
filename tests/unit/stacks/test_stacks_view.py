"""The stacks of tasks as text for users."""

from __future__ import annotations

from unicodedata import category

from hypothesis import given
from hypothesis import strategies as st
from making import cause, run_result

from orchestrator.client.view.report import end_lines
from orchestrator.client.view.stacks import stack_lines
from orchestrator.core.state.result import CauseKind, TaskStack

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


ODD = st.text(st.characters(codec="utf-8"), max_size=40)


STACKS = st.builds(
    TaskStack,
    how=st.sampled_from(["signal", "none"]),
    state=st.none() | st.sampled_from("RSTtDZ"),
    frames=st.lists(ODD, max_size=12).map(tuple),
    note=st.none() | ODD,
    file=st.none() | ODD,
)


@given(st.dictionaries(st.sampled_from(["worker:0", "worker:1", "ps:0"]), STACKS), st.integers(1, 200))
def test_control_codes_in_stacks_are_removed(stacks: dict[str, TaskStack], width: int) -> None:
    for line in stack_lines(stacks, width):
        assert all(category(character) != "Cc" for character in line.replace("\t", " "))


def test_narrow_terminal_cuts_frames_on_the_left_and_never_the_path() -> None:
    frame = "tensorflow/python/eager/polymorphic_function/concrete_function.py:1322 _call_flat"
    stack = TaskStack(how="signal", state="S", frames=(frame,), file="/run/of/somebody/stacks/worker-0.txt")
    assert stack_lines({"worker:0": stack}, 40)[-2:] == [
        "    …oncrete_function.py:1322 _call_flat",
        "    all threads: /run/of/somebody/stacks/worker-0.txt",
    ]
