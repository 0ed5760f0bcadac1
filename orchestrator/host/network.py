"""This machine's network: whether tasks can listen as orch needs it, its addresses, and private networks."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.host.isolation import isolated
from orchestrator.host.kernel_files import PROC, read_number, read_text

_LOCAL_HOST = "127.0.0.1"
# A local connection is made at once or never.
_CONNECT_S = 1.0
# The trial takes 0.05 s.
_ANSWER_S = 30.0
# A kernel's usual default. Each run needs one at a time.
_NAMESPACES = 15_000
_FILTERED = 2  # the value of Seccomp in /proc/PID/status


def loopback_error() -> str | None:
    """Why a server on 127.0.0.1 cannot be reached; None if it can."""
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind((_LOCAL_HOST, 0))
            server.listen()
            # Binding succeeds even if the interface is down; connecting does not.
            client.settimeout(_CONNECT_S)
            client.connect(server.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return None


def port_sharing_error() -> str | None:
    """Why two sockets cannot bind one port with SO_REUSEPORT; None if they can."""
    try:
        with socket.socket() as holder, socket.socket() as task:
            for one in (holder, task):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((_LOCAL_HOST, 0))
            task.bind(holder.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return None


def addresses() -> tuple[str, ...]:
    """The addresses of the interfaces that are up, without loopback and link-local ones."""
    import psutil  # takes 0.01 s, and only `orch doctor` asks for addresses

    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
        interfaces = psutil.net_if_addrs()
    except OSError:  # some sandboxes forbid it
        return ()
    found = [
        ipaddress.ip_address(entry.address.partition("%")[0])
        for name in interfaces
        if name in up
        for entry in interfaces[name]
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return tuple(str(address) for address in found if not (address.is_loopback or address.is_link_local))


@dataclass(frozen=True)
class NoPrivateNetwork:
    """`reason` is half a sentence; `fix` would allow it."""

    reason: str
    fix: str


def probe_private_network(proc: Path = PROC, trial: Sequence[str] | None = None) -> NoPrivateNetwork | None:
    """None if a run can have one. A child process (`trial`, by default worker.agent.network) tries it as a run's agent
    will, and leaves nothing behind. The kernel's settings under `proc` explain a failure."""
    try:
        done = subprocess.run(
            trial or isolated("worker.agent.network"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
        refused = json.loads(done.stdout)
        return (
            None if refused is None else explain_refusal(str(refused["step"]), int(refused["number"]), proc)
        )
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired) as error:
        return NoPrivateNetwork(f"the trial gave no answer ({error})", "--network host")


def explain_refusal(step: str, number: int, proc: Path = PROC) -> NoPrivateNetwork:
    """Find out from the settings under `proc` why the kernel refuses `step` with the errno `number`."""
    refused = f"{step}: {os.strerror(number)}"
    for name in ("max_user_namespaces", "max_net_namespaces"):
        if read_number(proc / "sys/user" / name) == 0:
            return _by_setting(f"user.{name}", 0, _NAMESPACES, refused)
    if number == errno.ENOSPC:
        return NoPrivateNetwork(
            f"all namespaces that a user may have are taken ({refused})",
            "end what holds them (lsns -t net), or raise user.max_net_namespaces and user.max_user_namespaces",
        )
    if read_number(proc / "sys/kernel/unprivileged_userns_clone") == 0:
        return _by_setting("kernel.unprivileged_userns_clone", 0, 1, refused)
    if read_number(proc / "sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        return _by_setting("kernel.apparmor_restrict_unprivileged_userns", 1, 0, refused)
    if number == errno.EINVAL:
        return NoPrivateNetwork(
            f"this kernel has no namespaces for users or networks ({refused})",
            "a kernel with CONFIG_USER_NS and CONFIG_NET_NS",
        )
    if f"\nSeccomp:\t{_FILTERED}\n" in read_text(proc / "self/status"):
        return NoPrivateNetwork(
            f"a system call filter forbids it to this process ({refused}), as in most containers",
            "docker run --cap-add SYS_ADMIN (as root in it), or --security-opt seccomp=PROFILE with one that allows"
            " unshare; the container's own network (docker run --network none) excludes others as well",
        )
    return NoPrivateNetwork(
        f"the kernel refuses it ({refused}): a chroot, a security module or a limit",
        "run it as a user who may create namespaces (try `unshare -Un true`)",
    )


def _by_setting(name: str, value: int, wanted: int, refused: str) -> NoPrivateNetwork:
    return NoPrivateNetwork(
        f"{name} is {value} here ({refused})",
        f"sysctl -w {name}={wanted} as root (for good: a line in /etc/sysctl.d/orch.conf)",
    )
