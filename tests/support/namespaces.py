"""Commands in new namespaces, where /proc and /dev can be mounted differently. Needs root."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import pytest

_CLONE_NEWNS = 0x20000
_NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


def namespace(prepare: str, *tools: str) -> tuple[str, ...]:
    """The words before a command that run it in new mount and PID namespaces, after the shell command `prepare`.

    Skips the test, with the reason, where that is not possible; `tools` are programs that the test needs besides.
    """
    needed = ("unshare", "mount", *tools)
    if os.geteuid() != 0 or not all(map(shutil.which, needed)):
        pytest.skip(f"needs root, {' and '.join(needed)}")
    # Process 1 must stay the shell, whatever the shell thinks of a last command.
    words = (*_NAMESPACE, "sh", "-c", f'{prepare} && "$@"; exit $?', "sh")
    probe = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no namespace of its own: {probe.stderr.strip()}")
    return words


def change_mounts(prepare: str) -> None:
    """Give this process its own mounts, and change them by a shell command. OSError, CalledProcessError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["sh", "-ec", f"mount --make-rprivate /; {prepare}"], check=True, capture_output=True)
