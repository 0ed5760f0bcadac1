"""`orch doctor --hosts` and the checks before `orch up` starts anything: each host is asked, then all are compared.

Each call takes seconds, so it has several faults.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH
from testbed import Machine, Testbed

SCRIPT = "import tensorflow as tf\nprint(tf.distribute.MultiWorkerMirroredStrategy())\n"
VENV = Path(sys.prefix)
HOSTS = ("n1", "n2", "n3")


@pytest.fixture(autouse=True)
def script(project: Path) -> None:
    (project / "train.py").write_text(SCRIPT)


def _doctor(
    machines: Testbed, project: Path, *words: str, hosts: str = "n1,n2,n3", code: int = 1
) -> dict[str, Any]:
    options = ("--as-root-anyway", "--json", "--hosts", hosts)
    command = (str(ORCH), "doctor", *options, *words, "--", sys.executable, "train.py")
    done = machines["n0"].run(*command, cwd=project, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


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
        options = ("--checkpoint-dir", str(shared), "--interface", "eth0")
        document = _doctor(machines, project, *options, code=0)
        assert {name: machine.files() for name, machine in machines.machines.items()} == before
    assert document["healthy"]
    rows = document["hosts"]
    assert [row["host"] for row in rows] == list(HOSTS)
    assert [row["address"] for row in rows] == [machines[name].address for name in HOSTS]
    assert [(row["script"], row["checkpoints"]) for row in rows] == [("same", "shared")] * 3
    assert [row["reaches"] for row in rows] == ["1 of 1", "2 of 2", "1 of 1"]
    assert len({(row["python"], row["tensorflow"], row["keras"]) for row in rows}) == 1
    assert rows[0]["tensorflow"]
    assert not shared.exists()


def test_the_table_is_for_people_and_names_all_hosts_that_cannot_be_reached(
    machines: Testbed, project: Path
) -> None:
    words = ("doctor", "--as-root-anyway", "--engine", "ssh", "--hosts", "n1,nowhere,n0")
    done = machines["n0"].run(str(ORCH), *words, check=False, cwd=project)
    assert done.returncode == 1
    title, n1, nowhere, n0, *_ = done.stdout.splitlines()
    assert title.split()[:4] == ["HOST", "ADDRESS", "PYTHON", "TENSORFLOW"]
    assert n1.split()[:2] == ["n1", machines["n1"].address]
    assert (nowhere.split(), n0.split()) == (["nowhere", *"--------"], ["n0", *"--------"])
    said = " ".join(done.stdout.split())
    assert "nowhere: ssh knows no host nowhere" in said
    assert "n0: n0 is there, but no ssh server listens on its port 22" in said


def test_up_refuses_before_it_starts_anything(machines: Testbed, project: Path) -> None:
    words = ("up", "--as-root-anyway", "--hosts", "n1,nowhere", "--", sys.executable, "train.py")
    with _full(machines["n1"], 0):
        done = machines["n0"].run(str(ORCH), *words, check=False, cwd=project)
    assert done.returncode == 2
    assert "nowhere: ssh knows no host nowhere; correct the name" in done.stderr
    assert "n1: no space is left in /tmp; delete files there, or let TMPDIR" in done.stderr
    assert not (machines["n0"].home / ".local/state/orch/runs").exists()


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
        document = _doctor(machines, project)
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


def test_names_of_one_machine_are_refused(machines: Testbed, project: Path) -> None:
    """Its key is known by the name n1 only. Another name of the user's configuration reaches it, too."""
    config = machines["n0"].home / ".ssh/config"
    text = config.read_text()
    config.write_text(f"Host another\n HostName n1\n HostKeyAlias n1\n{text.replace('Host n*', 'Host *')}")
    try:
        document = _doctor(machines, project, hosts=f"n1,another,{machines['n1'].address}")
    finally:
        config.write_text(text)
    assert "n1 and another are names of one machine" in _found(document)
    assert "host key is not known" in " ".join(_found(document))


def test_missing_interpreter_old_one_and_nologin_are_distinguished(machines: Testbed, project: Path) -> None:
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0)"
    words = shlex.join([sys.executable, "-I", "-S", "-c", f"{code}; exec(sys.stdin.buffer.raw.readline())"])
    machines["n2"].run("tee", "/tmp/python", stdin=f"#!/bin/sh\nexec {words}\n".encode())
    machines["n2"].run("chmod", "755", "/tmp/python")
    machines["n3"].run("ln", "-s", "/usr/sbin/nologin", "/tmp/python")
    document = _doctor(machines, project, "--remote-python", "/tmp/python")
    missing, old, nologin = _found(document)
    assert nologin.startswith("n3: the login shell of this account is nologin, which runs no command")
    assert missing.startswith("n1: its Python was not found (")
    version = sys.version.split()[0]
    assert old == f"n2: Python {version} ({sys.executable}) is too old: orch needs 3.11 or newer"


def test_interface_that_a_host_does_not_have_is_a_problem(machines: Testbed, project: Path) -> None:
    """A checkpoint directory that is not shared is a warning, unless the run may restart."""
    machines["n1"].run("ip", "link", "add", "ib0", "type", "dummy", check=False)
    own = ("--checkpoint-dir", "/var/tmp/checkpoints")
    document = _doctor(machines, project, "--interface", "ib0", *own, hosts="n1,n2")
    assert _found(document)[-1] == (
        f"n2 has no interface ib0 with an IPv4 address; it has eth0 ({machines['n2'].address})"
    )
    assert _found(document, "warning") == ["/var/tmp/checkpoints on n2 is not the directory of n1"]
    document = _doctor(machines, project, "--interface", "lo", hosts="n1,n2")
    assert _found(document)[0].startswith("n1 has no interface lo with an IPv4 address; it has eth0 (")
