"""Runs a command as in a container whose system call filter refuses one system call.

python filtered.py SYSTEM_CALL ERROR CMD ...        (unshare EPERM orch up ...)
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_FILTER = 2
_NUMBERS = {
    "x86_64": {"unshare": 272, "waitid": 247, "pidfd_send_signal": 424, "pidfd_open": 434},
    "aarch64": {"unshare": 97, "waitid": 95, "pidfd_send_signal": 424, "pidfd_open": 434},
}
# struct sock_filter (man 2 seccomp): load the call's number; is it the one; refuse it; allow all else.
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000


def is_possible() -> bool:
    return platform.machine() in _NUMBERS


def forbid(system_call: str, number: int = errno.EPERM) -> None:
    """Refuse it with this errno to this process and to all that it will start, for good."""
    wanted = _NUMBERS[platform.machine()][system_call]
    lines = ((_LOAD, 0, 0, 0), (_IS_EQUAL, 0, 1, wanted), (_RETURN, 0, 0, _REFUSE | number))
    program = b"".join(struct.pack("HBBI", *line) for line in (*lines, (_RETURN, 0, 0, _ALLOW)))
    held = ctypes.create_string_buffer(program)
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(sys.argv[1], getattr(errno, sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
