"""Puts this process and its children into a private network: a network namespace with a loopback interface only.

Without root it also makes a user namespace, in which uid and gid are mapped to themselves and no capability is gained.
The process must have one thread. `python -m worker.agent.network` tries it and prints the result as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

PRIVATE = "private"
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # man 2 unshare
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914  # man 7 netdevice
_IFF_UP = 0x1
_INTERFACE = struct.Struct("16sH22x")  # struct ifreq: a name, its flags
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522  # two words each: man 2 capset
_ANSWER_S = 5.0
_SELF = Path("/proc/self")
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkRefused(Exception):
    """The kernel refused `step` (a phrase) with errno `number`. The process must not start anything after it."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)}")
        self.step = step
        self.number = number


def enter_private() -> None:
    """Leave the machine's network for a private one. Raises NetworkRefused."""
    before = _capabilities()
    if not _leave_network():
        _leave_network_and_users()
    _raise_loopback()
    _drop_new_capabilities(before)


class Network:
    """The network of an agent. `refusal`: why it could not be made private; then no port may be held and no task
    started, because they would be reachable from outside."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._is_private = False

    def enter(self, wanted: str) -> None:
        """Enter a private network once if that is `wanted`."""
        if wanted != PRIVATE or self._is_private:
            return
        try:
            enter_private()
        except NetworkRefused as refused:
            self.refusal = f"a private network cannot be made: {refused}"
        self._is_private = True


def _leave_network() -> bool:
    """Return False if this process lacks the capability."""
    try:
        _unshare(_CLONE_NEWNET, "unshare(CLONE_NEWNET)")
    except NetworkRefused as refused:
        if refused.number == errno.EPERM:
            return False
        raise
    return True


def _leave_network_and_users() -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET, "unshare(CLONE_NEWUSER | CLONE_NEWNET)")
    # The kernel requires it: dropping a group could otherwise give access that the group denies.
    _write("setgroups", "deny")
    _write("uid_map", f"{user} {user} 1")
    _write("gid_map", f"{group} {group} 1")


def _unshare(flags: int, step: str) -> None:
    # os.unshare is new in Python 3.12.
    if _libc.unshare(flags) != 0:
        raise NetworkRefused(step, ctypes.get_errno())


def _write(name: str, text: str) -> None:
    try:
        (_SELF / name).write_text(text)
    except OSError as error:
        raise NetworkRefused(f"writing /proc/self/{name}", error.errno or 0) from error


def _raise_loopback() -> None:
    """Bring up the loopback interface. The kernel adds 127.0.0.1 and ::1."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            found = fcntl.ioctl(control, _SIOCGIFFLAGS, _INTERFACE.pack(b"lo", 0))
            flags = _INTERFACE.unpack(found)[1]
            fcntl.ioctl(control, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", flags | _IFF_UP))
    except OSError as error:
        raise NetworkRefused("bringing up the loopback interface", error.errno or 0) from error


def _capabilities() -> tuple[int, int, int]:
    """Return the inheritable, permitted and effective ones as bit masks: capability N is bit N."""
    lines = (_SELF / "status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if line.startswith("Cap"))
    return int(fields["CapInh"], 16), int(fields["CapPrm"], 16), int(fields["CapEff"], 16)


def _drop_new_capabilities(before: tuple[int, int, int]) -> None:
    """Drop the capabilities that a new user namespace adds, for this process and for setuid programs it starts."""
    now = _capabilities()
    if now == before:
        return
    inheritable, permitted, effective = before
    last = int(_LAST_CAPABILITY.read_text())
    for number in range(last + 1):
        if not permitted >> number & 1 and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            raise NetworkRefused("prctl(PR_CAPBSET_DROP)", ctypes.get_errno())
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    masks = (effective, permitted, inheritable)
    words = [mask >> shift & 0xFFFFFFFF for shift in (0, 32) for mask in masks]
    if _libc.capset(header, struct.pack("6I", *words)) != 0:
        raise NetworkRefused("capset", ctypes.get_errno())


def _check_loopback() -> None:
    """Connect over the loopback interface once, so that a broken one is found before tasks start."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.settimeout(_ANSWER_S)
        client.connect(server.getsockname())


def main() -> None:
    """Print null, or {step, number} of what the kernel refused."""
    answer: dict[str, object] | None = None
    try:
        enter_private()
        _check_loopback()
    except NetworkRefused as refused:
        answer = {"step": refused.step, "number": refused.number}
    except OSError as error:
        answer = {"step": "a connection to 127.0.0.1 inside", "number": error.errno or errno.ETIMEDOUT}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
