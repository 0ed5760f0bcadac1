"""The examples: loads a data set by name or from a file, checks it and sets the held-out part aside."""

from __future__ import annotations

import fcntl
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DIGITS = Path(__file__).with_name("digits.npz")
HELD_OUT_EVERY = 5
SMALLEST_SIDE = 4
MOST_CLASSES = 10_000
SYNTHETIC_EXAMPLES, SYNTHETIC_SIDE, SYNTHETIC_CLASSES = 2000, 8, 10

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]
AnyArray = npt.NDArray[np.generic]


class DatasetError(ValueError):
    """The data set cannot be had or cannot be trained on; the text says why and what to do."""


@dataclass(frozen=True)
class Dataset:
    """Images (n, height, width, channels) float32, labels (n,) int32 below `classes`; no part is empty."""

    name: str
    classes: int
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def load_dataset(name: str, seed: int) -> Dataset:
    """The data set `name`: digits, mnist, synthetic (made from `seed`) or a .npz file; DatasetError.

    mnist imports Keras and downloads once; the others need NumPy only.
    """
    match name:
        case "digits":
            return from_arrays("digits", _read_npz(DIGITS))
        case "mnist":
            return from_arrays("mnist", _load_mnist())
        case "synthetic":
            return from_arrays("synthetic", _make_synthetic(seed))
        case _:
            return from_arrays(Path(name).name, _read_npz(Path(name)))


def from_arrays(name: str, arrays: dict[str, AnyArray]) -> Dataset:
    """A data set of x_train, y_train and perhaps x_test, y_test, or of images and labels; DatasetError.

    Without a test part every fifth example of each class is held out. Whole-number pixels are divided by the
    brightest one of the training part, so that they lie within 0 and 1; others are taken as they are.
    """
    if {"x_train", "y_train"} <= arrays.keys():
        images, labels = _checked(name, "x_train", arrays["x_train"], "y_train", arrays["y_train"])
    elif {"images", "labels"} <= arrays.keys():
        images, labels = _checked(name, "images", arrays["images"], "labels", arrays["labels"])
    else:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DatasetError(f"{name} must hold x_train and y_train, or images and labels; it holds {found}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DatasetError(f"{name} holds one of x_test and y_test: give both or neither")
    if "x_test" in arrays:
        test_images, test_labels = _checked(name, "x_test", arrays["x_test"], "y_test", arrays["y_test"])
        if test_images.shape[1:] != images.shape[1:]:
            raise DatasetError(
                f"{name}: x_test's images are {test_images.shape[1:]}, x_train's are {images.shape[1:]}"
            )
    else:
        held_out = held_out_examples(labels)
        if not held_out.any():
            raise DatasetError(
                f"{name} has fewer than {HELD_OUT_EVERY} examples of every class, too few to hold some out: "
                "add x_test and y_test"
            )
        test_images, test_labels = images[held_out], labels[held_out]
        images, labels = images[~held_out], labels[~held_out]
    scale = _scale(images)
    return Dataset(
        name=name,
        classes=int(max(labels.max(), test_labels.max())) + 1,
        train_images=_as_pixels(images, scale),
        train_labels=labels.astype(np.int32),
        test_images=_as_pixels(test_images, scale),
        test_labels=test_labels.astype(np.int32),
    )


def held_out_examples(labels: AnyArray) -> npt.NDArray[np.bool_]:
    """Which examples are held out, bool (n,): the 5th, 10th ... of each class; nothing random decides."""
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return held_out


def _checked(
    name: str, images_key: str, images: AnyArray, labels_key: str, labels: AnyArray
) -> tuple[AnyArray, AnyArray]:
    if images.ndim not in (3, 4):
        raise DatasetError(
            f"{name}: {images_key} must be (n, height, width) or (n, height, width, channels), "
            f"not {images.shape}"
        )
    if images.dtype.kind not in "uif":
        raise DatasetError(f"{name}: {images_key} must be whole numbers or floats, not {images.dtype}")
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise DatasetError(
            f"{name}: {labels_key} must be (n,) whole numbers, not {labels.shape} of {labels.dtype}"
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
            f"{name}: {labels_key} must lie within 0 and {MOST_CLASSES - 1}, "
            f"not {labels.min()} to {labels.max()}"
        )
    if not np.isfinite(images).all():
        raise DatasetError(f"{name}: {images_key} holds NaN or infinity")
    return (images if images.ndim == 4 else images[..., np.newaxis]), labels


def _scale(images: AnyArray) -> float:
    if images.dtype.kind == "f":
        return 1.0
    return float(max(1, int(images.max())))


def _as_pixels(images: AnyArray, scale: float) -> Images:
    return images.astype(np.float32) / np.float32(scale)


def _read_npz(path: Path) -> dict[str, AnyArray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read as a .npz file of plain arrays: {error}") from error


def _load_mnist() -> dict[str, AnyArray]:
    from worker.training.quiet import without_chatter

    with without_chatter():
        import keras

    cache = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # All workers of a host would download the same file at the same time.
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
    """Images of ten random patterns under noise, which a small network can learn."""
    random = np.random.RandomState(seed)
    patterns = random.rand(SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_SIDE)
    labels = np.arange(SYNTHETIC_EXAMPLES) % SYNTHETIC_CLASSES
    noise = random.normal(0.0, 0.3, (SYNTHETIC_EXAMPLES, SYNTHETIC_SIDE, SYNTHETIC_SIDE))
    return {"images": (patterns[labels] + noise).astype(np.float32), "labels": labels}
