"""How far a task is, read from what Keras and tqdm print and from the lines of a loop. Other text is not progress."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from orchestrator.core.progress.counted_lines import Counted, read_counted
from orchestrator.core.progress.keras_lines import MAX_LINE_BYTES, Bar, read_line
from orchestrator.core.progress.line_progress import LineProgress, ProgressReader
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import BadLoss

SAMPLES = sorted((Path(__file__).parent / "keras_samples").glob("*.txt"))
TWO_EPOCHS = [("training", 1), ("training", 2), ("evaluating", 2), ("predicting", 2)]
ONE_EPOCH = [("training", None), ("evaluating", None), ("predicting", None)]


def read_each(pieces: list[bytes], pause_s: float = 0.01) -> list[Progress]:
    reader = LineProgress()
    found = [reader.read(piece, number * pause_s) for number, piece in enumerate(pieces)]
    return [progress for progress in found if progress is not None]


def read(data: bytes, width: int = 1 << 20) -> list[Progress]:
    """Return the progress read from `data` in pieces of `width` bytes."""
    return read_each([data[start : start + width] for start in range(0, len(data), width)])


def phases(found: list[Progress]) -> list[tuple[str | None, int | None]]:
    """Phase and epoch, each once while it lasts."""
    return [key for key, _ in groupby(found, lambda progress: (progress.phase, progress.epoch))]


def test_output_of_keras_is_read_in_any_pieces() -> None:
    """The values of an epoch also after the next one has begun."""
    wrong = {}
    for sample in SAMPLES:
        # Steps an epoch.
        steps = 20 if "-unknown-" in sample.stem or "-fit-" in sample.stem else 24
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
        fit, is_validated = sample.read_bytes().partition(b"evaluating")[0], "-fit-" in sample.stem
        (progress,) = read(fit)
        ended = progress.phase, progress.step, progress.metrics.keys() >= {"val_loss", "val_accuracy"}
        if ended != ("training", steps, is_validated):
            wrong[sample.stem, 0] = ended
        if is_validated:
            (begun,) = read(fit.rpartition(b"Epoch 2/2")[0] + b"Epoch 2/2\r\n")
            if (begun.epoch, begun.step, begun.steps, "val_loss" in begun.metrics) != (2, 0, 20, True):
                wrong[sample.stem, 2] = begun
    assert len(SAMPLES) == 18 and not wrong, wrong


def test_lines_of_either_keras() -> None:
    loss = {"loss": 0.1}
    rows = {
        "\x1b[1m12/70\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m1:05\x1b[0m 5ms/step - accuracy: 0.9000": (
            Bar(12, 70, {"accuracy": 0.9}, 0.005, is_drawn=True)
        ),
        " 12/Unknown 0s 828us/step - loss: 7.3930e-05": Bar(12, None, {"loss": 7.393e-05}, 0.000828, True),
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
    # Such a line in between does not end the epoch.
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


def test_evaluation_keeps_the_values_of_the_training() -> None:
    """A fit that is repeated is not an evaluation."""
    line = b"20/20 - 0s - 2ms/step - loss: 0.1000\n"
    assert phases(read(line * 3, len(line))) == [("training", None)]
    assert phases(read(line * 3 + line.replace(b"20", b"9"), len(line))) == ONE_EPOCH[:2]
    fit = b"Epoch 3/3\n70/70 - 1s - 2ms/step - accuracy: 0.9000 - loss: 0.2000\n"
    evaluation = b"469/469 - 1s - 2ms/step - accuracy: 0.8000 - loss: 0.4000\n"
    (progress,) = read(fit + evaluation)
    assert (progress.phase, progress.epoch, progress.epochs, progress.step) == ("evaluating", 3, 3, 469)
    assert (progress.loss, progress.metrics) == (
        0.2,
        {"accuracy": 0.9, "eval_accuracy": 0.8, "eval_loss": 0.4},
    )
    (progress,) = read(fit + evaluation.replace(b"0.4000", b"nan"))
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


_BAR = "12%|█▏        | 12/100 [00:01<00:09,  9.80it/s]"
bar = partial(Counted, is_bar=True)
of_epoch_3 = partial(Counted, epoch=3)
_READ = {
    f" {_BAR}": bar(12, 100, steps_per_s=9.8),
    f"\x1b[A\x1b[2K {_BAR}\x1b[0m": bar(12, 100, steps_per_s=9.8),
    "  0%|          | 0/100 [00:00<?, ?it/s]": bar(0, 100),
    "100%|##########| 9/9 [1:00:01<00:00, 2.00s/it]": bar(9, 9, steps_per_s=0.5),
    "  3%|3         | 3/99 [00:01<00:09, 9.80it/s, loss=0.31, acc=0.5]": (
        bar(3, 99, values={"acc": 0.5}, loss=0.31, steps_per_s=9.8)
    ),
    "Epoch 2/5:  30%|███       | 3/10 [00:01<00:02, ?it/s]": bar(3, 10, 2, 5),
    "Epochs:  20%|██        | 1/5 [00:05<00:20,  5.00s/it]": bar(epoch=2, epochs=5),
    "Validation: 20%|██ | 1/5 [00:05<00:20,  5.00s/it]": bar(1, 5, steps_per_s=0.2, evaluates=True),
    "step 10/100": Counted(10, 100),
    "Step 10, loss=0.3": Counted(10, loss=0.3),
    "iteration 10 of 100": Counted(10, 100),
    "Epoch 2/5": Counted(epoch=2, epochs=5),
    "Epoch: 3, accuracy: 0.98, train_loss: 0.100000.": of_epoch_3(values={"accuracy": 0.98}, loss=0.1),
    "Epoch [1/5], Step [3/20], Loss: 1e-3": Counted(3, 20, 1, 5, loss=0.001),
    "[12:30:01] global step 7 loss 0.3 lr 1e-4": Counted(7, values={"lr": 0.0001}, loss=0.3),
    "INFO:tensorflow:loss = 0.3, step = 100 (2.5 sec)": Counted(100, loss=0.3),
    "2026-11-23 12:30:01,123 batch 3/20 - loss: -inf - 12ms/step": Counted(3, 20, bad_loss=-math.inf),
    # As Python prints numbers.
    "Epoch 3, Loss: 2.2204127311706543": of_epoch_3(loss=2.2204127311706543),
    "Epoch 3, loss -1.1000000085914508e-05": of_epoch_3(loss=-1.1000000085914508e-05),
    "Epoch 3, loss 0.00012344999413471669": of_epoch_3(loss=0.00012344999413471669),
    "Epoch 3, loss 339999995214436424907732413799364296704.000000": of_epoch_3(loss=3.3999999521443642e38),
    "Epoch 3, loss -0.0, grad_norm nan": of_epoch_3(values={"grad_norm": None}, loss=0.0),
    "Epoch 3, Loss: tf.Tensor(2.22, shape=(), dtype=float32), Accuracy: 84.11666870117188": of_epoch_3(
        values={"accuracy": 84.11666870117188}, loss=2.22
    ),
    # From TensorFlow's and Keras's guides.
    "Finished epoch 3, accuracy is 0.76.": of_epoch_3(values={"accuracy": 0.76}),
    "Start of epoch 0": Counted(epoch=0),
    "End of epoch:  3": of_epoch_3(),
    "Time for epoch 3 is 11.26 sec": of_epoch_3(),
    "Training loss (for 1 batch) at step 200: 0.7123": Counted(200, loss=0.7123),
    "Loss at step 020: 0.123": Counted(20, loss=0.123),
    "Test accuracy at step 20: 85.00%": Counted(20, values={"test_accuracy": 85.0}),
    "Current step: 9, training loss: 0.2, training accuracy: 85%": (
        Counted(9, values={"training_accuracy": 85.0}, loss=0.2)
    ),
    "Epoch 1 train loss: 0.31 eval loss: 0.4 eval accuracy 0.8 lr: 0.001": (
        Counted(epoch=1, values={"eval_loss": 0.4, "eval_accuracy": 0.8, "lr": 0.001}, loss=0.31)
    ),
    "Epoch: 3, Test set ELBO: -79.14, time elapse for current epoch: 9.2": of_epoch_3(
        values={"test_set_elbo": -79.14, "time_elapse_for_current_epoch": 9.2}
    ),
    "Epoch 3, loss: 0.3, time: 11.3s": of_epoch_3(loss=0.3),
    "Epoch 3 loss 0.3 min 0.1 s=4": of_epoch_3(values={"min": 0.1, "s": 4.0}, loss=0.3),
    "I0523 10:11:12.123456 1403 train.py:33] step 3: loss 0.2": Counted(3, loss=0.2),
}


def test_lines_are_read() -> None:
    assert {line: read_counted(line.encode()) for line in _READ} == _READ


_OTHER_TEXT = """\

