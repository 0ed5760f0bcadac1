"""How far a task is, read from what Keras prints: its own samples, what only looks like them, and any bytes."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path

import pytest

from orchestrator.core.progress.keras_lines import MAX_LINE_BYTES, Bar, read_line
from orchestrator.core.progress.line_progress import LineProgress, ProgressReader
from orchestrator.core.state.events import Progress

SAMPLES = sorted((Path(__file__).parent / "keras_samples").glob("*.txt"))
TWO_EPOCHS = [("training", 1), ("training", 2), ("evaluating", 2), ("predicting", 2)]
ONE_EPOCH = [("training", None), ("evaluating", None), ("predicting", None)]


def steps_of(sample: Path) -> int:
    """Steps an epoch."""
    return 20 if "-unknown-" in sample.stem or "-fit-" in sample.stem else 24


def read(data: bytes, width: int = 1 << 20, pause_s: float = 0.01) -> list[Progress]:
    """Return the progress read from `data` in pieces of `width` bytes, with a pause after each."""
    reader = LineProgress()
    pieces = [data[start : start + width] for start in range(0, len(data), width)]
    found = [reader.read(piece, number * pause_s) for number, piece in enumerate(pieces)]
    return [progress for progress in found if progress is not None]


def phases(found: list[Progress]) -> list[tuple[str | None, int | None]]:
    """Phase and epoch, each once while it lasts."""
    return [key for key, _ in groupby(found, lambda progress: (progress.phase, progress.epoch))]


def test_output_of_keras_is_read_in_any_pieces() -> None:
    wrong = {}
    for sample in SAMPLES:
        steps = steps_of(sample)
        expected = (ONE_EPOCH if "-once-" in sample.stem else TWO_EPOCHS, steps, steps, True, True, (16, 16))
        for width in (1, 7, 20):
            found = read(sample.read_bytes(), width)
            training = [each for each in found if each.phase == "training"][-1]
            (last,) = [(each.step, each.steps) for each in found if each.phase != "training"][-1:]
            has_loss = 0.3 < (training.loss or 0.0) < 1.2
            has_metrics = "accuracy" in training.metrics and "loss" not in training.metrics
            facts = (phases(found), training.step, training.steps, has_loss, has_metrics, last)
            if facts != expected:
                wrong[sample.stem, width] = facts
    assert len(SAMPLES) == 18 and not wrong, wrong


def test_values_of_an_epoch_are_read_after_the_next_began() -> None:
    wrong = {}
    for sample in SAMPLES:
        fit = sample.read_bytes().partition(b"evaluating")[0]
        (progress,) = read(fit)
        facts = [(progress.phase, progress.step), progress.metrics.keys() >= {"val_loss", "val_accuracy"}]
        expected = [("training", steps_of(sample)), "-fit-" in sample.stem]
        if "-fit-" in sample.stem:
            begun = read(fit.rpartition(b"Epoch 2/2")[0] + b"Epoch 2/2\r\n")[0]
            facts += [(begun.epoch, begun.step, begun.steps), "val_loss" in begun.metrics]
            expected += [(2, 0, 20), True]
        if facts != expected:
            wrong[sample.stem] = facts
    assert not wrong, wrong


def test_lines_of_either_keras() -> None:
    loss = {"loss": 0.1}
    rows = {
        "\x1b[1m12/70\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m1:05\x1b[0m 5ms/step - accuracy: 0.9000": (
            Bar(12, 70, {"accuracy": 0.9}, 0.005, is_drawn=True)
        ),
        "     12/Unknown 0s 828us/step - loss: 7.3930e-05": Bar(
            12, None, {"loss": 7.393e-05}, 0.000828, True
        ),
        "70/70 - 1s - 16ms/step - acc: nan - mae: -inf": Bar(70, 70, {"acc": None, "mae": None}, 0.016),
        "70/70 - 1s - 16ms/step - loss: -inf": Bar(70, 70, {"loss": None}, 0.016, bad_loss=-math.inf),
        "70/70 - 143s - 2s/step - loss: -0.1000": Bar(70, 70, {"loss": -0.1}, 2.0),
        "12/70 [===>....] - ETA: 1:02:03 - loss: 0.1000": Bar(12, 70, loss, None, True),
        "70/70 [======] - 0s 924us/step": Bar(70, 70, {}, 0.000924, True),
        "70/70 - 1s - loss: 0.1000 - 727ms/epoch - 13ms/step": Bar(70, 70, loss, 0.013),
        "7/7 ====== 0s 0us/step - loss: 12.0000  ": Bar(7, 7, {"loss": 12.0}, None, True),
    }
    found = {line: read_line(line.encode()) for line in rows}
    assert found == rows


SIMILAR = """\
3/10 files
3/10
3/10 - 5s
3/10 - loss: 0.1000
3/10 - 1s - 20ms/step - and so on
copied 3/10 - 1s - 20ms/step
12/70 ━━ 5 apples - 1s - 20ms/step
11/21/2026 - 1s - 20ms/step
10/5 [====] - ETA: 0s - loss: 0.1000
0/5 [....] - ETA: 0s - loss: 0.1000
12/70 [=>..] - ETA: 0s - loss: about 3
 30%|###   | 3/10 [00:01<00:02, 3.20it/s]
