"""TFRecord files: they are read as written, and an error names the file that cannot be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster import LONGEST_RUN_S, ROOT

from worker.records import main
from worker.training.data.datasets import DatasetError, find_damage, load_dataset, load_into_memory
from worker.training.data.record_files import count_records, find_files, shard_problem
from worker.training.options.checks import find_contradiction
from worker.training.options.fields import Options
from worker.training.options.parser import parse_options

SHARDS = 8


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in 8 shards."""
    directory = tmp_path_factory.mktemp("records") / "digits"
    assert main(["digits", str(directory), "--shards", str(SHARDS)]) == 0
    return directory


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def test_written_files_hold_the_data_set(written: Path) -> None:
    digits, read = load_dataset("digits", 0), load_dataset(str(written), 0)
    assert read.records is not None
    assert (read.examples, len(read.records.files), len(read.train_images)) == (1442, SHARDS, 0)
    assert np.array_equal(read.test_images, digits.test_images)
    assert np.array_equal(read.test_labels, digits.test_labels)
    whole = load_into_memory(read)
    # Example i is in shard i mod N.
    order = np.concatenate([np.arange(1442)[shard::SHARDS] for shard in range(SHARDS)])
    assert np.array_equal(whole.train_images, digits.train_images[order])
    assert np.array_equal(whole.train_labels, digits.train_labels[order])
    assert (whole.examples, whole.image_shape, whole.classes) == (1442, (8, 8, 1), 10)


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
        (["digits", "{here}"], "is not an empty directory"),
        (["digits", "{here}/new", "--shards=1443"], "more than the 1442 examples"),
        (["digits", "{here}/new", "--shards=0"], "is not a whole number from 1"),
        (["{here}", "{here}/new"], "is not a data set; write digits"),
    ],
)
def test_wrong_arguments_of_records_are_refused(
    arguments: list[str], says: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(written.iterdir())
    with pytest.raises(SystemExit) as stop:
        main([word.format(here=written) for word in arguments])
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
    assert sorted(written.iterdir()) == before


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _overwrite(path: Path) -> None:
    path.write_bytes(b"\x1f\x8b not a record file, but long enough")


@pytest.mark.parametrize(
    ("harm", "says"), [(_truncate, "it ends within record 180"), (_overwrite, "is not a TFRecord file")]
)
def test_incomplete_file_is_named_when_the_data_set_is_loaded(harm, says: str, copy: Path) -> None:  # type: ignore[no-untyped-def]
    bad = copy / "train-00005-of-00008.tfrecord"
    harm(bad)
    with pytest.raises(DatasetError, match=says):
        count_records(bad)
    with pytest.raises(DatasetError, match=f"{bad} .*{says}"):
        load_dataset(str(copy), 0)


def test_damaged_record_is_found(copy: Path) -> None:
    bad = copy / "train-00005-of-00008.tfrecord"
    content = bytearray(bad.read_bytes())
    content[9000] ^= 1
    bad.write_bytes(content)
    dataset = load_dataset(str(copy), 0)
    found = find_damage(dataset)
    assert found is not None
    assert str(bad) in found
    assert "damaged after record 79" in found
    with pytest.raises(DatasetError, match="damaged after record 79"):
        load_into_memory(dataset)


def test_intact_files_have_no_damage(written: Path) -> None:
    assert find_damage(load_dataset(str(written), 0)) is None
    assert find_damage(load_dataset("digits", 0)) is None


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ({"classes": 10}, "cannot be understood .'shape'"),
        ({"shape": [8, 8], "classes": 10}, "shape must be"),
        ({"shape": [8, 8, 1], "classes": "ten"}, "classes an integer"),
        ({"shape": [8, 8, 3], "classes": 10}, "record 1: an image of 64 bytes, where"),
        ({"shape": [8, 8, 1], "classes": 9}, "label 9 is not within 0 and 8"),
        ({"shape": [8, 8, 1], "classes": 10, "image": "pixels"}, "record 1: has no bytes named 'pixels'"),
        ({"shape": [8, 8, 1], "classes": 10, "label": "digit"}, "has no integer named 'digit'"),
        ({"shape": [8, 8, 1], "classes": 10, "pixels": "int4"}, "pixels must be one of uint8, float32"),
        ({"shape": [8, 8, 1], "classes": 10, "brightest": 0}, "brightest must be"),
        ({"shape": [8, 8, 1], "classes": 10, "colour": True}, "cannot be understood"),
        ([], "cannot be understood"),
    ],
)
def test_description_that_does_not_fit_is_an_error(description: object, says: str, copy: Path) -> None:
    (copy / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=says):
        load_dataset(str(copy), 0)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("test*", r"has no test\*.tfrecord"),
        ("dataset.json", "has no dataset.json"),
        ("train*", "names held-out files only"),
        ("*.tfrecord", r"holds no \*.tfrecord files"),
    ],
)
def test_missing_files_are_reported_before_the_start(
    missing: str, says: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in copy.glob(missing):
        path.unlink()
    with pytest.raises(DatasetError, match=says):
        find_files(str(copy))
    with pytest.raises(SystemExit):
        parse_options(["--dataset", str(copy)])
    assert "argument --dataset:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"auto_shard": "file"}, "digits is held in memory"),
        ({"last_batch": "short", "auto_shard": "off"}, "take --auto-shard data"),
        ({"last_batch": "short", "steps_per_epoch": 3}, "give one"),
        (
            {"strategy": "parameter-server", "loop": "custom", "input": "function"},
            "the chief of parameter-server chooses",
        ),
        (
            {"strategy": "dtensor", "loop": "custom", "mesh": (2, 1), "check_data": True},
            "cuts each batch itself",
        ),
    ],
)
def test_contradicting_data_options_are_refused(options: dict[str, object], says: str) -> None:
    found = find_contradiction(Options(**options), {})  # type: ignore[arg-type]
    assert found is not None
    assert says in found
    assert find_contradiction(Options(), {}) is None


def test_fewer_files_than_workers_are_refused_if_the_workers_are_known(written: Path) -> None:
    options = Options(dataset=str(written), auto_shard="file")
    assert find_contradiction(options, {"ORCH_TRAINERS": str(SHARDS)}) is None
    found = find_contradiction(options, {"ORCH_TRAINERS": str(SHARDS + 1)})
    assert found == shard_problem(SHARDS, SHARDS + 1)
    assert found is not None
    assert "there are 8 for 9 workers: write at least 9 shards" in found


def test_directory_named_digits_is_not_the_data_set(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written.parent)
    assert written.name == "digits"
    assert load_dataset("digits", 0).records is None
    assert load_dataset("./digits", 0).records is not None
    assert find_contradiction(Options(auto_shard="file"), {}) is not None
    assert find_contradiction(Options(dataset="./digits", auto_shard="file"), {}) is None


def test_options_and_files_are_checked_without_tensorflow(written: Path) -> None:
    program = (
        "import sys; from worker.training.options.parser import parse_options; "
        "parse_options(sys.argv[1:]); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--dataset", str(written), "--auto-shard", "file"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=True,
    )
    assert "worker.training.data.record_files" in done.stdout.split()
    assert not {"tensorflow", "numpy"} & set(done.stdout.split())
