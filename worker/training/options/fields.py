"""The built-in program's options as one value, and the converters that argparse reads each with."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.training.data.record_files import NAMED_DATASETS, DatasetError, find_files, is_in_files

STRATEGIES = (
    "multi-worker-mirrored",
    "mirrored",
    "one-device",
    "central-storage",
    "parameter-server",
    "tpu",
    "dtensor",
)
PARAMETER_SERVER = "parameter-server"
LOOPS = ("fit", "custom")
CHECKPOINTS = ("manager", "backup", "preemption")

LARGEST_SEED = 2**31 - 1
# Parts into which a mesh may cut the batch or the model.
MOST_PARTS = 1024
# Characters of a word that are compared with the known words.
_LONGEST = 80


@dataclass(frozen=True)
class Options:
    """The checked options. `batch_size` and `learning_rate` are per replica; `global_batch` is over all replicas (None:
    the sum)."""

    epochs: int = 10
    batch_size: int = 16
    global_batch: int | None = None
    learning_rate: float = 0.002
    steps_per_epoch: int | None = None
    dataset: str = "digits"
    auto_shard: str = "data"
    seed: int = 7
    checkpoint_dir: Path = Path("checkpoints")
    keep: int = 3
    summary: bool = False
    strategy: str = "multi-worker-mirrored"
    loop: str = "fit"
    precision: str = "float32"
    replicas: int | None = None
    device: str | None = None
    tpu: str | None = None
    mesh: tuple[int, int] | None = None
    communication: str = "auto"
    partitioner: str = "none"
    width: int = 1
    device_memory: int | None = None
    input: str = "dataset"
    last_batch: str = "full"
    check_data: bool = False
    checkpoint: str = "manager"
    tensorboard: Path | None = None
    export: str = "both"


def whole(least: int, most: int) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option that takes an integer from `least` to `most`."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return number

    return {"type": convert, "metavar": "N"}


def one_of(*known: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option that takes one of these words, in any spelling of dashes."""

    by_spelling = {_spelling(word): word for word in known}

    def convert(text: str) -> str:
        if _spelling(text) in by_spelling:
            return by_spelling[_spelling(text)]
        hint = did_you_mean(text, known, f"choose from {', '.join(known)}")
        raise argparse.ArgumentTypeError(f"{text!r} is not known; {hint}")

    return {"type": convert, "metavar": f"{{{','.join(known)}}}"}


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def dataset(text: str) -> str:
    """Accept a name, a .npz file, or TFRecord files (a directory of them, or a pattern)."""
    if not is_in_files(text):
        return array_dataset(text)
    try:
        find_files(text)
    except DatasetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def array_dataset(text: str) -> str:
    if text in NAMED_DATASETS:
        return text
    if not text.endswith(".npz"):
        forms = f"write {', '.join(NAMED_DATASETS)}, a file named *.npz or a directory of *.tfrecord"
        hint = did_you_mean(text, NAMED_DATASETS, forms)
        raise argparse.ArgumentTypeError(f"{text!r} is not a data set; {hint}")
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return text


def directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file, not a directory")
    return path


def mesh(text: str) -> tuple[int, int]:
    """Return (2, 2) for `batch=2,model=2`: the parts of the batch and of the model. Either may be left out."""
    sizes = {"batch": 1, "model": 1}
    given = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in given]
    if len(set(names)) < len(names) or not set(names) <= sizes.keys():
        raise argparse.ArgumentTypeError(f"{text!r} is not a mesh; write batch=2,model=2")
    for name, _, size in given:
        if not size.strip().isdecimal() or not 1 <= int(size) <= MOST_PARTS:
            raise argparse.ArgumentTypeError(
                f"{text!r}: {name.strip()} must be a whole number from 1 to {MOST_PARTS}"
            )
        sizes[name.strip()] = int(size)
    return sizes["batch"], sizes["model"]


def size(text: str) -> int:
    """Return the bytes in `512KB`, `1.5MiB` or `3000000`."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    number = text.strip().lower()
    unit = number.lstrip("0123456789.")
    try:
        found = float(number.removesuffix(unit)) * units[unit.strip()]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512KB, 1.5MiB or 3000000") from None
    if not 1 <= found < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least one byte")
    return int(found)


def did_you_mean(word: str, known: Collection[str], otherwise: str) -> str:
    """Return `did you mean "custom"?` with the most similar known word, or `otherwise` if none is similar.

    Case, dashes and underscores are ignored.
    """
    by_spelling = {_spelling(one): one for one in known}
    near = difflib.get_close_matches(_spelling(word[:_LONGEST]), by_spelling, n=1)
    return f'did you mean "{by_spelling[near[0]]}"?' if near else otherwise


def _spelling(word: str) -> str:
    return word.casefold().replace("_", "-")