Step 3
Step 1: install dependencies
Step 1/12 : FROM python:3.9
Step 2: x = 5
step 5 of the plan
step 0/0
step 1.5/3
step 1/3/2026
see step 10/100 below
Epoch 0/0
Epoch 1: val_loss improved from inf to 0.1, saving model to w.keras
Epoch 00005: early stopping
epochs: 5, batch size: 32, loss: mse
global_step/sec: 12.3
Using batch 64 of images
Restored step 100 from /tmp/ckpt-100
50%|
Loading shards:  20%|██        | 1/5 [00:05<00:20,  5.00s/it]
Downloading: 12%|█ | 12/100 [00:01<00:09, 9.8MB/s]
Map: 20%|██  | 1000/5000 [00:05<00:20,  500.00 examples/s]
weights:  12%|█▏        | 12.3M/100M [00:01<00:09, 9.80MB/s]
120%|█▏| 120/100 [00:01<00:09,  9.80it/s]
0%|  | 0/0 [00:00<00:00, ?it/s]
File "train.py", line 10, in step
I0000 00:00:1795404085.611352    6328 ring_alg.cc:291] step 3 of 4
Epoch 3, Loss: 2.5.1
Epoch 3, Loss: tf.Tensor([2.5 1.5], shape=(2,), dtype=float32)
Finished epoch 3 of the plan
Finished step 3
We finished epoch 3
Best epoch: 12
Number of epochs: 10
Time for step 3 is 11.26 sec
Time taken for 1 epoch: 57.12 secs
Learning rate for epoch 3 is 0.001
Training loss (for 9 batches) at step 200: 0.7123
Training acc over epoch: 0.9123
Saved checkpoint for step 10: ./tf_ckpts/ckpt-1
The loss at step 5 was 0.3, accuracy is good
Epoch 3: the accuracy is better
Epoch 5: ReduceLROnPlateau reducing learning rate to 0.00010000000474974513."""


def test_other_text_is_not_progress() -> None:
    too_long = ["step 1/2 " + "loss 1 " * 100, "Epoch 3, Loss: 2." + "2" * 41, "Epoch 3, Loss: " + "2" * 41]
    found = {line: read_counted(line.encode()) for line in [*_OTHER_TEXT.split("\n"), *too_long]}
    wrong = {line: counted for line, counted in found.items() if counted is not None}
    assert not wrong, wrong


def read_pieces(*pieces: str) -> list[Progress]:
    """Return the progress read from the pieces, one a second."""
    return read_each([piece.encode() for piece in pieces], 1.0)


def test_progress_of_a_loop() -> None:
    """The fields of the last progress that these pieces give."""
    evaluation = "test: 20%|2 | 1/5 [00:05<00:20, 1it/s]\r"
    keras = "1/9 [>....] - ETA: 0s - loss: 0.5000\n"
    rows: dict[tuple[str, ...], dict[str, object]] = {
        # Each frame of a bar begins with a carriage return: the last one has no end yet.
        ("\r  0%|  | 0/9 [00:00<?, ?it/s]",): {"step": 0, "steps": 9, "steps_per_s": None},
        ("\r  0%|  | 0/9 [00:00<?, ?it/s]", "\r 33%|3 | 3/9 [00:01<00:02, 3.00it/s]"): {
            "step": 3,
            "steps_per_s": 3.0,
        },
        # An incomplete line waits for its end.
        ("step 1", "0/100", "\n"): {"step": 10},
        ("Epoch 1/2\n", "step 10/100\n", "step 20/100\n", "step 40/100\n"): {"steps_per_s": 15.0},
        # A heading and a step in one piece.
        ("Epoch 2/5\nstep 10/100, loss: nan\n",): {"epoch": 2, "epochs": 5, "step": 10, "steps": 100},
        # Epochs that count from 0 are counted from 1.
        ("Epoch 0, loss: 0.5\n",): {"epoch": 1},
        ("Epoch 0, loss: 0.5\n", "Epoch 1, loss: 0.4\n"): {"epoch": 2},
        # The step of the epoch before is dropped.
        ("Epoch 1, loss: 1.0\n", "step 9/9\n", "Epoch 2, loss: 0.5\n"): {"step": None},
        (evaluation,): {"phase": "evaluating"},
        (evaluation, evaluation.replace("test", "train")): {"phase": "training"},
        # Lines beside those of Keras are ignored.
        ("Epoch 1/2\n", keras, "step 700/900\n"): {"step": 1},
    }
    found = {
        pieces: read_pieces(*pieces)[-1].model_dump(include={*fields}) for pieces, fields in rows.items()
    }
    assert found == rows
    for text in ("epoch 2/5 step 3/9 loss nan\n", "Epoch 2/5\nstep 3/9, loss: nan\n"):
        (progress,) = read_pieces(text)
        assert (progress.loss, progress.bad_loss) == (None, BadLoss(value="nan", epoch=2, step=3))
    last = read_pieces("Epoch 1, loss: 1.0\n", "step 9/9\n", "Epoch 2, loss: 0.5\n")[-1]
    assert "step" in last.model_fields_set


def test_counters_before_the_training_are_ignored() -> None:
    """Data may be prepared then, and a step would mean that the task has joined the cluster."""
    for phase in ("importing", "starting", "waiting"):
        throttle = ProgressThrottle()
        for at, told, step, shown in (
            (10.0, phase, 3, {}),
            (20.0, "training", 4, {"step": 4, "steps": 9, "skips": True}),
        ):
            throttle.put("a", Progress(phase=told))
            throttle.put_from_lines("a", Progress(step=step, steps=9))
            assert throttle.take(at) == [("a", Progress(phase=told, **shown))]
