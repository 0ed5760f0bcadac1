"""Runs a cell in a separate process whose state directory is on a small disk.

small_disk_cells.py NAME DIRECTORY      in a mount namespace, with that disk mounted
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from cell_failure import CellFailure, Kind, NotAvailable

if TYPE_CHECKING:
    from cells import Cell

_MOUNT = 'mount -t tmpfs -o "size=$1,mode=700" tmpfs "$XDG_STATE_HOME" || exit 77; shift; exec "$@"'
_NOT_MOUNTED = 77
_FOUND = 78
# Longer than any wait inside.
_TIMEOUT_S = 240


def run_on_small_disk(cell: Cell, directory: Path) -> None:
    """Run a cell; NotAvailable if no disk can be mounted."""
    state = Path(os.environ["XDG_STATE_HOME"])
    state.mkdir(parents=True, exist_ok=True)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    argv = ["unshare", *as_root, "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh"]
    argv += [str(cell.disk_bytes), sys.executable, __file__, cell.name, str(directory)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise NotAvailable(str(error)) from error
    if done.returncode == _FOUND:
        kind, _, text = done.stdout.partition("\n")
        raise CellFailure(Kind(kind), text)
    # unshare exits with 1 if it fails itself, before anything has run.
    if done.returncode == _NOT_MOUNTED or (done.returncode == 1 and "unshare:" in done.stderr):
        raise NotAvailable(f"no disk can be mounted: {done.stderr.strip()}")
    if done.returncode != 0:
        raise CellFailure(Kind.OTHER, f"{done.returncode}: {done.stdout}{done.stderr}")


def _main(name: str, directory: str) -> int:
    sys.path.insert(1, str(Path(__file__).parents[3] / "support"))
    from cells import run_here
    from matrix import BY_NAME

    try:
        run_here(BY_NAME[name], Path(directory))
    except Exception as error:
        print(error.kind if isinstance(error, CellFailure) else Kind.OTHER)
        traceback.print_exception(error, file=sys.stdout)
        return _FOUND
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
