"""Which task the others wait for: from stacks of real clusters (samples/), and from made-up evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.diagnosis.hangs import describe_place, find_blocking_task
from orchestrator.core.diagnosis.stack_text import shortened, to_task_stack
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import TaskStack
from worker.wire.messages import Stacked

SAMPLES = Path(__file__).parent / "samples"
_NAME = re.compile(r"(?P<what>[a-z]+)-\d-worker-(?P<index>\d)-(?P<state>.)\.(?P<how>.*)\.txt")

EXECUTES = "tensorflow/python/eager/execute.py:53 quick_execute"
IN_A_COLLECTIVE = (EXECUTES, "keras/src/trainer.py:1 fit", "train.py:9 main")
IN_USER_CODE = ("threading.py:324 wait", "train.py:31 load_data", "train.py:9 main")


def sample(name: str) -> Stacked:
    match = _NAME.fullmatch(name)
    assert match
    return Stacked(
        native=False,
        task=f"worker:{match['index']}",
        how="signal" if match["how"] == "faulthandler" else "py-spy",
        state=match["state"],
        text=(SAMPLES / name).read_text(),
    )


def cluster(what: str, but: str = "") -> dict[str, TaskStack]:
    """The stacks of a recorded cluster: each task's own dump, or the one taken by `but` if it has none."""
    names = sorted(path.name for path in SAMPLES.glob(f"{what}-*"))
    own = {sample(name).task: name for name in names if "faulthandler" in name}
    other = {sample(name).task: name for name in names if but and name.endswith(f"{but}.txt")}
    return {task: to_task_stack(sample(name)) for task, name in sorted((own | other).items())}


def test_stuck_worker_of_real_clusters_is_named() -> None:
    """It is named whichever way its stack was taken."""
    alone, others = "while the other one waits in TensorFlow", "while the others wait in TensorFlow"
    rows = [
        ("sleep", "", 2, f"in on_train_batch_end (train.py:29), {alone}"),
        ("sleep", "py-spy", 2, f"in Stuck.on_train_batch_end (train.py:29), {alone}"),
        ("generator", "", 3, f"in wait_for_storage (train.py:21), {others}"),
        ("generator", "py-spy", 3, f"in wait_for_storage (train.py:21), {others}"),
        ("lock", "", 3, f"in take_twice (train.py:41), {others}"),
        ("native", "", 2, f"in lock_twice_in_c (train.py:48), {alone}"),
        ("native", "py-spy-native", 2, f"in lock_twice_in_c (train.py:48), {alone}"),
        ("stop", "py-spy", 3, "stopped by SIGSTOP"),
    ]
    wrong = {}
    for what, but, count, why in rows:
        stacks = cluster(what, but)
        read = [stack for stack in stacks.values() if stack.frames and stack.note is None]
        found = len(read), *find_blocking_task(stacks, dict.fromkeys(stacks, 5.0), {})
        if found != (count, "worker:1", why) or len(stacks) != count:
            wrong[what, but] = found
    assert not wrong, wrong


def test_frames_of_real_clusters() -> None:
    """The innermost one of the main thread is first; a cut says how many are left out. Those of the bootstrap are not
    shown and not counted."""
    in_thread = cluster("generator")["worker:1"].frames
    assert in_thread[:2] == ("train.py:21 wait_for_storage", "train.py:16 load_data")
    assert "(called by TensorFlow in a thread of its own; the main thread:)" in in_thread
    assert in_thread[-1] == "train.py:56 <module>" and len(in_thread) == 12
    frames = cluster("sleep")["worker:0"].frames
    assert frames[0] == EXECUTES
    keras = "keras/src/utils/traceback_utils.py:117 error_handler"
    assert frames[8:] == ("... 2 more frames ...", keras, "train.py:53 main", "train.py:56 <module>")
    native = cluster("native", "py-spy-native")["worker:1"].frames
    assert "pthread_mutex_lock" in native[0] + native[1] and native[0].split()[0].startswith("lib")
    user = ("train.py:48 lock_twice_in_c", "train.py:35 Stuck.on_train_batch_end")
    assert native[4:7] == ("... 3 more frames ...", *user)
    more = ("... 3 more frames ...", "train.py:60 main", "train.py:63 <module>", "... 1 more frame ...")
    assert native[-4:] == more


def stack(frames: tuple[str, ...] = (), state: str = "S") -> TaskStack:
    return TaskStack(how="signal" if frames else "none", state=state, frames=frames)


