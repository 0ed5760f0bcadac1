"""How far a task is, read from what Keras prints: its own samples, what only looks like them, and any bytes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.progress.keras_lines import MAX_LINE_BYTES, Bar, Heading, read_line
from orchestrator.core.progress.line_progress import LineProgress, ProgressReader
from orchestrator.core.state.events import Progress

SAMPLES = sorted((Path(__file__).parent / "keras_samples").glob("*.txt"))
TWO_EPOCHS = [("training", 1), ("training", 2), ("evaluating", 2), ("predicting", 2)]
ONE_EPOCH = [("training", None), ("evaluating", None), ("predicting", None)]
WIDTHS = [1, 7, 100, 1000]


def steps_of(sample: Path) -> int:
    """Steps an epoch."""
    return 20 if "-unknown-" in sample.stem or "-fit-" in sample.stem else 24


def told(data: bytes, width: int = 1 << 20, pause_s: float = 0.01) -> list[Progress]:
    """Return the progress read from `data` in pieces of `width` bytes, with a pause after each."""
    reader = LineProgress()
    pieces = [data[start : start + width] for start in range(0, len(data), width)]
    found = [reader.read(piece, number * pause_s) for number, piece in enumerate(pieces)]
    return [progress for progress in found if progress is not None]


def story(found: list[Progress]) -> list[tuple[str | None, int | None]]:
    """Phase and epoch, each once while it lasts."""
    steps = [(progress.phase, progress.epoch) for progress in found]
    return [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]


@pytest.mark.parametrize("width", [1, 7, 20])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_keras_output_is_parsed_in_any_pieces(sample: Path, width: int) -> None:
    found = told(sample.read_bytes(), width)
    assert story(found) == (ONE_EPOCH if "-once-" in sample.stem else TWO_EPOCHS)
    training = [progress for progress in found if progress.phase == "training"]
    assert training[-1].step == training[-1].steps == steps_of(sample)
    assert training[-1].loss is not None and 0.3 < training[-1].loss < 1.2
    assert "accuracy" in training[-1].metrics and "loss" not in training[-1].metrics
    assert [(p.step, p.steps) for p in found if p.phase != "training"][-1] == (16, 16)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_values_of_an_epoch_are_read_after_the_next_began(sample: Path) -> None:
    data = sample.read_bytes()
    (progress,) = told(data.partition(b"evaluating")[0])
    assert (progress.phase, progress.step) == ("training", steps_of(sample))
    if "-fit-" in sample.stem:
        assert {"val_loss", "val_accuracy"} <= progress.metrics.keys()
        begun = told(data.partition(b"evaluating")[0].rpartition(b"Epoch 2/2")[0] + b"Epoch 2/2\r\n")[0]
        assert (begun.epoch, begun.step, begun.steps) == (2, 0, 20)
        assert "val_loss" in begun.metrics


def test_bar_of_keras_3() -> None:
    line = "\x1b[1m12/70\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m1:05\x1b[0m 5ms/step - accuracy: 0.9000"
    assert read_line(line.encode()) == Bar(12, 70, {"accuracy": 0.9}, 0.005, is_drawn=True)


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (
            b"     12/Unknown 0s 828us/step - loss: 7.3930e-05",
            Bar(12, None, {"loss": 7.393e-05}, 0.000828, True),
        ),
        (b"70/70 - 1s - 16ms/step - acc: nan - mae: -inf", Bar(70, 70, {"acc": None, "mae": None}, 0.016)),
        (
            b"70/70 - 1s - 16ms/step - loss: -inf",
            Bar(70, 70, {"loss": None}, 0.016, bad_loss=-math.inf),
        ),
        (b"70/70 - 143s - 2s/step - loss: -0.1000", Bar(70, 70, {"loss": -0.1}, 2.0)),
        (b"12/70 [===>....] - ETA: 1:02:03 - loss: 0.1000", Bar(12, 70, {"loss": 0.1}, None, True)),
        (b"70/70 [======] - 0s 924us/step", Bar(70, 70, {}, 0.000924, True)),
        (b"70/70 - 1s - loss: 0.1000 - 727ms/epoch - 13ms/step", Bar(70, 70, {"loss": 0.1}, 0.013)),
        (b"7/7 ====== 0s 0us/step - loss: 12.0000  ", Bar(7, 7, {"loss": 12.0}, None, True)),
    ],
)
def test_lines_of_either_keras(line: bytes, bar: Bar) -> None:
    assert read_line(line) == bar


@pytest.mark.parametrize(
    "line",
    [
        b"3/10 files",
        b"3/10",
        b"3/10 - 5s",
        b"3/10 - loss: 0.1000",
        b"3/10 - 1s - 20ms/step - and so on",
        b"copied 3/10 - 1s - 20ms/step",
        b"12/70 \xe2\x94\x81\xe2\x94\x81 5 apples - 1s - 20ms/step",
        b"11/21/2026 - 1s - 20ms/step",
        b"10/5 [====] - ETA: 0s - loss: 0.1000",
        b"0/5 [....] - ETA: 0s - loss: 0.1000",
        b"12/70 [=>..] - ETA: 0s - loss: about 3",
        b" 30%|###   | 3/10 [00:01<00:02, 3.20it/s]",
        b"Epoch 3/10: loss 0.1",
        b"Epoch 11/10",
        b"Epoch 0/10",
        b"Epoch 1: val_loss improved from inf to 0.1, saving model to w.keras",
        b"epoch 3/10: loss 0.1234, accuracy 0.9671, 12.3 steps/s",
        b"12/70 [=>..] - ETA: 0s - " + b"loss: 0.1000 - " * 1000 + b"mae: 0.1000",
    ],
)
def test_similar_lines_are_not_keras(line: bytes) -> None:
    assert read_line(line) is None
    assert all(progress.phase is None for progress in told(line + b"\n")), (
        "the phase is only known from Keras"
    )


def test_other_output_between_does_not_end_the_epoch() -> None:
    bar = b"12/70 [==>...] - ETA: 0s - loss: 0.1000"
    (progress,) = told(b"Epoch 2/5\n" + bar + b"\nI am at 3/10 files\r" + bar.replace(b"12", b"13"))
    assert (progress.phase, progress.epoch, progress.step) == ("training", 2, 13)


def test_download_bytes_are_not_steps() -> None:
    bar = "11490434/11490434 ━━━━━━━ 0s 0us/step"
    assert told(f"Downloading data from https://a.b/c\n{bar}\n".encode()) == []
    # Its first line was missed.
    assert LineProgress().read(f"...\n{bar}\n".encode(), 0.0, missed=True) is None


def test_repeated_fit_is_not_an_evaluation() -> None:
    line = b"20/20 - 0s - 2ms/step - loss: 0.1000\n"
    assert story(told(line * 3, len(line))) == [("training", None)]
    assert story(told(line * 3 + line.replace(b"20", b"9"), len(line))) == ONE_EPOCH[:2]


def test_evaluation_keeps_the_values_of_the_training() -> None:
    fit = b"Epoch 3/3\n70/70 - 1s - 2ms/step - accuracy: 0.9000 - loss: 0.2000\n"
    (progress,) = told(fit + b"469/469 - 1s - 2ms/step - accuracy: 0.8000 - loss: 0.4000\n")
    assert (progress.phase, progress.epoch, progress.epochs, progress.step) == ("evaluating", 3, 3, 469)
    assert progress.loss == 0.2
    assert progress.metrics == {"accuracy": 0.9, "eval_accuracy": 0.8, "eval_loss": 0.4}
    (progress,) = told(fit + b"469/469 - 1s - 2ms/step - accuracy: 0.8000 - loss: nan\n")
    assert progress.loss is None and progress.bad_loss is not None and progress.bad_loss.step == 469


def test_missed_bytes_give_no_progress() -> None:
    reader = LineProgress()
    reader.read(b"Epoch 1/9\n20/20 - 0s - 2ms/step - loss: 0.1000\n", 0.0)
    after = reader.read(b"oss: 0.3\n5/20 [=>...] - ETA: 0s - loss: 0.2000", 1.0, missed=True)
    assert after is not None and (after.phase, after.step, after.loss) == ("training", 5, 0.2)


def test_rate_is_measured_if_the_line_lacks_it() -> None:
    reader = LineProgress()
    assert reader.read(b"Epoch 1/2\n", 0.0) is not None
    frames = [
        reader.read(b"\r%d/90 [=>...] - ETA: 9s - loss: 0.1000" % step, 10.0 + step / 4) for step in (1, 9)
    ]
    assert [frame and frame.steps_per_s for frame in frames] == [None, 4.0]
    slow = [
        reader.read(b"\nEpoch 2/2\n", 100.0),
        reader.read(b"90/90 - 135s - 2s/step - loss: 0.1000\n", 235.0),
    ]
    assert slow[1] is not None and slow[1].steps_per_s == pytest.approx(90 / 135)


def test_validation_time_does_not_lower_the_rate() -> None:
    reader = LineProgress()
    full = b"\r90/90 [=====] - ETA: 0s - loss: 0.1000"
    reader.read(b"Epoch 1/2\n\r1/90 [>....] - ETA: 9s - loss: 0.1000", 0.0)
    reader.read(full, 89.0)
    validated = reader.read(full + b" - val_loss: 0.2000\n", 500.0)
    assert validated is not None and validated.steps_per_s == 1.0
    assert validated.metrics == {"val_loss": 0.2}


def test_tasks_and_attempts_are_read_separately() -> None:
    readers = ProgressReader()
    readers.read("worker:0", 1, b"Epoch 3/9\n", 0.0, missed=False)
    readers.read("worker:1", 1, b"Epo", 0.0, missed=False)
    assert readers.read("worker:0", 2, b"ch 1/9\n", 0.0, missed=False) is None
    other = readers.read("worker:1", 1, b"ch 1/9\n", 0.0, missed=False)
    assert other is not None and other.epoch == 1


pieces = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"Epoch 1/2",
                b"Epoch 2/2",
                b"\n",
                b"\r",
                b"\x08" * 40,
                b"12/70 ",
                b"12/Unknown ",
                b"70/70",
                b" - ",
            ]
        ),
        st.sampled_from(
            [b"[=>.]", b"\xe2\x94\x81", b"\x1b[1m", b"0s", b"5ms/step", b"ETA: ", b"loss: 0.1000", b"nan"]
        ),
        st.sampled_from([b"70/70 - 1s - 16ms/step - loss: 0.1000\n", b"Downloading data from x\n"]),
    ),
    max_size=60,
).map(b"".join)


@given(pieces, st.sampled_from(WIDTHS), st.booleans())
def test_any_bytes_give_valid_progress(data: bytes, width: int, missed: bool) -> None:
    reader = LineProgress()
    for start in range(0, len(data), width):
        progress = reader.read(data[start : start + width], float(start), missed=missed)
        if progress is not None:
            assert progress.phase in ("training", "evaluating", "predicting")
            assert progress.step is not None and progress.step >= 0
            assert Progress.model_validate_json(progress.model_dump_json()) == progress


@given(st.binary(max_size=200))
def test_any_line_is_parsed_or_none(line: bytes) -> None:
    read = read_line(b"12/70 " + line)
    assert read is None or isinstance(read, Bar)
    assert not isinstance(read_line(line), Heading) or line.strip().startswith(b"Epoch")


@pytest.mark.parametrize(
    "unit",
    [b"a", b"1", b"1/", b" - ", b"\x1b[", b"\x1b[1", b"[=", b"=", b"\xe2\x94\x81", b"x: ", b"\r", b"\x08", b"/step"],
)  # fmt: skip
def test_cost_of_one_long_line_is_linear(unit: bytes) -> None:
    """Were it more than linear, it would not end: nothing here is timed but by the test's own limit."""
    reader = LineProgress()
    flood = unit * (4_000_000 // len(unit))
    assert reader.read(b"12/70 " + flood + b" 5ms/step", 0.0) is None
    for start in range(0, len(flood), 8192):
        reader.read(flood[start : start + 8192], 1.0)
    assert len(reader.held) <= MAX_LINE_BYTES
    after = reader.read(b"\n70/70 - 1s - 16ms/step - loss: 0.1000\n", 2.0)
    assert after is not None and after.step == 70
