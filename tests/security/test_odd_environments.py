"""Environments that lack something: /dev, /proc, a usable state directory or the right to files. orch says what, and
what to do."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from namespaces import namespace
from orch_command import Finished, Orch
from users import ORDINARY, User

from orchestrator.core.text.clean import safe

_VERBS = [("ls",), ("doctor",), ("up", "-n", "1", "--", "true")]


def within(orch: Orch, prepare: str, *words: str) -> Finished:
    """Run orch to its end in namespaces prepared by a shell command."""
    return orch.start(*words, before=namespace(prepare)).finish()


def problems(done: Finished) -> dict[str, str]:
    """The problems that `doctor --json` found, by topic."""
    assert done.code == 1, done.err
    return {
        found["topic"]: f"{found['text']}; {found['fix']}"
        for found in done.document["findings"]
        if found["level"] == "problem"
    }


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("mount -t tmpfs none /dev", ("/dev/null", "No such file", "mknod -m 666 /dev/null")),
        ("umount -l /proc", ("/proc", "No such file", "mount -t proc")),
        ("true", ("/proc", "another PID namespace", "mount -t proc")),
    ],
)
def test_missing_files_of_the_kernel_are_named(orch: Orch, prepare: str, says: tuple[str, ...]) -> None:
    for verb in _VERBS:
        done = within(orch, prepare, *verb)
        assert (done.code, done.out) == (2, "")
        assert all(word in done.err for word in says), done.err
        assert len(done.lines) <= 1 and "Traceback" not in done.err
    assert orch.run_dirs() == []


# Mounts FUSE at argv[1] and ends its server: every path below it fails with ENOTCONN.
_DEAD_MOUNT = """
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()):
    sys.exit(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
"""
_PROC = "mount -t proc proc /proc"
_NOT_CONNECTED = "Transport endpoint is not connected"


@pytest.fixture
def dead_mount(orch: Orch) -> Callable[[Path], str]:
    """The shell command that puts a dead FUSE mount in the place of a directory."""
    script = orch.script("dead_mount.py", _DEAD_MOUNT)

    def dead_mount(place: Path) -> str:
        place.mkdir(parents=True, exist_ok=True)
        mount = shlex.join([sys.executable, str(orch.directory / script), str(place)])
        return f"{_PROC} && {mount}"

    namespace(dead_mount(orch.directory / "probe"))  # skips without root or FUSE
    return dead_mount


@pytest.mark.slow
def test_state_directory_on_a_dead_mount_is_named(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    for verb in (("ls",), ("status",), ("logs",), ("down",), ("prune", "--keep", "0"), *_VERBS[2:]):
        done = within(orch, dead_mount(orch.state), *verb)
        assert done.code == 2, done.err
        assert f"{orch.state}/orch" in done.err and _NOT_CONNECTED in done.err
        assert "set XDG_STATE_HOME" in done.err
    found = problems(within(orch, dead_mount(orch.state), "doctor", "--json"))
    assert _NOT_CONNECTED in found["state"] and "set XDG_STATE_HOME" in found["state"]


def test_directory_for_results_on_a_dead_mount_is_refused(
    orch: Orch, dead_mount: Callable[[Path], str]
) -> None:
    place = orch.directory / "results"
    for option, named in (("--log-dir", place), ("--checkpoint-dir", place / "below")):
        done = within(orch, dead_mount(place), "up", "-n", "1", option, str(named), "--", "true")
        assert done.code == 2
        assert f"{option}: {named} cannot be written ({_NOT_CONNECTED})" in done.err
    assert orch.run_dirs() == []


def test_run_on_a_dead_mount_is_named_and_skipped(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    place = orch.directory / "results"
    assert orch("up", "-n", "1", "--log-dir", str(place), "--", "true").code == 0
    (lost,) = orch.run_dirs()
    assert orch("up", "-n", "1", "--", "echo", "said").code == 0
    for verb, shown in (
        (("ls",), "succeeded"),
        (("logs",), "said"),
        (("status",), "succeeded"),
        (("down",), ""),
    ):
        done = within(orch, dead_mount(place), *verb)
        assert done.code == 0, done.err
        assert shown in done.out
        assert done.err.count(f"{lost.name}: skipped: ") == 1 and _NOT_CONNECTED in done.err
    assert within(orch, dead_mount(place), *_VERBS[2]).code == 0
    assert within(orch, dead_mount(place), "prune", "--all", "--keep", "0").code == 0
    assert (place / lost.name / "result.json").exists()


def test_run_whose_directory_becomes_a_dead_mount_ends(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    dead_mount(place := orch.directory / "results")
    script = orch.script("t.py", "import os, subprocess, sys, time\n" + _MOUNTS)
    done = within(orch, _PROC, "up", "-n", "1", "--log-dir", str(place), "--", script, "dead_mount.py")
    assert done.code == 125
    assert _NOT_CONNECTED in done.err, done.err
    (run,) = place.iterdir()
    # Its client may notice first, and leave.
    assert json.loads((run / "result.json").read_text())["outcome"] in ("failed", "stopped")


_MOUNTS = """
subprocess.run([sys.executable, sys.argv[1], os.environ["ORCH_RUN_DIR"]], check=True)
time.sleep(600)
"""


def test_proc_with_processes_only_is_enough(orch: Orch) -> None:
    prepare = "mount -t proc -o subset=pid proc /proc"
    done = within(orch, prepare, "up", "-n", "2", "--", "sh", "-c", "exit 0")
    assert done.code == 0, done.err
    listed = within(orch, prepare, "ls", "--json")
    assert [run["state"] for run in listed.document["runs"]] == ["succeeded"]
    examined = within(orch, prepare, "doctor", "--json")
    (memory,) = [found for found in examined.document["findings"] if found["topic"] == "memory"]
    assert memory["level"] == "note"
    assert "/proc/meminfo" in memory["text"] and "subset=pid" in memory["fix"]


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "HOME"])
def test_name_of_the_state_directory_must_be_text(orch: Orch, tmp_path: Path, variable: str) -> None:
    place = tmp_path / os.fsdecode(b"not utf-8 \xff")
    place.mkdir()
    env = {"XDG_STATE_HOME": None, variable: str(place)}
    for verb in (("ls",), ("up", "-n", "1", "--", "true")):
        done = orch.within(*verb, env=env)
        assert done.code == 2
        assert "is not valid UTF-8" in done.err and "set XDG_STATE_HOME" in done.err
    found = problems(orch.within("doctor", "--json", env=env))
    assert "is not valid UTF-8" in found["state"] and "XDG_STATE_HOME" in found["state"]
    assert list(place.iterdir()) == []


def test_state_directory_that_is_a_broken_link_is_named(orch: Orch) -> None:
    link = orch.state / "orch"
    link.parent.mkdir(exist_ok=True)
    for target, reason in (("/nowhere/x", "/nowhere/x, which does not"), ("orch", "itself")):
        link.symlink_to(target)
        for verb in (("ls",), ("status",), ("down",), ("up", "-n", "1", "--", "true")):
            done = orch(*verb)
            assert done.code == 2
            assert str(link) in done.err and reason in done.err and "remove the link" in done.err
        found = problems(orch.within("doctor", "--json"))
        assert reason in found["state"] and "remove the link" in found["state"]
        link.unlink()


@pytest.mark.parametrize("umask", ["0400", "0700"])
def test_umask_that_removes_the_rights_of_the_user_is_named(state_dir: Path, umask: str) -> None:
    with User(ORDINARY if os.geteuid() == 0 else None, state_dir) as user:
        started, examined = (
            user.run("sh", "-c", f'umask {umask}; exec "$@"', "sh", str(user.orch), *words)
            for words in (("up", "-n", "1", "--", "true"), ("doctor", "--json"))
        )
        assert started.returncode == 2
        assert f"yours, {umask}," in started.stderr and "umask 077" in started.stderr
        found = problems(Finished(examined.returncode, examined.stdout, examined.stderr))
        assert "umask 077" in found["state"]
        assert list(user.home.iterdir()) == [], "the trial directory is removed"


def test_directory_that_cannot_be_entered_is_not_a_fault_of_python(state_dir: Path) -> None:
    with User(ORDINARY if os.geteuid() == 0 else None, state_dir) as user:
        user.run("mkdir", "-m", "700", "closed")
        examined = user.run(
            "sh", "-c", 'cd closed && chmod 0 . && exec "$@"', "sh", str(user.orch), "doctor", "--json"
        )
        found = problems(Finished(examined.returncode, examined.stdout, examined.stderr))
        assert "python" not in found and "tensorflow" not in found
        closed = safe(str(user.home / "closed"))
        assert all(closed in text for text in found.values()), found