def steps(*told: int | None, epoch: int = 1, steps_per_s: float | None = None) -> dict[str, Progress]:
    progress = [Progress(epoch=epoch, step=step, steps_per_s=steps_per_s) for step in told]
    return {f"worker:{index}": each for index, each in enumerate(progress)}


def three(first: TaskStack, second: TaskStack, third: TaskStack) -> dict[str, TaskStack]:
    return {"worker:0": first, "worker:1": second, "worker:2": third}


WAITS, WORKS, SILENT = stack(IN_A_COLLECTIVE), stack(IN_USER_CODE), stack()
STOPPED = stack(IN_A_COLLECTIVE, "T")
ALL_WAIT = three(WAITS, WAITS, WAITS)


def test_order_of_the_evidence() -> None:
    quiet_1 = {"worker:0": 9.0, "worker:1": 5.0, "worker:2": 5.0}
    silent_first = {"worker:0": 5.0, "worker:1": 5.0, "worker:2": 10.2}
    loads = "in load_data (train.py:31)"
    in_tensorflow = "in TensorFlow, called from main (train.py:9)"
    Row = tuple[dict[str, TaskStack], dict[str, float], dict[str, Progress], str | None, str | None]
    rows: list[Row] = [
        # A stopped task is named first.
        (three(WORKS, WAITS, STOPPED), {"worker:0": 9.0}, steps(1, 2, 3), "worker:2", "stopped by SIGSTOP"),
        (three(WAITS, STOPPED, STOPPED), {}, {}, "worker:1", "stopped by SIGSTOP, as is worker:2"),
        (three(STOPPED, STOPPED, STOPPED), {}, {}, None, "all tasks are alike, stopped by SIGSTOP"),
        (three(WAITS, WAITS, stack(state="Z")), {}, {}, "worker:2", "ended"),
        (three(WAITS, stack(state="t"), WAITS), {}, {}, "worker:1", "stopped by a debugger"),
        # Next comes a task that is not in TensorFlow.
        (
            three(WAITS, WORKS, WAITS),
            quiet_1,
            steps(1, 2, 2),
            "worker:1",
            f"{loads}, while the others wait in TensorFlow",
        ),
        # Of several such tasks, the one with the fewest steps is named.
        (
            three(WORKS, WORKS, WAITS),
            *({}, steps(5, 4, 5), "worker:1"),
            f"it and 1 more are not in TensorFlow as the others are; it is {loads}; it is at step 4, the other one is"
            " at step 5",
        ),
        # If all are in TensorFlow, the steps count.
        (ALL_WAIT, {}, steps(20, 19, 20), "worker:1", "it is at step 19, the others are at step 20"),
        (ALL_WAIT, {}, steps(19, 19, 20), "worker:0", "it and 1 more are at step 19, others at step 20"),
        (ALL_WAIT, {}, steps(20, None, 20), None, f"all tasks are alike, {in_tensorflow}"),
        (three(SILENT, SILENT, SILENT), {}, steps(None, None, 3), None, "all tasks are alike"),
        # With equal steps, the longest silence counts.
        (
            *(ALL_WAIT, silent_first, steps(20, 20, 20), "worker:2"),
            f"it was silent first, 5.2 s before the others; {in_tensorflow}",
        ),
        (ALL_WAIT, {"worker:0": 5.0, "worker:1": 5.0, "worker:2": 5.4}, {}, None, None),
        # A task without a stack can be named, too.
        ({"worker:0": SILENT}, {"worker:0": 5.0, "worker:1": 9.0}, {}, "worker:1", None),
        # A task that is usually silent is named only if it is stopped.
        ({"worker:0": WAITS, "evaluator:0": WORKS}, {"worker:0": 5.0}, {}, "worker:0", None),
        ({"worker:0": WAITS, "ps:0": STOPPED}, {"worker:0": 5.0}, {}, "ps:0", "stopped by SIGSTOP"),
        ({"worker:0": WORKS}, {"worker:0": 5.0}, {}, "worker:0", loads),
        ({}, {}, {}, None, "all tasks are alike"),
    ]
    for number, (stacks, quiet_s, progress, task, why) in enumerate(rows):
        found, words = find_blocking_task(stacks, quiet_s, progress)
        assert (found, words) == (task, why or words) and words, f"row {number}"


def test_steps_that_are_compared() -> None:
    """A lag of one counts only for slow steps. Another epoch is named."""
    for first, speed, task in ((118, 100.0, None), (120, 0.5, "worker:0")):
        progress = steps(first, 121, 121, steps_per_s=speed)
        assert find_blocking_task(ALL_WAIT, {}, progress)[0] == task
    progress = steps(3, 70, 3, epoch=2) | {"worker:1": Progress(epoch=1, step=70)}
    why = "it is at epoch 1 step 70, the others are at epoch 2 step 3"
    assert find_blocking_task(ALL_WAIT, {}, progress) == ("worker:1", why)


