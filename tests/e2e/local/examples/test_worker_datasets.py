"""Data sets: the built-in digits, arrays and TFRecord files that are accepted, and one error for the others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from worker.records import main
from worker.training.data.datasets import (
    DatasetError,
    find_damage,
    from_arrays,
    held_out_mask,
    load_dataset,
    load_into_memory,
)
from worker.training.data.record_files import find_files

IMAGES = np.arange(20 * 6 * 6, dtype=np.uint8).reshape(20, 6, 6)
LABELS = np.arange(20) % 2
SHARDS = 8
DIGITS = {"shape": [8, 8, 1], "classes": 10}


def test_digits_are_the_1797_of_uci() -> None:
    digits = load_dataset("digits", seed=0)
    assert digits.train_images.shape == (1442, 8, 8, 1)
    assert digits.headline == "digits: 1442 training and 355 held-out images of 8x8x1, 10 classes"
    assert digits.train_images.dtype == np.float32
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)
    every_label = np.concatenate([digits.train_labels, digits.test_labels])
    assert np.bincount(every_label).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(digits.test_labels).min() >= 34


def test_synthetic_depends_only_on_the_seed() -> None:
    one, same, other = (load_dataset("synthetic", seed) for seed in (1, 1, 2))
    assert np.array_equal(one.train_images, same.train_images)
    assert not np.array_equal(one.train_images, other.train_images)


@pytest.mark.parametrize("keys", [("images", "labels"), ("x_train", "y_train")])
def test_every_fifth_example_of_a_class_is_held_out_without_a_test_part(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", **dict(zip(keys, (IMAGES, LABELS), strict=True)))
    dataset = load_dataset(f"{tmp_path}/mine.npz", seed=0)
    assert (dataset.name, len(dataset.train_labels)) == ("mine.npz", 16)
    assert np.bincount(dataset.test_labels).tolist() == [2, 2]


def test_test_part_of_a_file_is_held_out(tmp_path: Path) -> None:
    colours = np.full((3, 5, 7, 3), 0.5, dtype=np.float64)
    parts = {"x_train": colours, "y_train": [0, 1, 2], "x_test": colours[:1], "y_test": [4]}
    np.savez(tmp_path / "mine.npz", **parts)
    dataset = load_dataset(f"{tmp_path}/mine.npz", seed=0)
    assert (dataset.train_images.shape, dataset.train_images.max()) == ((3, 5, 7, 3), 0.5)
    assert (len(dataset.test_labels), dataset.classes) == (1, 5)


def test_integer_pixels_are_divided_by_the_brightest_of_the_training_part() -> None:
    half = IMAGES[:2] // 2
    dataset = from_arrays("x", {"x_train": IMAGES, "y_train": LABELS, "x_test": half, "y_test": LABELS[:2]})
    assert dataset.train_images.max() == 1.0
    assert dataset.test_images.max() == np.float32(half.max()) / np.float32(IMAGES.max())


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "must hold x_train and y_train, or images and labels; it holds nothing"),
        ({"x": IMAGES}, "it holds x"),
        ({"images": IMAGES, "labels": LABELS[:3]}, "20 images but 3 labels"),
        ({"images": IMAGES[0], "labels": LABELS}, r"images must be \(n, height, width\)"),
        ({"images": IMAGES.astype(str), "labels": LABELS}, "images must be integers or floats"),
        ({"images": IMAGES, "labels": LABELS / 2}, r"must be \(n,\) integers, not \(20,\) of float64"),
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
    (tmp_path / "torn.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"cannot be read as a \.npz file"):
        load_dataset(f"{tmp_path}/torn.npz", seed=0)


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


# -- TFRecord files


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in 8 shards."""
    directory = tmp_path_factory.mktemp("records") / "digits"
    assert main(["digits", str(directory), "--shards", str(SHARDS)]) == 0
    return directory


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def test_written_files_hold_the_data_set(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory named digits is written ./digits."""
    monkeypatch.chdir(written.parent)
    digits, read = load_dataset("digits", 0), load_dataset("./digits", 0)
    assert digits.records is None and read.records is not None
    assert (read.examples, len(read.records.files), len(read.train_images)) == (1442, SHARDS, 0)
    assert np.array_equal(read.test_images, digits.test_images)
    assert np.array_equal(read.test_labels, digits.test_labels)
    whole = load_into_memory(read)
    # Example i is in shard i mod N.
    order = np.concatenate([np.arange(1442)[shard::SHARDS] for shard in range(SHARDS)])
    assert np.array_equal(whole.train_images, digits.train_images[order])
    assert np.array_equal(whole.train_labels, digits.train_labels[order])
    assert (whole.examples, whole.image_shape, whole.classes) == (1442, (8, 8, 1), 10)
    assert find_damage(read) is None and find_damage(digits) is None


def test_float_pixels_are_not_changed(tmp_path: Path) -> None:
    images = np.random.RandomState(0).normal(size=(20, 5, 6, 3)).astype(np.float32)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images[:3], y_test=labels[:3])
    assert main([str(tmp_path / "mine.npz"), str(tmp_path / "out"), "--shards=3"]) == 0
    read = load_into_memory(load_dataset(str(tmp_path / "out"), 0))
    assert np.array_equal(np.sort(read.train_images, axis=0), np.sort(images, axis=0))
    assert np.array_equal(read.test_images, images[:3])


def test_pattern_selects_some_of_the_shards(written: Path) -> None:
    found = find_files(f"{written}/train-0000[0-2]*.tfrecord")
    assert [path.name[:11] for path in found.training] == ["train-00000", "train-00001", "train-00002"]
    assert [path.name[:4] for path in found.held_out] == ["test"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("digits {here}", "is not an empty directory"),
        ("digits {here}/new --shards=1443", "more than the 1442 examples"),
        ("digits {here}/new --shards=0", "is not a whole number from 1"),
        ("{here} {here}/new", "is not a data set; write digits"),
    ],
)
def test_wrong_arguments_of_records_are_refused(
    arguments: str, says: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(written.iterdir())
    with pytest.raises(SystemExit) as stop:
        main(arguments.format(here=written).split())
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
    assert sorted(written.iterdir()) == before


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda content: content[:-7], "it ends within record 180"),
        (lambda content: b"\x1f\x8b not a record file, but long enough", "is not a TFRecord file"),
    ],
)
def test_incomplete_file_is_named_when_the_data_set_is_loaded(
    harm: Callable[[bytes], bytes], says: str, copy: Path
) -> None:
    bad = copy / "train-00005-of-00008.tfrecord"
    bad.write_bytes(harm(bad.read_bytes()))
    with pytest.raises(DatasetError, match=f"{bad} .*{says}"):
        load_dataset(str(copy), 0)


def test_damaged_record_is_found(copy: Path) -> None:
    bad = copy / "train-00005-of-00008.tfrecord"
    content = bytearray(bad.read_bytes())
    content[9000] ^= 1
    bad.write_bytes(content)
    dataset = load_dataset(str(copy), 0)
    assert f"{bad} is damaged after record 79" in (find_damage(dataset) or "")
    with pytest.raises(DatasetError, match="damaged after record 79"):
        load_into_memory(dataset)


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({"classes": 10}, "cannot be understood .'shape'"),
        ({**DIGITS, "shape": [8, 8]}, "shape must be"),
        ({**DIGITS, "classes": "ten"}, "classes an integer"),
        ({**DIGITS, "shape": [8, 8, 3]}, "record 1: an image of 64 bytes, where"),
        ({**DIGITS, "classes": 9}, "label 9 is not within 0 and 8"),
        ({**DIGITS, "image": "pixels"}, "record 1: has no bytes named 'pixels'"),
        ({**DIGITS, "label": "digit"}, "has no integer named 'digit'"),
        ({**DIGITS, "pixels": "int4"}, "pixels must be one of uint8, float32"),
        ({**DIGITS, "brightest": 0}, "brightest must be"),
        ({**DIGITS, "colour": True}, "cannot be understood"),
        ([], "cannot be understood"),
    ],
)
def test_description_that_does_not_fit_is_an_error(description: object, says: str, copy: Path) -> None:
    (copy / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=says):
        load_dataset(str(copy), 0)
