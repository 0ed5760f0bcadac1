"""Programs for another host: the program of stage 1, and a zip file of the package `worker` and of portpicker."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# The same zip file on every machine. The first date that the format knows.
_DATE = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o600 << 16
_STAGE_1 = Path("agent", "stage1.py")
_SUFFIXES = frozenset((".py", ".npz", ".md"))


@dataclass(frozen=True)
class Bundle:
    """`stage_1` is one line of Python, `data` the zip file."""

    stage_1: bytes
    data: bytes


@cache
def bundle() -> Bundle:
    """The bundle of this installation."""
    worker = _package("worker")
    stage_1 = (worker / _STAGE_1).read_text(encoding="utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(_files(worker)):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _FILE_MODE
            # Otherwise the name of the operating system.
            entry.create_system = 3
            archive.writestr(entry, data)
    return Bundle(f"exec({stage_1!a})\n".encode(), packed.getvalue())


def _files(worker: Path) -> Iterator[tuple[str, bytes]]:
    for path in worker.rglob("*"):
        if path.suffix in _SUFFIXES and "__pycache__" not in path.parts and path.is_file():
            yield (Path("worker") / path.relative_to(worker)).as_posix(), path.read_bytes()
    portpicker = find_spec("portpicker")
    assert portpicker is not None and portpicker.origin is not None
    yield "portpicker.py", Path(portpicker.origin).read_bytes()


def _package(name: str) -> Path:
    """The directory of a package, which is not imported."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))
