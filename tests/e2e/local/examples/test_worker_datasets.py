"""Data sets: the built-in digits, files that are accepted, and errors for the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster import LONGEST_RUN_S, ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from worker.training.data.datasets import DatasetError, from_arrays, held_out_mask, load_dataset

IMAGES = np.arange(20 * 6 * 6, dtype=np.uint8).reshape(20, 6, 6)
LABELS = np.arange(20) % 2


def test_digits_are_the_1797_of_uci() -> None:
    digits = load_dataset("digits", seed=0)
    assert digits.train_images.shape == (1442, 8, 8, 1)
    assert digits.test_images.shape == (355, 8, 8, 1)
    assert digits.classes == 10
    assert digits.headline == "digits: 1442 training and 355 held-out images of 8x8x1, 10 classes"
    assert digits.train_images.dtype == np.float32
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)
    every_label = np.concatenate([digits.train_labels, digits.test_labels])
    assert np.bincount(every_label).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(digits.test_labels).min() >= 34


def test_synthetic_depends_only_on_the_seed() -> None:
    one, same, other = (
        load_dataset("synthetic", 1),
        load_dataset("synthetic", 1),
        load_dataset("synthetic", 2),
    )
    assert np.array_equal(one.train_images, same.train_images)
    assert not np.array_equal(one.train_images, other.train_images)
    assert one.classes == 10


@pytest.mark.parametrize("keys", [("images", "labels"), ("x_train", "y_train")])
def test_every_fifth_example_of_a_class_is_held_out_without_a_test_part(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **dict(zip(keys, (IMAGES, LABELS), strict=True)))
    dataset = load_dataset(str(path), seed=0)
    assert dataset.name == "mine.npz"
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (16, 4)
    assert np.bincount(dataset.test_labels).tolist() == [2, 2]


def test_test_part_of_a_file_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    colours = np.zeros((3, 5, 7, 3), dtype=np.float64)
    np.savez(path, x_train=colours + 0.5, y_train=[0, 1, 2], x_test=colours[:1], y_test=[4])
    dataset = load_dataset(str(path), seed=0)
    assert dataset.train_images.shape == (3, 5, 7, 3)
    assert (len(dataset.test_labels), dataset.classes) == (1, 5)
    assert dataset.train_images.max() == 0.5


def test_integer_pixels_are_divided_by_the_brightest_of_the_training_part() -> None:
    dataset = from_arrays(
        "x", {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:2] // 2, "y_test": LABELS[:2]}
    )
    assert dataset.train_images.max() == 1.0
    assert dataset.test_images.max() == np.float32((IMAGES[:2] // 2).max()) / np.float32(IMAGES.max())


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "must hold x_train and y_train, or images and labels; it holds nothing"),
        ({"x": IMAGES}, "it holds x"),
        ({"images": IMAGES, "labels": LABELS[:3]}, "20 images but 3 labels"),
        ({"images": IMAGES[0], "labels": LABELS}, r"images must be \(n, height, width\)"),
        ({"images": IMAGES.astype(str), "labels": LABELS}, "images must be integers or floats"),
        (
            {"images": IMAGES, "labels": LABELS / 2},
            r"labels must be \(n,\) integers, not \(20,\) of float64",
        ),
        ({"images": IMAGES, "labels": LABELS[:, None]}, r"labels must be \(n,\) integers"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels must be from 0 to 9999, not -1 to 0"),
        ({"images": IMAGES, "labels": LABELS + 10_000}, "labels must be from"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images is empty"),
        ({"images": IMAGES[:, :3], "labels": LABELS}, "images must be at least 4x4"),
        ({"images": np.where(IMAGES > 9, np.nan, 1.0), "labels": LABELS}, "images holds NaN"),
        ({"images": IMAGES[:4], "labels": LABELS[:4]}, "too few to hold some out"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES}, "give both or neither"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, :5], "y_test": LABELS},
            r"x_test's images are \(5, 6, 1\), x_train's are \(6, 6, 1\)",
        ),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_refused(arrays: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        from_arrays("mine.npz", arrays)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY"])
def test_files_that_are_not_archives_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "torn.npz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"cannot be read as a \.npz file"):
        load_dataset(str(path), seed=0)


class Pickled:
    """An object whose unpickling makes a directory."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


def test_file_is_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("bomb.npz", images=np.array([Pickled()], dtype=object), labels=LABELS)
    with pytest.raises(DatasetError, match="cannot be read"):
        load_dataset("bomb.npz", seed=0)
    assert not Path("unpickled").exists()


any_array = hnp.arrays(
    dtype=hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes(),
    shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7),
)
keys = st.sampled_from(["x_train", "y_train", "x_test", "y_test", "images", "labels"])


@given(st.dictionaries(keys, any_array))
def test_any_arrays_give_a_valid_data_set_or_an_error(arrays: dict[str, np.ndarray]) -> None:
    try:
        dataset = from_arrays("any", arrays)
    except DatasetError:
        return
    assert dataset.train_images.shape[1:] == dataset.test_images.shape[1:]
    for images, labels in (
        (dataset.train_images, dataset.train_labels),
        (dataset.test_images, dataset.test_labels),
    ):
        assert images.ndim == 4
        assert len(images) == len(labels) > 0
        assert 0 <= labels.min() <= labels.max() < dataset.classes


@given(hnp.arrays(np.uint8, st.integers(0, 60), elements=st.integers(0, 3)))
def test_fifth_of_each_class_is_held_out(labels: np.ndarray) -> None:
    held_out = held_out_mask(labels)
    for label in range(4):
        assert held_out[labels == label].sum() == (labels == label).sum() // 5


@pytest.mark.timeout(600)
def test_mnist_without_network_is_an_error_with_a_hint(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-P", "-m", "worker", "--dataset", "mnist"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_HOME": str(tmp_path),
            "https_proxy": "http://127.0.0.1:9",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "no_proxy": "",
            "NO_PROXY": "",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    assert process.returncode == 2
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("worker: error:")]
    assert "MNIST cannot be downloaded" in line
    assert "--dataset digits" in line
