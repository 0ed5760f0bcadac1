"""Test the system calls that orch needs and that some containers refuse."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

_OWN_BUILD = "this Python was built without it"


@dataclass(frozen=True)
class RefusedCall:
    """`name`: the system call; `reason`: the kernel's answer in words."""

    name: str
    reason: str
    is_of_python: bool = False


def find_refused_call() -> RefusedCall | None:
    """Make each call once, on this process and without effect. Return the first that is refused.

    The calls are those that are newer than Linux 5.0: filters and kernels of containers lack no older one.
    """
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return RefusedCall("pidfd_open", _OWN_BUILD, is_of_python=True)
    name = "pidfd_open"
    try:
        pidfd = os.pidfd_open(os.getpid())
        try:
            name = "pidfd_send_signal"
            signal.pidfd_send_signal(pidfd, 0)
            name = "waitid(P_PIDFD)"
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        finally:
            os.close(pidfd)
    except ChildProcessError:
        return None  # the answer of waitid: this process is not its own child
    except OSError as error:
        return RefusedCall(name, os.strerror(error.errno or 0))
    return None