def test_user_library_is_named_with_its_caller() -> None:
    frames = ("requests/sessions.py:703 send", "train.py:31 load_data", "train.py:9 main")
    place = "in send (requests/sessions.py:703), called from load_data (train.py:31)"
    assert describe_place(stack(frames)) == place


def test_four_native_frames_are_kept_and_python_frames_beside_them() -> None:
    for native, left_out in ((4, []), (5, ["... 1 more frame ..."])):
        frames = [f"libc.so.6 function_{at}" for at in range(native)]
        told = shortened(frames + [f"train.py:{at} f" for at in range(20)])
        assert [frame for frame in told[:6] if not frame.startswith("train.py")] == [*frames[:4], *left_out]
    # Native frames with a source are those of an interpreter that was built with what debuggers need.
    sources = (f"callproc.c:{line} call_function" for line in range(900, 920))
    for native_frames in (("libc.so.6 lock", *sources), tuple(f"libtf.so.2 f_{at}" for at in range(21))):
        told = shortened((*native_frames, "train.py:10 hang_in_c", "train.py:9 main"))
        python = ("... 17 more frames ...", "train.py:10 hang_in_c", "train.py:9 main")
        assert tuple(told) == (*native_frames[:4], *python)
        assert (
            describe_place(stack((*native_frames, "train.py:10 hang_in_c"))) == "in hang_in_c (train.py:10)"
        )


def answer(text: str, how: str = "signal") -> Stacked:
    return Stacked("worker:0", False, how, state="S", text=text)  # type: ignore[arg-type]


def test_dumps_that_faulthandler_has_cut() -> None:
    """After a hundred threads, or the outermost of a hundred frames."""
    thread = 'Thread 0x00007f00 (most recent call first):\n  File "/a/train.py", line 3 in work\n\n'
    cut = to_task_stack(answer(thread * 3 + "...\n"))
    assert cut.frames == () and cut.note == "its text holds no stack of a main thread"
    frames = '  File "/home/ann/my train.py", line 3 in recurse\n' * 100
    told = to_task_stack(answer(f"Current thread 0x00007f00 (most recent call first):\n{frames}  ...\n"))
    assert told.frames[0] == "my train.py:3 recurse"
    assert told.frames[8] == "... 90 more frames ..." and told.frames[-1] == "..."
    assert describe_place(told) == "in recurse (my train.py:3)"


PIECES = """\
Current thread 0x00007fde3e595040 (most recent call first):
Thread 0x00007f588bf9f6c0 (most recent call first):
Thread 14118 (idle): "MainThread"
Thread 14373 (active)
  File "/usr/lib/python3.11/threading.py", line 975 in run
  File "/v/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute
  File "/v/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 269 in __call__
  File "", line ??? in x
    0x7fd034edff16 (libc.so.6)
    main (train.py:53)
    (:3)
  ...
...
"""
PARTS = st.sampled_from(PIECES.split("\n")) | st.text()
TEXTS = st.text() | st.lists(PARTS, max_size=40).map("\n".join)
NAMES = st.sampled_from(["worker:0", "worker:1", "worker:2", "chief:0"])
COUNTS = st.none() | st.integers(-(2**63), 2**63 - 1)
PROGRESS = st.builds(Progress, epoch=COUNTS, step=COUNTS, steps_per_s=st.none() | st.floats())
HOWS = st.tuples(TEXTS, st.sampled_from(["signal", "py-spy", "none"]), st.none() | st.text(max_size=2))


@given(
    st.dictionaries(NAMES, HOWS),
    st.dictionaries(NAMES, st.floats(allow_nan=True)),
    st.dictionaries(NAMES, PROGRESS),
)
def test_any_text_is_parsed_and_a_named_task_is_among_the_requested(
    texts: dict[str, tuple[str, str, str | None]], quiet_s: dict[str, float], progress: dict[str, Progress]
) -> None:
    stacks = {}
    for task, (text, how, state) in texts.items():
        told = stacks[task] = to_task_stack(replace(answer(text, how), state=state))
        assert len(told.frames) <= 12 and (told.frames or told.note or how == "none")
        describe_place(told)
    named, why = find_blocking_task(stacks, quiet_s, progress)
    assert (named is None or named in stacks or named in quiet_s) and why
