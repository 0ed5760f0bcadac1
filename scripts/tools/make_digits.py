#!/usr/bin/env python3
"""Make worker/training/data/digits.npz, always with the same bytes, from the UCI file of handwritten digits.

Usage: scripts/tools/make_digits.py optdigits.tes [digits.npz]

The source is `optdigits.tes` of https://doi.org/10.24432/C50P49, or the same rows as `digits.csv.gz`, the
copy that scikit-learn carries: 1,797 lines of 64 pixels (0 to 16, row by row) and the digit, separated by
commas.
"""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

EXAMPLES, SIDE, BRIGHTEST, CLASSES = 1797, 8, 16, 10
# The earliest time in a zip archive. With a fixed time the bytes depend only on the data.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
DEFAULT_TARGET = Path(__file__).resolve().parents[2] / "worker" / "training" / "data" / "digits.npz"


def read_rows(source: Path) -> npt.NDArray[np.uint8]:
    """Return the table in `source`, uint8 (1797, 65); ValueError if it is not the test set of the digits."""
    raw = source.read_bytes()
    text = gzip.decompress(raw).decode() if source.suffix == ".gz" else raw.decode()
    rows = np.array([[int(float(cell)) for cell in line.split(",")] for line in text.split()], dtype=np.int64)
    if rows.shape != (EXAMPLES, SIDE * SIDE + 1):
        raise ValueError(
            f"{source}: expected {EXAMPLES} rows of {SIDE * SIDE + 1} numbers, found {rows.shape}"
        )
    pixels, labels = rows[:, :-1], rows[:, -1]
    if pixels.min() < 0 or pixels.max() != BRIGHTEST or set(labels.tolist()) != set(range(CLASSES)):
        raise ValueError(f"{source}: pixels must be 0 to {BRIGHTEST} and labels 0 to {CLASSES - 1}")
    return rows.astype(np.uint8)


def write_npz(target: Path, arrays: dict[str, npt.NDArray[np.uint8]]) -> None:
    """Like `np.savez_compressed`, but with a fixed time in the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            body = io.BytesIO()
            np.save(body, array, allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", ZIP_EPOCH), body.getvalue(), zipfile.ZIP_DEFLATED, 9
            )


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[1]) if len(arguments) == 2 else DEFAULT_TARGET
    rows = read_rows(Path(arguments[0]))
    write_npz(target, {"images": rows[:, :-1].reshape(EXAMPLES, SIDE, SIDE), "labels": rows[:, -1]})
    print(f"{target}: {EXAMPLES} images, {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
