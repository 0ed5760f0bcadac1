"""Facts about this host, for the `hello` of an agent that is not on the orchestrator's machine."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from worker.wire.facts import Gpu, HostFacts

_SIOCGIFADDR = 0x8915  # man 7 netdevice
_INTERFACE = struct.Struct("16s240x")
_LOOPBACK = "lo"
_GLOBAL_SCOPE = "00"  # of an address in /proc/net/if_inet6
# A sleeping driver needs one or two seconds to wake; a broken one never answers.
_SMI_PATIENCE_S = 5.0
_SMI_FIELDS = "index,uuid,name,memory.total"


def host_facts(directory: str, environ: Mapping[str, str]) -> HostFacts:
    """`environ`: the environment of the command that reached this host."""
    gpus, lack = _gpus(environ)
    return HostFacts(
        directory=directory,
        machine=_machine(),
        addresses=dict(_addresses()),
        reached=_reached_address(environ),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=gpus,
        gpu_lack=lack,
        python=platform.python_version(),
        allowed_cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def _machine() -> tuple[str, ...]:
    """Return what identifies this boot of the kernel and this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, socket.gethostname(), str(Path("/proc/self/ns/pid").readlink())
    return (socket.gethostname(),)


def _reached_address(environ: Mapping[str, str]) -> str | None:
    """The address of this host that ssh connected to, or that srun's machine sees; None if neither started this."""
    connection = environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        return connection[2]
    launcher = environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not launcher:
        return None
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in launcher else socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:
            probe.connect((launcher, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _addresses() -> Iterator[tuple[str, str]]:
    """(Interface, address) of each interface but the loopback: its IPv4 address, else a global IPv6 address."""
    ipv6 = dict(_ipv6_addresses())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if name == _LOOPBACK:
                continue
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, _INTERFACE.pack(name.encode()))
            except OSError:
                if name in ipv6:
                    yield name, ipv6[name]
            else:
                yield name, socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> Iterator[tuple[str, str]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope == _GLOBAL_SCOPE:
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def _gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    """Return (NVIDIA's GPUs, why they cannot be listed). Without a device of the driver no program is started."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return (), None
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return (), "nvidia-smi is not in PATH"
    words = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_SMI_PATIENCE_S, check=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        return (), f"nvidia-smi fails ({error})"
    return tuple(_gpu(line) for line in done.stdout.splitlines() if line.count(",") == 3), None


def _gpu(line: str) -> Gpu:
    name, uuid, model, memory = (field.strip() for field in line.split(","))
    mebibytes = int(memory) if memory.isdigit() else None
    return Gpu(name, uuid, model, None if mebibytes is None else mebibytes << 20)
