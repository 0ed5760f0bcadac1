"""Reads every byte of a checkpoint: python verify_checkpoint.py FD KIND PATH, under an interpreter with TensorFlow.

Writes one JSON object to FD: {"tensors", "bytes", "numbers", "problems"}. `numbers` are the scalar integer variables of
the checkpoint (a step, an epoch, a save counter). The caller sets the time limit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
# Problems listed at most; a damaged checkpoint may have one per tensor.
_MOST_PROBLEMS = 20
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"


class Reading:
    """The counts and problems found so far; its fields are the answer."""

    def __init__(self) -> None:
        self.tensors = 0
        self.bytes = 0
        self.numbers: dict[str, int] = {}
        self.problems: list[str] = []

    def count(self, name: str, value: Any) -> None:
        """Add one tensor, a NumPy value."""
        self.tensors += 1
        self.bytes += int(getattr(value, "nbytes", 0))
        is_number = getattr(value, "shape", None) == () and getattr(value.dtype, "kind", "") in "iu"
        if is_number and _SLOT not in name:
            self.numbers[name.removesuffix(_VALUE)] = int(value)

    def add_problem(self, what: str, error: BaseException) -> None:
        lines = str(error).strip().splitlines()
        message = f"{what}: {type(error).__name__}"
        self.problems.append((f"{message}: {lines[0]}" if lines else message)[:500])

    @property
    def is_full(self) -> bool:
        return len(self.problems) >= _MOST_PROBLEMS


def main(fd: str, kind: str, path: str) -> None:
    _die_with_parent()
    reading = Reading()
    readers = {
        "tensorflow": read_bundle,
        "saved_model": read_saved_model,
        "keras": read_keras_model,
        "weights.h5": read_hdf5,
    }
    try:
        readers[kind](Path(path), reading)
    except ImportError as error:
        reading.add_problem(f"{sys.executable} cannot read this kind of checkpoint", error)
    except Exception as error:  # a library may raise anything for damaged bytes
        reading.add_problem("it cannot be opened", error)
    with os.fdopen(int(fd), "w") as answer:
        json.dump(vars(reading), answer)


def read_bundle(prefix: Path, reading: Reading) -> None:
    """Read all tensors of a TensorFlow checkpoint, which verifies their checksums."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    for name in sorted(reader.get_variable_to_shape_map()):
        try:
            value = reader.get_tensor(name)
        except Exception as error:  # TensorFlow raises many types
            reading.add_problem(name, error)
            if reading.is_full:
                return
            continue
        if name != _OBJECT_GRAPH:
            reading.count(name, value)


def read_saved_model(directory: Path, reading: Reading) -> None:
    """Parse the graphs of a SavedModel and read its variables."""
    program = import_module("tensorflow.core.protobuf.saved_model_pb2").SavedModel()
    if (binary := directory / "saved_model.pb").exists():
        program.ParseFromString(binary.read_bytes())
    else:
        import_module("google.protobuf.text_format").Parse(
            (directory / "saved_model.pbtxt").read_text(), program
        )
    if not program.meta_graphs:
        reading.problems.append("saved_model.pb holds no graph")
    variables = directory / "variables" / "variables"
    if variables.with_name("variables.index").exists():
        read_bundle(variables, reading)


def read_keras_model(path: Path, reading: Reading) -> None:
    """Verify the checksums of a .keras archive and read the weights in it."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            reading.problems.append(f"{damaged} in the archive is damaged")
            return
        names = archive.namelist()
        if "config.json" not in names:
            reading.problems.append("it holds no config.json")
        for name in names:
            if name.endswith(".h5"):
                with archive.open(name) as weights:
                    _read_datasets(weights, reading)


def read_hdf5(path: Path, reading: Reading) -> None:
    with path.open("rb") as stream:
        _read_datasets(stream, reading)


def _read_datasets(stream: Any, reading: Reading) -> None:
    with import_module("h5py").File(stream, "r") as file:
        for name, dataset in _datasets(file):
            try:
                reading.count(name, dataset[()])
            except OSError as error:
                reading.add_problem(name, error)
                if reading.is_full:
                    return


def _datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in group.items():
        if hasattr(entry, "items"):
            yield from _datasets(entry, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", entry


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent exits: a read from a dead network disk may never return."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # Python put this file's directory first: its modules must not hide those of the interpreter.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).resolve().parent)]
    main(*sys.argv[1:])