Epoch 3/10: loss 0.1
Epoch 11/10
Epoch 0/10
Epoch 1: val_loss improved from inf to 0.1, saving model to w.keras
epoch 3/10: loss 0.1234, accuracy 0.9671, 12.3 steps/s"""


def test_similar_lines_are_not_keras() -> None:
    """Only Keras's lines name a phase."""
    long = b"12/70 [=>..] - ETA: 0s - " + b"loss: 0.1000 - " * 1000 + b"mae: 0.1000"
    lines = [*SIMILAR.encode().split(b"\n"), long]
    wrong = [line for line in lines if read_line(line) or any(each.phase for each in read(line + b"\n"))]
    assert not wrong, wrong


def test_other_output_between_does_not_end_the_epoch() -> None:
    bar = b"12/70 [==>...] - ETA: 0s - loss: 0.1000"
    (progress,) = read(b"Epoch 2/5\n" + bar + b"\nI am at 3/10 files\r" + bar.replace(b"12", b"13"))
    assert (progress.phase, progress.epoch, progress.step) == ("training", 2, 13)


def test_downloads_and_lines_whose_begin_was_missed_give_no_progress() -> None:
    bar = "11490434/11490434 ━━━━━━━ 0s 0us/step"
    assert read(f"Downloading data from https://a.b/c\n{bar}\n".encode()) == []
    assert LineProgress().read(f"...\n{bar}\n".encode(), 0.0, missed=True) is None
    reader = LineProgress()
    reader.read(b"Epoch 1/9\n20/20 - 0s - 2ms/step - loss: 0.1000\n", 0.0)
    after = reader.read(b"oss: 0.3\n5/20 [=>...] - ETA: 0s - loss: 0.2000", 1.0, missed=True)
    assert after is not None and (after.phase, after.step, after.loss) == ("training", 5, 0.2)


def test_repeated_fit_is_not_an_evaluation() -> None:
    line = b"20/20 - 0s - 2ms/step - loss: 0.1000\n"
    assert phases(read(line * 3, len(line))) == [("training", None)]
    assert phases(read(line * 3 + line.replace(b"20", b"9"), len(line))) == ONE_EPOCH[:2]


def test_evaluation_keeps_the_values_of_the_training() -> None:
    fit = b"Epoch 3/3\n70/70 - 1s - 2ms/step - accuracy: 0.9000 - loss: 0.2000\n"
    (progress,) = read(fit + b"469/469 - 1s - 2ms/step - accuracy: 0.8000 - loss: 0.4000\n")
    assert (progress.phase, progress.epoch, progress.epochs, progress.step) == ("evaluating", 3, 3, 469)
    assert progress.loss == 0.2
    assert progress.metrics == {"accuracy": 0.9, "eval_accuracy": 0.8, "eval_loss": 0.4}
    (progress,) = read(fit + b"469/469 - 1s - 2ms/step - accuracy: 0.8000 - loss: nan\n")
    assert progress.loss is None and progress.bad_loss is not None and progress.bad_loss.step == 469


def rates(*frames: tuple[bytes, float]) -> list[float | None]:
    """Steps per second after each of the frames, which are read at these seconds."""
    reader = LineProgress()
    found = [reader.read(frame, now) for frame, now in frames]
    return [progress and progress.steps_per_s for progress in found]


def test_rate_is_the_printed_one_or_measured() -> None:
    bar = b"\r%d/90 [=>...] - ETA: 9s - loss: 0.1000"
    line = b"90/90 - 135s - 2s/step - loss: 0.1000\n"
    assert rates((b"Epoch 1/2\n", 0.0), (bar % 1, 10.25), (bar % 9, 12.25)) == [None, None, 4.0]
    assert rates((b"\nEpoch 2/2\n", 100.0), (line, 235.0)) == [None, pytest.approx(90 / 135)]
    assert rates((b"70/70 - 1s - 16ms/step - loss: 0.1000\n", 1.0)) == [62.5]
    # The time of the validation does not lower it.
    full = bar % 90
    validated = (full + b" - val_loss: 0.2000\n", 500.0)
    assert rates((b"Epoch 1/2\n" + bar % 1, 0.0), (full, 89.0), validated)[1:] == [1.0, 1.0]


def test_tasks_and_attempts_are_read_separately() -> None:
    readers = ProgressReader()
    readers.read("worker:0", 1, b"Epoch 3/9\n", 0.0, missed=False)
    readers.read("worker:1", 1, b"Epo", 0.0, missed=False)
    assert readers.read("worker:0", 2, b"ch 1/9\n", 0.0, missed=False) is None
    other = readers.read("worker:1", 1, b"ch 1/9\n", 0.0, missed=False)
    assert other is not None and other.epoch == 1


def test_one_long_line_is_held_up_to_its_limit() -> None:
    for unit in (b"a", b"x: ", b"\r", b"\x08"):
        reader = LineProgress()
        flood = unit * (100_000 // len(unit))
        assert reader.read(b"12/70 " + flood + b" 5ms/step", 0.0) is None, unit
        for start in range(0, len(flood), 8192):
            reader.read(flood[start : start + 8192], 1.0)
            assert len(reader.held) <= MAX_LINE_BYTES, unit
        after = reader.read(b"\n70/70 - 1s - 16ms/step - loss: 0.1000\n", 2.0)
        assert after is not None and after.step == 70, unit
