"""The TFRecord files of a data set: finds them and counts their records, with the standard library only."""

from __future__ import annotations

import glob
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from worker.training.process.environment import UsageError
from worker.training.process.output import counted

NAMED_DATASETS = ("digits", "mnist", "synthetic")
SUFFIX = ".tfrecord"
DESCRIPTION = "dataset.json"
# Prefix of the files with held-out examples.
HELD_OUT = "test"

# A record is: length, checksum of the length, bytes, checksum of the bytes. Checksums are masked CRC-32C.
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8


class DatasetError(UsageError):
    """The data set cannot be read or cannot be trained on."""


@dataclass(frozen=True)
class RecordFiles:
    """The files of a data set, each part sorted by name; `description` is the file with the examples' format."""

    training: tuple[Path, ...]
    held_out: tuple[Path, ...]
    description: Path


def is_in_files(text: str) -> bool:
    """Return whether `text` names record files: a directory, one file, or a pattern such as x/*.tfrecord.

    A directory named digits is written ./digits.
    """
    return text not in NAMED_DATASETS and (text.endswith(SUFFIX) or Path(text).is_dir())


def find_files(text: str) -> RecordFiles:
    """Return the record files that `text` names; DatasetError.

    Held-out files are found in the same directory, whether or not a pattern matches them.
    """
    if Path(text).is_dir():
        found = sorted(Path(text).glob(f"*{SUFFIX}"))
    else:
        found = sorted(Path(path) for path in glob.glob(text))  # noqa: PTH207  # a pattern may be absolute
    if not found:
        raise DatasetError(
            f"{text} holds no *{SUFFIX} files: `python -m worker.records digits DIR` writes some"
            if Path(text).is_dir()
            else f"there is no file {text}"
        )
    directories = {path.parent for path in found}
    if len(directories) > 1:
        raise DatasetError(f"{text} names files in several directories: put the shards into one")
    directory = directories.pop()
    training = tuple(path for path in found if not path.name.startswith(HELD_OUT))
    if not training:
        raise DatasetError(
            f"{text} names held-out files only ({HELD_OUT}*{SUFFIX}): none is left to train on"
        )
    held_out = tuple(sorted(directory.glob(f"{HELD_OUT}*{SUFFIX}")))
    if not held_out:
        raise DatasetError(
            f"{directory} has no {HELD_OUT}*{SUFFIX}: write the examples to be held out into a file of that name"
        )
    description = directory / DESCRIPTION
    if not description.is_file():
        raise DatasetError(
            f"{directory} has no {DESCRIPTION}, which gives the shape of the images and the number of classes: "
            '{"shape": [28, 28, 1], "classes": 10}'
        )
    return RecordFiles(training, held_out, description)


def count_records(path: Path) -> int:
    """Return the number of records in a file, by their lengths only; DatasetError if it is not a whole record file."""
    records = 0
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            position = 0
            while position < size:
                header = file.read(_LENGTH.size + _CHECKSUM.size)
                if records == 0 and not _is_header(header):
                    raise DatasetError(f"{path} is not a TFRecord file (compressed ones cannot be read)")
                if len(header) == _LENGTH.size + _CHECKSUM.size:
                    position += len(header) + _LENGTH.unpack_from(header)[0] + _CHECKSUM.size
                if len(header) < _LENGTH.size + _CHECKSUM.size or position > size:
                    raise DatasetError(
                        f"{path} is damaged: it ends within record {records + 1}; write it again, or leave it out"
                    )
                file.seek(position)
                records += 1
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    return records


def shard_problem(files: int, workers: int) -> str | None:
    """Return why `--auto-shard file` is not possible with so few files, None if it is."""
    if files >= workers:
        return None
    return (
        f"--auto-shard file gives each worker files of its own, and there {'is' if files == 1 else 'are'} {files} "
        f"for {counted(workers, 'worker')}: write at least {counted(workers, 'shard')}, or take --auto-shard data"
    )


def _is_header(header: bytes) -> bool:
    if len(header) < _LENGTH.size + _CHECKSUM.size:
        return False
    checksum = 0xFFFFFFFF
    for byte in header[: _LENGTH.size]:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (_CASTAGNOLI if checksum & 1 else 0)
    checksum ^= 0xFFFFFFFF
    rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    (stored,) = _CHECKSUM.unpack_from(header, _LENGTH.size)
    return bool((rotated + _MASK) & 0xFFFFFFFF == stored)
