"""The machine's facts: real sockets, files and processes, and files as other kernels write them."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from healthy_machine import SPEC
from waiting import PATIENCE_S

from orchestrator.host.checks.context import Context
from orchestrator.host.checks.directories import check_state_contents, check_state_owner, check_state_writable
from orchestrator.host.checks.finding import Finding, Level
from orchestrator.host.checks.network import check_port_server, check_ports
from orchestrator.host.devices import ask_nvidia_smi, gpu_devices
from orchestrator.host.directories import content_errors, filesystem_of, write_error
from orchestrator.host.installed import ask_interpreter
from orchestrator.host.network import addresses, loopback_error, port_sharing_error

pytestmark = pytest.mark.usefixtures("no_leaked_descriptors")


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_versions_of_this_interpreter(tmp_path: Path) -> None:
    """The output of sitecustomize is ignored."""
    write(tmp_path / "sitecustomize.py", "print('welcome {', flush=True)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = ask_interpreter([sys.executable], environ, tmp_path, PATIENCE_S)
    assert found.error is None
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert set(found.modules) >= {"tensorflow", "keras"}
    assert found.versions["tensorflow"] and found.versions["keras"]


def test_modules_in_the_tasks_directory_are_ignored(tmp_path: Path) -> None:
    """Only the directory of a script counts, and no script is known."""
    for name in ("tensorflow.py", "keras.py", "json.py"):
        write(tmp_path / name, "raise SystemExit('imported')")
    without = [sys.executable, "-S", "-E"]
    found = ask_interpreter(without, os.environ, tmp_path, PATIENCE_S)
    assert found.error is None and found.modules == () and found.versions == {}


def test_packages_on_pythonpath_count(tmp_path: Path) -> None:
    write(tmp_path / "site/tensorflow/__init__.py", "raise SystemExit('imported')")
    write(tmp_path / "site/tensorflow-9.9.dist-info/METADATA", "Name: tensorflow\nVersion: 9.9\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = ask_interpreter([sys.executable, "-S"], environ, tmp_path, PATIENCE_S)
    assert found.modules == ("tensorflow",) and found.versions == {"tensorflow": "9.9"}


def test_python_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    python = tmp_path / "python"
    table = {
        "echo nothing of use": "exit code 0",
        "echo out of order >&2; exit 3": "out of order",
        "kill -9 $$": "exit code -9",
        "echo '[]'": "exit code 0",
    }
    for program, error in table.items():
        write(python, f"#!/bin/sh\n{program}", 0o755)
        assert ask_interpreter([str(python)], os.environ, tmp_path, PATIENCE_S).error == error, program
    write(python, "#!/bin/sh\nexec sleep 600", 0o755)
    late = ask_interpreter([str(python)], os.environ, tmp_path, patience_s=0.05)
    assert late.error == "no answer within 0.05 s"
    missing = ask_interpreter([str(tmp_path / "none")], os.environ, tmp_path)
    assert missing.error == "No such file or directory"


def test_answer_or_error_of_nvidia_smi_is_reported(tmp_path: Path) -> None:
    listing = "GPU 0: NVIDIA A100 (UUID: GPU-1-2)\nGPU 1: NVIDIA A100 (UUID: GPU-3-4)\n"
    mismatch = "Driver/library version mismatch"
    table: list[tuple[str, float, tuple[tuple[str, ...] | None, str | None]]] = [
        (f"printf '%s' '{listing}'", PATIENCE_S, (("GPU 0: NVIDIA A100", "GPU 1: NVIDIA A100"), None)),
        (f"echo; echo '{mismatch}'; exit 18", PATIENCE_S, ((), mismatch)),
        ("exit 9", PATIENCE_S, ((), "exit code 9")),
        ("exec sleep 600", 0.05, ((), "no answer within 0.05 s")),
    ]
    for program, patience_s, answer in table:
        write(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\n{program}", 0o755)
        assert ask_nvidia_smi({"PATH": f"{tmp_path}/bin:/bin:/usr/bin"}, patience_s) == answer, program
    assert ask_nvidia_smi({"PATH": ""}, PATIENCE_S) == (None, None)


def test_devices_of_gpus_are_listed_by_number(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):
        write(tmp_path / name, "")
    assert gpu_devices(tmp_path) == ("nvidia0", "nvidia1", "nvidia10")
    assert gpu_devices(tmp_path / "none") == ()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def test_used_ports_are_counted(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert (loopback_error(), port_sharing_error()) == (None, None)
    (found,) = check_ports(Context(SPEC, {}))
    first, last = (int(word) for word in (found.where or "").split(" to "))
    assert first <= port <= last
    free = int(found.text.partition(" ")[0].replace(",", ""))
    assert 1 <= free <= last - first


def test_addresses_are_reachable_from_elsewhere() -> None:
    found = [ipaddress.ip_address(address) for address in addresses()]
    assert not any(address.is_loopback or address.is_link_local for address in found)


def port_server(address: str | None) -> list[Finding]:
    return list(check_port_server(Context(SPEC, {"PORTSERVER_ADDRESS": address} if address else {})))


def test_port_server_of_the_site() -> None:
    assert port_server(None) == []
    address = f"@orch-doctor-{os.getpid()}"
    (refused,) = port_server(address)
    assert refused.where == address and refused.text.endswith(": Connection refused")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + address[1:])
        server.listen()
        assert [found.level for found in port_server(address)] == [Level.OK]
    assert [found.text.endswith(": AF_UNIX path too long") for found in port_server("x" * 200)] == [True]


def state_findings() -> list[Finding]:
    context = Context(SPEC, {})
    checks = (check_state_writable, check_state_contents, check_state_owner)
    return [finding for check in checks for finding in check(context)]


def test_missing_state_directory_is_not_created(state_dir: Path) -> None:
    before = sorted(state_dir.parent.iterdir())
    assert write_error(state_dir / "orch/runs") is None
    assert content_errors(state_dir.parent) == {}
    assert filesystem_of(state_dir.parent.resolve(), Path("/proc/self/mountinfo").read_text())
    last = state_findings()[-1]
    assert (last.level, last.text) == (Level.OK, "will be created, readable by you alone")
    assert last.where == f"{state_dir}/orch"
    assert sorted(state_dir.parent.iterdir()) == before


def test_mode_and_link_of_the_state_directory(state_dir: Path) -> None:
    real = state_dir.parent / "elsewhere"
    real.mkdir()
    real.chmod(0o750)
    state_dir.mkdir()
    (state_dir / "orch").symlink_to(real)
    names, link = (finding for finding in state_findings() if finding.level is Level.NOTE)
    assert "(mode 750)" in names.text and link.text == f"is a symbolic link to {real}"


def test_state_path_that_is_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/{'x' * 300}")
    (found,) = state_findings()
    assert found.level is Level.PROBLEM and found.text.endswith("cannot be written (File name too long)")
    assert "XDG_STATE_HOME" in (found.fix or "")


MOUNTS = """\
20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
21 20 0:30 / /home rw - nfs4 server:/home rw
22 20 0:31 / /with\\040space rw,relatime shared:7 master:1 - tmpfs tmpfs rw
23 21 0:32 / /home rw - overlay overlay rw
nonsense
"""


def test_file_system_of_a_path() -> None:
    """The longest mount point counts, and of mounts at one place the last."""
    table = {"/": "ext4", "/home/me": "overlay", "/homes": "ext4", "/with space/x": "tmpfs", "/with": "ext4"}
    assert {path: filesystem_of(Path(path), MOUNTS) for path in table} == table
    assert filesystem_of(Path("/"), "") == ""
