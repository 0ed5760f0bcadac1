"""Data sets: loads one by name or from files, checks it, and splits off the held-out part."""

from __future__ import annotations

import fcntl
import os
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worker.training.data.record_files import DatasetError, find_files, is_in_files, shard_problem
from worker.training.data.records import Records, first_damage, open_records, read_all, read_description
from worker.training.process.output import counted, without_startup_messages

DIGITS = Path(__file__).with_name("digits.npz")
HELD_OUT_EVERY = 5
SMALLEST_SIDE = 4
MNIST_FORM = ((28, 28, 1), 10)
MOST_CLASSES = 10_000
SYNTHETIC_EXAMPLES, SYNTHETIC_SIDE, SYNTHETIC_CLASSES = 2000, 8, 10

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]
AnyArray = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Dataset:
    """Images (n, height, width, channels) float32, labels (n,) int32 below `classes`; no part is empty.

    With `records` the training part stays in files, and its arrays here are empty. Integer pixels were divided by
    `brightest`.
    """

    name: str
    classes: int
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    records: Records | None = None
    brightest: float = 1.0

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.train_images) if self.records is None else self.records.examples

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.test_images.shape[1:]
        return height, width, channels

    @property
    def headline(self) -> str:
        size = "x".join(str(side) for side in self.image_shape)
        return (
            f"{self.name}: {self.examples} training and {len(self.test_images)} held-out "
            f"images of {size}, {counted(self.classes, 'class', 'classes')}"
        )


def load_dataset(name: str, seed: int) -> Dataset:
    """Return the data set `name`: digits, mnist, synthetic (from `seed`), a .npz file or TFRecord files; DatasetError.

    mnist imports Keras and is downloaded once; TFRecord files import TensorFlow; the others need NumPy only.
    """
    match name:
        case "digits":
            return from_arrays("digits", _read_npz(DIGITS))
        case "mnist":
            return from_arrays("mnist", _load_mnist())
        case "synthetic":
            return from_arrays("synthetic", _make_synthetic(seed))
        case _ if is_in_files(name):
            return _from_records(name)
        case _:
            return from_arrays(Path(name).name, _read_npz(Path(name)))


def read_image_shape(name: str, seed: int) -> tuple[tuple[int, int, int], int]:
    """Return the images' (height, width, channels) and the number of classes of the data set `name`; DatasetError.

    Needs NumPy only and downloads nothing.
    """
    if name == "mnist":
        return MNIST_FORM
    if is_in_files(name):
        form = read_description(find_files(name).description)
        return form.shape, form.classes
    dataset = load_dataset(name, seed)
    return dataset.image_shape, dataset.classes


def load_into_memory(dataset: Dataset) -> Dataset:
    """Return the data set with its training part read from its files, if it has any; DatasetError."""
    if dataset.records is None:
        return dataset
    images, labels = read_all(dataset.records)
    return replace(dataset, train_images=images, train_labels=labels, records=None)


def check_shards(dataset: Dataset, auto_shard: str, workers: int) -> None:
    """Raise DatasetError if `auto_shard` is file and there are fewer files than workers."""
    if auto_shard == "file" and dataset.records is not None:
        problem = shard_problem(len(dataset.records.files), workers)
        if problem is not None:
            raise DatasetError(problem)


def find_damage(dataset: Dataset, error: Exception | None = None) -> str | None:
    """Return which file of the data set is damaged and how, None without damage or without files.

    With `error`, None also if TensorFlow does not raise such an error for a damaged record.
    """
    if dataset.records is None:
        return None
    import tensorflow as tf

    if error and not isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        return None
    return first_damage(dataset.records)


