"""`orch doctor --hosts` and the checks before `orch up` starts anything: each host is asked, then all are compared.

Each call takes seconds, so it has several faults.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts_run import HOSTS, Commands
from orch_command import Finished
from testbed import Machine, Testbed

SCRIPT = "import tensorflow as tf\nprint(tf.distribute.MultiWorkerMirroredStrategy())\n"
VENV = Path(sys.prefix)


@pytest.fixture(autouse=True)
def script(project: Path) -> None:
    (project / "train.py").write_text(SCRIPT)


def _doctor(*words: str, hosts: str = "n1,n2,n3") -> list[str]:
    return ["doctor", "--json", "--hosts", hosts, *words, "--", sys.executable, "train.py"]


def _run(machines: Testbed, project: Path, *commands: list[str]) -> list[Finished]:
    with Commands(machines["n0"]) as running:
        return [running.run(project, *words, env={}) for words in commands]


def _found(document: Mapping[str, Any], level: str = "problem") -> list[str]:
    return [each["text"] for each in document["findings"] if each["level"] == level]


@contextmanager
def _mounted(machine: Machine, source: Path | str, place: Path) -> Iterator[None]:
    """Show `source` at `place` on this machine."""
    machine.run("mount", "--bind", str(source), str(place))
    try:
        yield
    finally:
        machine.run("umount", str(place))


@contextmanager
def _full(machine: Machine, free_mib: int) -> Iterator[None]:
    """Fill the directory for temporary files so that `free_mib` are left."""
    fill = f"head -c 300M /dev/zero > /tmp/full; truncate -s -{free_mib}M /tmp/full"
    machine.run("sh", "-c", fill, check=False)
    try:
        yield
    finally:
        machine.run("rm", "/tmp/full")


@contextmanager
def _harmless(machines: Testbed) -> Iterator[None]:
    """Home directories that are read-only or noexec, and a login file that writes."""
    home = f"{machines.directory}/home"
    noisy = machines["n1"].home / ".bashrc"
    noisy.write_text("printf 'welcome to n1'; echo noise >&2\n")
    machines["n1"].run("mount", "-o", "remount,bind,noexec", home)
    machines["n2"].run("mount", "-o", "remount,bind,ro", home)
    try:
        yield
    finally:
        for name in ("n1", "n2"):
            machines[name].run("mount", "-o", "remount,bind,rw,exec", home)
        noisy.unlink()


def test_equal_hosts_are_ready_and_nothing_is_left_on_them(machines: Testbed, project: Path) -> None:
    shared = project / "checkpoints"
    with _harmless(machines):
        before = {name: machine.files() for name, machine in machines.machines.items()}
        command = _doctor("--checkpoint-dir", str(shared), "--interface", "eth0")
        (done,) = _run(machines, project, command)
        assert {name: machine.files() for name, machine in machines.machines.items()} == before
    assert done.code == 0, done
    document = done.document
    assert document["healthy"]
    rows = document["hosts"]
    assert [row["host"] for row in rows] == list(HOSTS)
    assert [row["address"] for row in rows] == [machines[name].address for name in HOSTS]
    assert [(row["script"], row["checkpoints"]) for row in rows] == [("same", "shared")] * 3
    assert [row["reaches"] for row in rows] == ["1 of 1", "2 of 2", "1 of 1"]
    assert len({(row["python"], row["tensorflow"], row["keras"]) for row in rows}) == 1
    assert rows[0]["tensorflow"]
    assert not shared.exists()


def test_hosts_that_cannot_be_used_are_named_before_anything_starts(machines: Testbed, project: Path) -> None:
    """A checkpoint directory that is not shared is a warning, unless the run may restart."""
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0)"
    words = shlex.join([sys.executable, "-I", "-S", "-c", f"{code}; exec(sys.stdin.buffer.raw.readline())"])
    machines["n2"].run("tee", "/tmp/python", stdin=f"#!/bin/sh\nexec {words}\n".encode())
    machines["n2"].run("chmod", "755", "/tmp/python")
    machines["n3"].run("ln", "-s", "/usr/sbin/nologin", "/tmp/python")
    machines["n1"].run("ip", "link", "add", "ib0", "type", "dummy", check=False)
    own = ("--checkpoint-dir", "/var/tmp/checkpoints")
    with _full(machines["n3"], 0):
        done = _run(
            machines,
            project,
            ["doctor", "--engine", "ssh", "--hosts", "n1,nowhere,n0"],
            ["up", "--hosts", "n3,nowhere", "--", sys.executable, "train.py"],
            _doctor("--remote-python", "/tmp/python"),
            _doctor("--interface", "ib0", *own, hosts="n1,n2"),
        )
    assert [each.code for each in done] == [1, 2, 1, 1], done
    table, refused, interpreters, interfaces = done
    title, n1, nowhere, n0, *_ = table.lines
    assert title.split()[:4] == ["HOST", "ADDRESS", "PYTHON", "TENSORFLOW"]
    assert n1.split()[:2] == ["n1", machines["n1"].address]
    assert (nowhere.split(), n0.split()) == (["nowhere", *"--------"], ["n0", *"--------"])
    said = " ".join(table.out.split())
    assert "nowhere: ssh knows no host nowhere" in said
    assert "n0: n0 is there, but no ssh server listens on its port 22" in said

    assert "nowhere: ssh knows no host nowhere; correct the name" in refused.err
    assert "n3: no space is left in /tmp; delete files there, or let TMPDIR" in refused.err
    assert not (machines["n0"].state / "runs").exists()

    missing, old, nologin = _found(interpreters.document)
    assert nologin.startswith("n3: the login shell of this account is nologin, which runs no command")
    assert missing.startswith("n1: its Python was not found (")
    version = sys.version.split()[0]
    assert old == f"n2: Python {version} ({sys.executable}) is too old: orch needs 3.11 or newer"
    assert _found(interfaces.document) == [
        f"{name} has no interface ib0 with an IPv4 address; it has eth0 ({machines[name].address})"
        for name in ("n1", "n2")
    ]
    assert _found(interfaces.document, "warning") == ["/var/tmp/checkpoints on n2 is not the directory of n1"]


def test_differences_between_hosts_are_all_named(machines: Testbed, project: Path) -> None:
    (metadata,) = (VENV / "lib").glob("python3.*/site-packages/tensorflow-*.dist-info/METADATA")
    text = metadata.read_text()
    version = next(line for line in text.splitlines() if line.startswith("Version: ")).split()[1]
    other = machines.shared / "METADATA"
    other.write_text(text.replace(f"Version: {version}", "Version: 2.18.0", 1))
    for name in ("n2", "n3"):
        (machines[name].home / "empty").mkdir(exist_ok=True)
    (machines["n2"].home / "empty/train.py").write_text("# an older version\n")
    empty = f"{machines.directory}/home/empty"
    own = Path("/var/tmp/checkpoints")
    (project / "orch.toml").write_text(f'checkpoint_dir = "{own}"\non_failure = "restart"\n')
    machines.drop_between("n1", "n2")
    with (
        _mounted(machines["n2"], other, metadata),
        _mounted(machines["n2"], empty, project),
        _mounted(machines["n3"], empty, project),
        _full(machines["n2"], 6),
    ):
        (done,) = _run(machines, project, _doctor())
    document = done.document
    path = project / "train.py"
    found = [re.sub(r"has \d MiB free", "has little free", text) for text in _found(document)]
    assert sorted(found) == sorted(
        [
            f"n1 cannot reach n2 at {machines['n2'].address}: no answer",
            f"n2 cannot reach n1 at {machines['n1'].address}: no answer",
            f"TensorFlow differs: {version} on n1 and n3; 2.18.0 on n2 ({sys.executable})",
            f"n3 does not have {path} (No such file or directory)",
            f"{path} is another text on n2 than here",
            f"{own} on n2 and n3 is not the directory of n1, so that a restart would continue from different states",
            "n2 has little free in /tmp, where logs wait to be sent",
        ]
    )
    fixes = {each["text"]: each["fix"] for each in document["findings"]}
    fix = next(fix for text, fix in fixes.items() if "cannot reach" in text)
    assert fix.startswith("open the ports between the hosts in the firewall of both")
    assert [row["script"] for row in document["hosts"]] == ["same", "differs", "missing"]
    assert [row["checkpoints"] for row in document["hosts"]] == ["shared", "own", "own"]
    assert not [path for path in machines["n1"].files() if "/var/tmp/" in path or "orch-shared" in path]
