"""`python -m worker.records digits DIR`: writes a data set as TFRecord shards, which `--dataset DIR` reads."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from worker.training.data.record_files import DESCRIPTION, HELD_OUT, NAMED_DATASETS, SUFFIX, DatasetError
from worker.training.data.records import Format
from worker.training.options.fields import array_dataset, whole
from worker.training.process.output import counted, without_startup_messages

if TYPE_CHECKING:
    from worker.training.data.datasets import Dataset

DEFAULT_SHARDS = 8
MOST_SHARDS = 99_999
SYNTHETIC_SEED = 7


def main(arguments: list[str]) -> int:
    """Write the files and return 0; SystemExit 2 after one line about what is wrong."""
    parser = argparse.ArgumentParser(
        prog="worker.records",
        description="Write a data set as TFRecord files: the training part in shards, the held-out part in one.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "dataset", type=array_dataset, metavar="NAME|FILE.npz", help=f"{', '.join(NAMED_DATASETS)} or a file"
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="must be new or empty")
    parser.add_argument(
        "--shards",
        **whole(1, MOST_SHARDS),
        default=DEFAULT_SHARDS,
        help="files of the training part; default %(default)s",
    )
    options = parser.parse_args(arguments)
    directory: Path = options.directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        parser.error(f"{directory} exists and is not an empty directory: name another")
    from worker.training.data.datasets import load_dataset

    try:
        dataset = load_dataset(options.dataset, SYNTHETIC_SEED)
    except DatasetError as error:
        parser.error(str(error))
    if options.shards > dataset.examples:
        parser.error(f"--shards: {options.shards} is more than the {dataset.examples} examples")
    with without_startup_messages():
        import tensorflow  # noqa: F401
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as beside:
        complete = Path(beside) / directory.name
        complete.mkdir()
        write_records(dataset, complete, options.shards)
        # Replaces an empty directory; a data set is never incomplete.
        complete.replace(directory)
    sys.stdout.write(
        f"{counted(dataset.examples, 'training example')} in {counted(options.shards, 'file')} "
        f"and {len(dataset.test_labels)} held out, in {directory}\n"
    )
    return 0


def write_records(dataset: Dataset, directory: Path, shards: int) -> None:
    """Write a data set that is in memory: its training part into `shards` files, the held-out part into one."""
    are_bytes = all(
        _are_bytes(images, dataset.brightest) for images in (dataset.train_images, dataset.test_images)
    )
    for part, shards_of_part, images, labels in (
        ("train", shards, dataset.train_images, dataset.train_labels),
        (HELD_OUT, 1, dataset.test_images, dataset.test_labels),
    ):
        stored = np.rint(images * dataset.brightest).astype("uint8") if are_bytes else images.astype("<f4")
        _write_part(directory, part, shards_of_part, stored, labels)
    form = Format(dataset.image_shape, dataset.classes, brightest=dataset.brightest)
    if not are_bytes:
        form = replace(form, pixels="float32", brightest=1.0)
    text = json.dumps(vars(form) | {"shape": list(form.shape)}, indent=2)
    (directory / DESCRIPTION).write_text(text + "\n")


def _write_part(
    directory: Path, part: str, shards: int, images: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> None:
    """Write `part`-00000-of-0000N.tfrecord ..., with example i in shard i mod N."""
    import tensorflow as tf

    paths = [directory / f"{part}-{shard:05}-of-{shards:05}{SUFFIX}" for shard in range(shards)]
    for shard, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for image, label in zip(images[shard::shards], labels[shard::shards], strict=True):
                writer.write(_encode(image, int(label)))


def _encode(image: npt.NDArray[Any], label: int) -> bytes:
    """Return the example as a serialized tf.train.Example."""
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    written: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )
    return written


def _are_bytes(images: npt.NDArray[Any], brightest: float) -> bool:
    """Return whether the images are bytes that were divided by `brightest`."""
    found = np.rint(images * np.float32(brightest))
    back = found.astype(np.float32) / np.float32(brightest)
    return bool(brightest > 1 and found.min() >= 0 and found.max() <= 255 and np.array_equal(back, images))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
