"""`orch doctor --hosts` and the checks before `orch up` starts anything: each host is asked, then all are compared."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH
from testbed import Machine, Testbed

SCRIPT = "import tensorflow as tf\nprint(tf.distribute.MultiWorkerMirroredStrategy())\n"
VENV = Path(sys.prefix)


def _doctor(
    machines: Testbed, project: Path, *words: str, hosts: str = "n1,n2,n3", code: int = 1
) -> dict[str, Any]:
    (project / "train.py").write_text(SCRIPT)
    command = ("--", sys.executable, "train.py")
    done = machines["n0"].run(
        str(ORCH),
        "doctor",
        "--as-root-anyway",
        "--json",
        "--hosts",
        hosts,
        *words,
        *command,
        cwd=project,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def _problems(document: Mapping[str, Any]) -> list[str]:
    return [each["text"] for each in document["findings"] if each["level"] == "problem"]


def _unmount(machine: Machine, place: str) -> None:
    machine.run("umount", place)


def test_equal_hosts_are_ready_and_nothing_is_left_on_them(machines: Testbed, project: Path) -> None:
    before = {name: machine.files() for name, machine in machines.machines.items()}
    shared = project / "checkpoints"
    document = _doctor(machines, project, "--checkpoint-dir", str(shared), code=0)
    assert document["healthy"]
    rows = document["hosts"]
    assert [row["host"] for row in rows] == ["n1", "n2", "n3"]
    assert [row["address"] for row in rows] == [machines[name].address for name in ("n1", "n2", "n3")]
    assert [(row["script"], row["checkpoints"]) for row in rows] == [("same", "shared")] * 3
    assert [row["reaches"] for row in rows] == ["1 of 1", "2 of 2", "1 of 1"]
    assert len({(row["python"], row["tensorflow"], row["keras"]) for row in rows}) == 1
    assert rows[0]["tensorflow"]
    assert not shared.exists()
    assert {name: machine.files() for name, machine in machines.machines.items()} == before


def test_the_table_is_for_people_too(machines: Testbed, project: Path) -> None:
    done = machines["n0"].run(
        str(ORCH),
        "doctor",
        "--as-root-anyway",
        "--engine",
        "ssh",
        "--hosts",
        "n1,nowhere",
        check=False,
        cwd=project,
    )
    assert done.returncode == 1
    title, n1, nowhere, *_ = done.stdout.splitlines()
    assert title.split()[:4] == ["HOST", "ADDRESS", "PYTHON", "TENSORFLOW"]
    assert n1.split()[:2] == ["n1", machines["n1"].address]
    assert nowhere.split() == ["nowhere", *"--------"]
    assert "nowhere: ssh knows no host nowhere" in done.stdout


def test_hosts_that_cannot_be_reached_are_all_named(machines: Testbed, project: Path) -> None:
    document = _doctor(machines, project, hosts="nowhere,n1,n0")
    unknown, refused = _problems(document)
    assert unknown == "nowhere: ssh knows no host nowhere"
    assert refused == "n0: n0 is there, but no ssh server listens on its port 22"
    assert [row["tensorflow"] is not None for row in document["hosts"]] == [False, True, False]


def test_up_refuses_before_it_starts_anything(machines: Testbed, project: Path) -> None:
    (project / "train.py").write_text(SCRIPT)
    done = machines["n0"].run(
        str(ORCH),
        "up",
        "--as-root-anyway",
        "--hosts",
        "n1,nowhere",
        "--",
        sys.executable,
        "train.py",
        check=False,
        cwd=project,
    )
    assert done.returncode == 2
    assert "nowhere: ssh knows no host nowhere; correct the name" in done.stderr
    assert not (machines["n0"].home / ".local/state/orch/runs").exists()


def test_a_firewall_between_two_hosts_names_both(machines: Testbed, project: Path) -> None:
    machines.drop_between("n1", "n2")
    document = _doctor(machines, project)
    assert _problems(document) == [
        f"n1 cannot reach n2 at {machines['n2'].address}: no answer",
        f"n2 cannot reach n1 at {machines['n1'].address}: no answer",
    ]
    (fix,) = {each["fix"] for each in document["findings"] if each["level"] == "problem"}
    assert fix.startswith("open the ports between the hosts in the firewall of both")


def test_two_names_of_one_machine_are_refused(machines: Testbed, project: Path) -> None:
    document = _doctor(machines, project, hosts=f"n1,{machines['n1'].address}", code=1)
    # Its key is known by the name n1 only; another name of the user's configuration reaches the same machine.
    assert "host key is not known" in _problems(document)[0]
    config = machines["n0"].home / ".ssh/config"
    text = config.read_text()
    config.write_text(f"Host another\n HostName n1\n HostKeyAlias n1\n{text.replace('Host n*', 'Host *')}")
    try:
        document = _doctor(machines, project, hosts="n1,another")
    finally:
        config.write_text(text)
    assert "n1 and another are names of one machine" in _problems(document)


def test_another_tensorflow_is_named_with_its_hosts(machines: Testbed, project: Path) -> None:
    (metadata,) = (VENV / "lib").glob("python3.*/site-packages/tensorflow-*.dist-info/METADATA")
    text = metadata.read_text()
    version = next(line for line in text.splitlines() if line.startswith("Version: ")).split()[1]
    (machines.shared / "METADATA").write_text(text.replace(f"Version: {version}", "Version: 2.18.0", 1))
    machines["n2"].run("mount", "--bind", str(machines.shared / "METADATA"), str(metadata))
    try:
        document = _doctor(machines, project)
    finally:
        _unmount(machines["n2"], str(metadata))
    (text,) = _problems(document)
    assert text == f"TensorFlow differs: {version} on n1 and n3; 2.18.0 on n2 ({sys.executable})"


def test_a_missing_interpreter_and_an_old_one_are_told_apart(machines: Testbed, project: Path) -> None:
    old = machines.shared / "old python"
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0)"
    words = shlex.join([sys.executable, "-I", "-S", "-c", f"{code}; exec(sys.stdin.buffer.raw.readline())"])
    old.write_text(f"#!/bin/sh\nexec {words}\n")
    old.chmod(0o755)
    document = _doctor(machines, project, "--remote-python", "/nowhere/python3", hosts="n1")
    (text,) = _problems(document)
    assert text.startswith("n1: its Python was not found (")
    document = _doctor(machines, project, "--remote-python", str(old), hosts="n1")
    assert f"n1: orch needs Python 3.11 or newer, and {sys.executable} is 3.9.18" in _problems(document)


@pytest.mark.parametrize("fault", ["missing", "differs"])
def test_a_script_that_is_not_the_one_here(machines: Testbed, project: Path, fault: str) -> None:
    empty = machines["n3"].home / "empty"
    empty.mkdir(exist_ok=True)
    if fault == "differs":
        (empty / "train.py").write_text("# an older version\n")
    machines["n3"].run("mount", "--bind", f"{machines.directory}/home/empty", str(project))
    try:
        document = _doctor(machines, project)
    finally:
        _unmount(machines["n3"], str(project))
    path = project / "train.py"
    expected = {
        "missing": f"n3 does not have {path} (No such file or directory)",
        "differs": f"{path} is another text on n3 than here",
    }
    assert _problems(document) == [expected[fault]]
    assert [row["script"] for row in document["hosts"]] == ["same", "same", fault]


def test_a_checkpoint_directory_that_is_not_shared_forbids_restarts(machines: Testbed, project: Path) -> None:
    own = Path("/var/tmp/checkpoints")
    (project / "orch.toml").write_text(f'checkpoint_dir = "{own}"\n')
    document = _doctor(machines, project, code=0)
    (warning,) = [each for each in document["findings"] if each["level"] == "warning"]
    assert warning["text"] == f"{own} on n2 and n3 is not the directory of n1"
    assert [row["checkpoints"] for row in document["hosts"]] == ["shared", "own", "own"]
    (project / "orch.toml").write_text(f'checkpoint_dir = "{own}"\non_failure = "restart"\n')
    document = _doctor(machines, project)
    assert _problems(document) == [
        f"{own} on n2 and n3 is not the directory of n1, so that a restart would continue from different states"
    ]
    assert not [path for path in machines["n1"].files() if "checkpoints" in path or "orch-shared" in path]


def test_a_full_temporary_directory_is_named(machines: Testbed, project: Path) -> None:
    machines["n2"].run("sh", "-c", "head -c 300M /dev/zero > /tmp/full", check=False)
    try:
        document = _doctor(machines, project, hosts="n1,n2")
    finally:
        machines["n2"].run("rm", "/tmp/full")
    assert _problems(document) == ["n2 has 0 MiB free in /tmp, where logs wait to be sent"]


def test_a_home_directory_that_is_read_only_or_noexec_does_no_harm(machines: Testbed, project: Path) -> None:
    home = f"{machines.directory}/home"
    machines["n1"].run("mount", "-o", "remount,bind,noexec", home)
    machines["n2"].run("mount", "-o", "remount,bind,ro", home)
    try:
        document = _doctor(machines, project, code=0)
    finally:
        for name in ("n1", "n2"):
            machines[name].run("mount", "-o", "remount,bind,rw,exec", home)
    assert document["healthy"]


def test_an_interface_that_a_host_does_not_have(machines: Testbed, project: Path) -> None:
    machines["n1"].run("ip", "link", "add", "ib0", "type", "dummy", check=False)
    document = _doctor(machines, project, "--interface", "eth0", hosts="n1,n2", code=0)
    assert [row["address"] for row in document["hosts"]] == [machines[name].address for name in ("n1", "n2")]
    document = _doctor(machines, project, "--interface", "ib0", hosts="n1,n2")
    assert _problems(document)[-1] == (
        f"n2 has no interface ib0 with an IPv4 address; it has lo (127.0.0.1), eth0 ({machines['n2'].address})"
    )
    document = _doctor(machines, project, "--interface", "lo", hosts="n1,n2")
    assert _problems(document)[0] == "n1 was reached at 127.0.0.1, where no other host can reach it"


def test_login_files_that_write_do_not_disturb(machines: Testbed, project: Path) -> None:
    noisy = machines["n1"].home / ".bashrc"
    noisy.write_text("printf 'welcome to n1'; echo noise >&2\n")
    try:
        document = _doctor(machines, project, hosts="n1,n2", code=0)
    finally:
        noisy.unlink()
    assert document["healthy"]


def test_sync_copies_the_directory_before_the_checks(machines: Testbed, project: Path) -> None:
    """Without what git ignores. The directory is of each machine: n0 has it in its home directory."""
    place = Path(f"{machines.directory}/home/work")
    here = machines["n0"].home / "work"
    (here / "cache").mkdir(parents=True)
    (here / ".gitignore").write_text("cache/\n")
    (here / "cache/large").write_text("x")
    (here / "part/.git").mkdir(parents=True)
    (here / "helper.py").write_text("NAME = 'helper'\n")
    (here / "train.py").write_text(SCRIPT)
    program = (
        "from pathlib import Path; from orchestrator.client.launch import load_request, check_hosts;"
        f"up = load_request(2, ['{sys.executable}', 'train.py'], Path('{place}'), {{'hosts': 'n1,n2', 'sync': True}});"
        "print([row.script for row in check_hosts(up.spec).rows])"
    )
    done = machines["n0"].run(sys.executable, "-c", program, cwd=place)
    assert done.stdout == "['same', 'same']\n"
    for name in ("n1", "n2"):
        copied = {path.name for path in (machines[name].home / "work").iterdir()}
        assert copied == {".gitignore", "helper.py", "part", "train.py"}
        assert not [*(machines[name].home / "work/part").iterdir()]
