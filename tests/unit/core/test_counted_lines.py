"""How far a task is, read from tqdm and from the lines of a loop; ordinary text is not progress."""

from __future__ import annotations

import math
from functools import partial

from orchestrator.core.progress.counted_lines import Counted, read_counted
from orchestrator.core.progress.line_progress import LineProgress
from orchestrator.core.progress.reported import ProgressThrottle
from orchestrator.core.state.events import Progress

_BAR = "12%|█▏        | 12/100 [00:01<00:09,  9.80it/s]"
bar = partial(Counted, is_bar=True)
of_epoch_3 = partial(Counted, epoch=3)
_READ = {
    f" {_BAR}": bar(12, 100, steps_per_s=9.8),
    f"\x1b[A\x1b[2K {_BAR}\x1b[0m": bar(12, 100, steps_per_s=9.8),
    "  0%|          | 0/100 [00:00<?, ?it/s]": bar(0, 100),
    "100%|##########| 9/9 [1:00:01<00:00, 2.00s/it]": bar(9, 9, steps_per_s=0.5),
    "  3%|3         | 3/99 [00:01<00:09, 9.80it/s, loss=0.31, acc=0.5]": bar(
        3, 99, values={"acc": 0.5}, loss=0.31, steps_per_s=9.8
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
    "Current step: 9, training loss: 0.2, training accuracy: 85.0%": Counted(
        9, values={"training_accuracy": 85.0}, loss=0.2
    ),
    "Epoch 1 train loss: 0.31 eval loss: 0.4 eval accuracy 0.8 lr: 0.001": Counted(
        epoch=1, values={"eval_loss": 0.4, "eval_accuracy": 0.8, "lr": 0.001}, loss=0.31
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


def _read(*pieces: str, every_s: float = 1.0) -> list[Progress]:
    reader = LineProgress()
    found = [reader.read(piece.encode(), number * every_s) for number, piece in enumerate(pieces)]
    return [progress for progress in found if progress is not None]


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
    found = {pieces: _read(*pieces)[-1].model_dump(include={*fields}) for pieces, fields in rows.items()}
    assert found == rows
    assert "step" in _read("Epoch 1, loss: 1.0\n", "step 9/9\n", "Epoch 2, loss: 0.5\n")[-1].model_fields_set


def test_bad_loss_names_epoch_and_step() -> None:
    for text in ("epoch 2/5 step 3/9 loss nan\n", "Epoch 2/5\nstep 3/9, loss: nan\n"):
        (progress,) = _read(text)
        assert progress.loss is None and progress.bad_loss is not None
        assert (progress.bad_loss.value, progress.bad_loss.epoch, progress.bad_loss.step) == ("nan", 2, 3)


def test_counters_before_the_training_are_ignored() -> None:
    """Data may be prepared then, and a step would mean that the task has joined the cluster."""
    for phase in ("importing", "starting", "waiting"):
        throttle = ProgressThrottle()
        throttle.put("worker:0", Progress(phase=phase))
        throttle.put_from_lines("worker:0", Progress(step=3, steps=9))
        assert throttle.take(10.0) == [("worker:0", Progress(phase=phase))]
        throttle.put("worker:0", Progress(phase="training"))
        throttle.put_from_lines("worker:0", Progress(step=4, steps=9))
        assert throttle.take(20.0) == [("worker:0", Progress(phase="training", step=4, steps=9, skips=True))]