def from_arrays(name: str, arrays: dict[str, AnyArray]) -> Dataset:
    """Return the data set of x_train, y_train and optionally x_test, y_test, or of images and labels; DatasetError.

    Without a test part every fifth example of each class is held out. Integer pixels are divided by the brightest one
    of the training part, so that they are between 0 and 1; float pixels are not changed.
    """
    if {"x_train", "y_train"} <= arrays.keys():
        images, labels = _checked(name, arrays, "x_train", "y_train")
    elif {"images", "labels"} <= arrays.keys():
        images, labels = _checked(name, arrays, "images", "labels")
    else:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DatasetError(f"{name} must hold x_train and y_train, or images and labels; it holds {found}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DatasetError(f"{name} holds one of x_test and y_test: give both or neither")
    if "x_test" in arrays:
        test_images, test_labels = _checked(name, arrays, "x_test", "y_test")
        if test_images.shape[1:] != images.shape[1:]:
            raise DatasetError(
                f"{name}: x_test's images are {test_images.shape[1:]}, x_train's are {images.shape[1:]}"
            )
    else:
        held_out = held_out_mask(labels)
        if not held_out.any():
            raise DatasetError(
                f"{name} has fewer than {HELD_OUT_EVERY} examples of every class, too few to hold some out: "
                "add x_test and y_test"
            )
        test_images, test_labels = images[held_out], labels[held_out]
        images, labels = images[~held_out], labels[~held_out]
    scale = 1.0 if images.dtype.kind == "f" else float(max(1, int(images.max())))
    return Dataset(
        name=name,
        classes=int(max(labels.max(), test_labels.max())) + 1,
        train_images=images.astype(np.float32) / np.float32(scale),
        train_labels=labels.astype(np.int32),
        test_images=test_images.astype(np.float32) / np.float32(scale),
        test_labels=test_labels.astype(np.int32),
        brightest=scale,
    )


def held_out_mask(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Return which examples are held out, bool (n,): the 5th, 10th ... of each class."""
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return held_out


def _checked(
    name: str, arrays: dict[str, AnyArray], images_key: str, labels_key: str
) -> tuple[AnyArray, AnyArray]:
    images, labels = arrays[images_key], arrays[labels_key]
    if images.ndim not in (3, 4):
        raise DatasetError(
            f"{name}: {images_key} must be (n, height, width) or (n, height, width, channels), "
            f"not {images.shape}"
        )
    if images.dtype.kind not in "uif":
        raise DatasetError(f"{name}: {images_key} must be integers or floats, not {images.dtype}")
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise DatasetError(
            f"{name}: {labels_key} must be (n,) integers, not {labels.shape} of {labels.dtype}"
        )
    if len(images) != len(labels):
        raise DatasetError(f"{name}: {len(images)} {images_key} but {len(labels)} {labels_key}")
    if len(images) == 0:
        raise DatasetError(f"{name}: {images_key} is empty")
    if min(images.shape[1:3]) < SMALLEST_SIDE or images.size == 0:
        raise DatasetError(
            f"{name}: images must be at least {SMALLEST_SIDE}x{SMALLEST_SIDE}, not {images.shape[1:]}"
        )
    if labels.min() < 0 or labels.max() >= MOST_CLASSES:
        raise DatasetError(
            f"{name}: {labels_key} must be from 0 to {MOST_CLASSES - 1}, not {labels.min()} to {labels.max()}"
        )
    if not np.isfinite(images).all():
        raise DatasetError(f"{name}: {images_key} holds NaN or infinity")
    return (images if images.ndim == 4 else images[..., np.newaxis]), labels


def _read_npz(path: Path) -> dict[str, AnyArray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read as a .npz file of plain arrays: {error}") from error


def _from_records(name: str) -> Dataset:
    with without_startup_messages():
        import tensorflow  # noqa: F401
    records, images, labels = open_records(name)
    return Dataset(
        name=Path(name).name,
        classes=records.format.classes,
        train_images=np.empty((0, *records.format.shape), np.float32),
        train_labels=np.empty(0, np.int32),
        test_images=images,
        test_labels=labels,
        records=records,
        brightest=records.format.brightest,
    )


def _load_mnist() -> dict[str, AnyArray]:
    with without_startup_messages():
        import keras

    cache = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Otherwise all workers of a host download the same file at the same time.
        with (cache / ".mnist.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception when it cannot download
        raise DatasetError(
            f"MNIST cannot be downloaded ({error}): connect to the network once, "
            "or use --dataset digits, which is built in"
        ) from error
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def _make_synthetic(seed: int) -> dict[str, AnyArray]:
    """Return images of ten random patterns with noise, which a small network can learn."""
    random = np.random.RandomState(seed)
    patterns = random.rand(SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_SIDE)
    labels = np.arange(SYNTHETIC_EXAMPLES) % SYNTHETIC_CLASSES
    noise = random.normal(0.0, 0.3, (SYNTHETIC_EXAMPLES, SYNTHETIC_SIDE, SYNTHETIC_SIDE))
    return {"images": (patterns[labels] + noise).astype(np.float32), "labels": labels}
