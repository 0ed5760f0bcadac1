"""The terminal of a task: a pseudo-terminal whose other end is in the user's `orch up`."""

from __future__ import annotations

import errno
import fcntl
import os
import termios

# Names among the descriptors of a run: the terminal that a task has from its start, and the one for its post-mortem.
TERMINAL, POST_MORTEM = "terminal", "post_mortem"


def open_again(fd: int) -> int:
    """Open the terminal of `fd` again, because the exit of a session leader hangs it up. OSError if its other end is
    closed."""
    again = os.open(os.readlink(f"/proc/self/fd/{fd}"), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)  # noqa: PTH115
    if os.fstat(again).st_rdev != os.fstat(fd).st_rdev:
        os.close(again)
        raise OSError(errno.ENOTTY, "another file has the name of the terminal")
    return again


def take_control(fd: int) -> bool:
    """Make it the controlling terminal of this session leader, so that Ctrl-C is sent to its group. False if it is that
    of another session."""
    try:
        fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
    except OSError:
        return False
    return True


def connect(fd: int) -> None:
    """Make `fd` the standard streams of this process."""
    for stream in (0, 1, 2):
        os.dup2(fd, stream)
