"""Which user made a connection to this machine's server, by the kernel's list of its connections."""

from __future__ import annotations

import os
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from orchestrator.ui.address import is_loopback

Address = tuple[str, int]

_ROOT = 0
_ESTABLISHED = b"01"
_LISTS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def may_connect(server: Address, client: Address) -> bool:
    """True if the client is a process of this user or of root, or is on another machine.

    The kernel lists both ends of a connection within the machine, and each with its user. A client that has already
    closed its end counts as another user's: it can no longer be identified.
    """
    uid = uid_of(client, server)
    if uid is None:
        return not _is_of_this_machine(server, client)
    return uid in (os.geteuid(), _ROOT)


def uid_of(ours: Address, theirs: Address) -> int | None:
    """Return the user whose socket is bound to `ours` and connected to `theirs`; None if it is not on this machine."""
    for path in _LISTS:
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            continue
        for wanted in _forms(ours, theirs):
            for line in lines:
                if wanted in line:
                    # sl, local, remote, state, queues, timer, retransmits, uid: man 5 proc
                    fields = line.split()
                    if fields[3] == _ESTABLISHED:
                        return int(fields[7])
    return None


def _is_of_this_machine(server: Address, client: Address) -> bool:
    return is_loopback(client[0]) or client[0] == server[0]


def _forms(ours: Address, theirs: Address) -> set[bytes]:
    """Return ` LOCAL REMOTE ` as the kernel writes it, for an IPv4 address also as a socket for IPv6 has it."""
    found = set()
    for mapped in (False, True):
        local, remote = (_hex(address, mapped=mapped) for address in (ours, theirs))
        found.add(b" %b %b " % (local, remote))
    return found


def _hex(address: Address, *, mapped: bool) -> bytes:
    host: IPv4Address | IPv6Address = ip_address(address[0].partition("%")[0])
    if isinstance(host, IPv4Address) and mapped:
        host = IPv6Address(f"::ffff:{host}")
    # Words of 32 bits in network order, each printed as a number of this machine.
    words = struct.unpack(f"={len(host.packed) // 4}I", host.packed)
    return ("".join(f"{word:08X}" for word in words) + f":{address[1]:04X}").encode()


def address_of(name: tuple[object, ...]) -> Address:
    """Return host and port of a socket's name, an IPv4 address in the form of IPv6 as IPv4."""
    host, port = str(name[0]), int(str(name[1]))
    mapped = ip_address(host.partition("%")[0])
    if isinstance(mapped, IPv6Address) and mapped.ipv4_mapped is not None:
        host = str(mapped.ipv4_mapped)
    return host, port
