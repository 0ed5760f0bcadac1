"""Anything that a task prints or reports gives valid progress or none."""

from __future__ import annotations

import json
import os
import select
from types import SimpleNamespace
from typing import cast

from fuzzing import DEEP, any_text, as_json, damaged, documents, fuzzed, torn
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.progress.keras_lines import MAX_LINE_BYTES
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import parse_progress
from orchestrator.core.state.events import Progress, TaskProgressed, event_line, parse_event
from orchestrator.core.state.position import Course, position
from worker.agent.progress import ProgressInbox
from worker.agent.tasks import TaskProcess

LINES = [
    b"Epoch 3/10\n",
    "12/70 ━━━━━━━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.9000 - loss: 0.1000".encode(),
    b"     12/Unknown 0s 13ms/step - accuracy: 0.2500 - loss: 0.7393",
    b"70/70 - 1s - 16ms/step - accuracy: 0.9000 - loss: nan\n",
    b"12/70 [====>.........................] - ETA: 0s - loss: 0.1000 - accuracy: 0.9000",
    b"Downloading data from http://x\n",
    " 12%|█▏| 12/100 [00:01<00:09, 9.8it/s, loss=nan]".encode(),
    b"[12:30:01] Epoch 0/5, step 3/20 - loss: 1e-3 - 12 ms/step\n",
    b"\x1b[1m 3/7\x1b[0m",
    *(b"\r", b"\x08\x08\x08", b"\n", b"999999999999/999999999999 ", b"/step", b"\xff\xfe"),
    b"x" * (MAX_LINE_BYTES + 1),
]
printed = st.lists(
    st.sampled_from(LINES) | st.sampled_from(LINES[:9]).flatmap(torn) | st.binary(max_size=20), max_size=12
).map(b"".join)


def is_kept(progress: Progress) -> None:
    """It goes through events.jsonl and comes back, and can be counted with."""
    event = TaskProgressed(at=1, mono=1, task="worker:0", progress=progress)
    back = parse_event(event_line(event))
    assert isinstance(back, TaskProgressed)
    assert back.progress.step == progress.step
    reached = Course().after(back.progress).reached
    assert reached is None or reached >= 0
    assert position(progress) == position(back.progress)


@given(printed, st.lists(st.integers(0, 400), max_size=6), st.booleans())
@fuzzed(80)
def test_any_output_in_any_pieces(data: bytes, cuts: list[int], missed: bool) -> None:
    reader = LineProgress()
    at = 0
    for number, end in enumerate([*sorted(cuts), len(data)]):
        progress = reader.read(data[at:end], float(number), missed=missed and number == 1)
        at = max(at, end)
        assert len(reader.held) <= MAX_LINE_BYTES
        if progress is not None:
            assert progress.step is None or progress.step >= 0
            is_kept(progress)


TOLD = {"phase": "training", "epoch": 1, "epochs": 3, "step": 4, "steps": 5, "loss": 0.5, "steps_per_s": 2.0}
TOLD |= {"metrics": {"accuracy": 0.25}}
NESTED = b'{"a":' * 900 + b"1" + b"}" * 900
told = (
    (damaged(TOLD) | documents).map(as_json)
    | st.just(as_json(TOLD)).flatmap(torn)
    | any_text.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.just(DEEP)
    | st.just(NESTED)
)


@given(told.map(lambda data: data.decode("utf-8", "replace")))
@example(json.dumps({"metrics": {str(n): n for n in range(1000)}, "phase": "x" * 10_000}))
@fuzzed(80)
def test_anything_reported(text: str) -> None:
    progress = parse_progress(text)
    if progress is not None:
        is_kept(progress)
        assert len(event_line(TaskProgressed(at=1, mono=1, task="worker:0", progress=progress))) < 16_384


@given(st.lists(told, max_size=6), st.integers(1, 3))
@fuzzed(40)
def test_anything_in_a_progress_pipe(lines: list[bytes], writes: int) -> None:
    """Through the agent's half: what it hands on is JSON text, whatever the task has written."""
    out, into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    task = cast(
        TaskProcess,
        SimpleNamespace(name="worker:0", progress_fd=out, progress_rest=b"", ask_again=lambda: None),
    )
    with select.epoll() as poller:
        inbox = ProgressInbox(poller)
        inbox.add(task)
        data = b"\n".join(lines) + b"\n" + as_json(TOLD) + b"\n"
        while data:
            data = data[os.write(into, data[: max(1, len(data) // writes)]) :]
            inbox.read_last(task)
        os.close(into)
        inbox.read_last(task)
        taken = inbox.take(1.0)
        assert task.progress_fd == -1
    # JSON that can just be parsed cannot be written again; it is dropped with the fields beside it.
    assert json.loads(taken.get("worker:0", "{}")).get("epochs", 3) == 3
    assert "worker:0" in taken or NESTED in lines
