"""The built-in program's options, read and checked before anything slow is imported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMED_DATASETS = ("digits", "mnist", "synthetic")
# `file` is absent on purpose: tf.data shards by file only what it reads from files, and these data sets are
# in memory.
AUTO_SHARD = ("data", "off", "auto")

DEFAULT_EPOCHS = 10
DEFAULT_BATCH_SIZE = 16
DEFAULT_LEARNING_RATE = 0.002
DEFAULT_KEEP = 3
DEFAULT_SEED = 7
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Options:
    """What the user asked for; batch_size is per worker, learning_rate that of one worker."""

    epochs: int = DEFAULT_EPOCHS
    batch_size: int = DEFAULT_BATCH_SIZE
    learning_rate: float = DEFAULT_LEARNING_RATE
    steps_per_epoch: int | None = None
    dataset: str = "digits"
    auto_shard: str = "data"
    seed: int = DEFAULT_SEED
    checkpoint_dir: Path = Path("checkpoints")
    keep: int = DEFAULT_KEEP
    summary: bool = False


def parse_options(arguments: Sequence[str]) -> Options:
    """The checked options; SystemExit 2 with one clear line on bad ones, SystemExit 0 after --help."""
    return Options(**vars(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker",
        description="Train a small convolutional network with MultiWorkerMirroredStrategy and Keras fit. "
        "Reads TF_CONFIG (without it: one worker). A second run with the same checkpoint directory goes on "
        "where the first stopped.",
        allow_abbrev=False,
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--dataset",
        type=_dataset,
        default="digits",
        metavar="NAME|FILE.npz",
        help="digits (built in: 1,797 images of 8x8), mnist (downloaded once), synthetic, or a .npz file "
        "with x_train and y_train (and x_test, y_test), or images and labels; default %(default)s",
    )
    data.add_argument(
        "--batch-size",
        type=_whole(1),
        default=DEFAULT_BATCH_SIZE,
        metavar="N",
        help="examples per worker and step; the global batch is N x workers; default %(default)s",
    )
    data.add_argument(
        "--auto-shard",
        choices=AUTO_SHARD,
        default="data",
        help="how tf.data shares the examples out: data (each worker its own part), off (every worker all of "
        "them, in its own order), auto (TensorFlow decides); default %(default)s",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--epochs",
        type=_whole(1),
        default=DEFAULT_EPOCHS,
        metavar="N",
        help="in all, resumed ones included; default %(default)s",
    )
    training.add_argument(
        "--steps-per-epoch",
        type=_whole(1),
        metavar="N",
        help="default: as many global batches as the training examples fill, at least one",
    )
    training.add_argument(
        "--learning-rate",
        type=_positive,
        default=DEFAULT_LEARNING_RATE,
        metavar="X",
        help="Adam's, for one worker; grows with the square root of their number; default %(default)s",
    )
    training.add_argument(
        "--seed",
        type=_whole(0, LARGEST_SEED),
        default=DEFAULT_SEED,
        metavar="N",
        help="of the first weights and the order of examples; default %(default)s",
    )
    training.add_argument("--summary", action="store_true", help="print the model's layers first")
    checkpoints = parser.add_argument_group("checkpoints")
    checkpoints.add_argument(
        "--checkpoint-dir",
        type=_directory,
        default=os.environ.get("ORCH_CHECKPOINT_DIR") or "checkpoints",
        metavar="DIR",
        help="where the chief writes them, and model.keras at the end; default $ORCH_CHECKPOINT_DIR, "
        "else ./checkpoints",
    )
    checkpoints.add_argument(
        "--keep",
        type=_whole(1),
        default=DEFAULT_KEEP,
        metavar="K",
        help="how many of the newest to keep; default %(default)s",
    )
    return parser


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    wanted = (
        f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    )

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return number

    return convert


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _dataset(text: str) -> str:
    if text in NAMED_DATASETS:
        return text
    if not text.endswith(".npz"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {', '.join(NAMED_DATASETS)} nor a file named *.npz"
        )
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return text


def _directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file, not a directory")
    return path


if __name__ == "__main__":
    # What orch asks before it starts any worker: are these options right?
    parse_options(sys.argv[1:])
