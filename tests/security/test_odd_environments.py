"""Environments that lack something: /dev, /proc, a usable state directory, system calls or the right to files.

orch says what, and what to do.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import filtered
import pytest
from acting_as import in_child, needs_root
from namespaces import change_mounts, namespace
from orch_command import Finished, Orch
from users import User

from orchestrator.core.text.clean import safe
from orchestrator.host.system_calls import find_refused_call

_UP = ("up", "-n", "1", "--", "true")


def with_mounts(orch: Orch, prepare: str, *commands: tuple[str, ...]) -> list[Finished]:
    """Run orch in a process with its own mounts, after a shell command that changes them."""

    def run() -> list[Finished]:
        change_mounts(prepare)
        return [orch.within(*words) for words in commands]

    return in_child(run)


def problems(done: Finished) -> dict[str, str]:
    """The problems that `doctor --json` found, by topic."""
    assert done.code == 1, done.err
    return {
        found["topic"]: f"{found['text']}; {found['fix']}"
        for found in done.document["findings"]
        if found["level"] == "problem"
    }


@needs_root
@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("mount -t tmpfs none /dev", ("/dev/null", "No such file", "mknod -m 666 /dev/null")),
        ("umount -l /proc", ("/proc", "No such file", "mount -t proc")),
        ("in a PID namespace", ("/proc", "another PID namespace", "mount -t proc")),
    ],
)
def test_missing_files_of_the_kernel_are_named(orch: Orch, prepare: str, says: tuple[str, ...]) -> None:
    if prepare == "in a PID namespace":
        ended = [orch.start("ls", before=namespace("true")).finish()]
    else:
        ended = with_mounts(orch, prepare, ("ls",), ("doctor",), _UP)
    for done in ended:
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
_NOT_CONNECTED = "Transport endpoint is not connected"


@pytest.fixture
def dead_mount(orch: Orch) -> Callable[[Path], str]:
    """The shell command that puts a dead FUSE mount in the place of a directory."""
    script = orch.directory / orch.script("dead_mount.py", _DEAD_MOUNT)

    def dead_mount(place: Path) -> str:
        place.mkdir(parents=True, exist_ok=True)
        return shlex.join([sys.executable, "-I", "-S", str(script), str(place)])

    namespace(dead_mount(orch.directory / "probe"))  # skips without root or FUSE
    return dead_mount


def test_state_directory_on_a_dead_mount_is_named(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    verbs = (("ls",), ("status",), ("logs",), ("down",), ("prune", "--keep", "0"), _UP)
    *ended, examined = with_mounts(orch, dead_mount(orch.state), *verbs, ("doctor", "--json"))
    for done in ended:
        assert done.code == 2, done.err
        assert f"{orch.state}/orch" in done.err and _NOT_CONNECTED in done.err
        assert "set XDG_STATE_HOME" in done.err
    found = problems(examined)
    assert _NOT_CONNECTED in found["state"] and "set XDG_STATE_HOME" in found["state"]


def test_directory_for_results_on_a_dead_mount_is_refused(
    orch: Orch, dead_mount: Callable[[Path], str]
) -> None:
    place = orch.directory / "results"
    named = {"--log-dir": place, "--checkpoint-dir": place / "below"}
    commands = [("up", "-n", "1", option, str(path), "--", "true") for option, path in named.items()]
    ended = with_mounts(orch, dead_mount(place), *commands)
    for (option, path), done in zip(named.items(), ended, strict=True):
        assert done.code == 2
        assert f"{option}: {path} cannot be written ({_NOT_CONNECTED})" in done.err
    assert orch.run_dirs() == []


def test_run_on_a_dead_mount_is_named_and_skipped(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    place = orch.directory / "results"
    assert orch("up", "-n", "1", "--log-dir", str(place), "--", "true").code == 0
    (lost,) = orch.run_dirs()
    assert orch("up", "-n", "1", "--", "echo", "said").code == 0
    shown = {"ls": "succeeded", "logs": "said", "status": "succeeded", "down": ""}
    commands = [*((verb,) for verb in shown), _UP, ("prune", "--all", "--keep", "0")]
    *ended, up, prune = with_mounts(orch, dead_mount(place), *commands)
    for done, text in zip(ended, shown.values(), strict=True):
        assert (done.code, text in done.out) == (0, True), done.err
        assert done.err.count(f"{lost.name}: skipped: ") == 1 and _NOT_CONNECTED in done.err
    assert (up.code, prune.code) == (0, 0)
    assert (place / lost.name / "result.json").exists()


def test_run_whose_directory_becomes_a_dead_mount_ends(orch: Orch, dead_mount: Callable[[Path], str]) -> None:
    dead_mount(place := orch.directory / "results")
    script = orch.script("t.py", "import os, subprocess, sys, time\n" + _MOUNTS)
    words = ("up", "-n", "1", "--log-dir", str(place), "--", script, "dead_mount.py")
    done = orch.start(*words, before=namespace("mount -t proc proc /proc")).finish()
    assert done.code == 125
    assert _NOT_CONNECTED in done.err, done.err
    (run,) = place.iterdir()
    # Its client may notice first, and leave.
    assert json.loads((run / "result.json").read_text())["outcome"] in ("failed", "stopped")


_MOUNTS = """
subprocess.run([sys.executable, sys.argv[1], os.environ["ORCH_RUN_DIR"]], check=True)
time.sleep(600)
"""


@needs_root
def test_proc_with_processes_only_is_enough(orch: Orch) -> None:
    commands = (("up", "-n", "2", "--", "sh", "-c", "exit 0"), ("ls", "--json"), ("doctor", "--json"))
    up, listed, examined = with_mounts(orch, "mount -t proc -o subset=pid proc /proc", *commands)
    assert up.code == 0, up.err
    assert [run["state"] for run in listed.document["runs"]] == ["succeeded"]
    (memory,) = [found for found in examined.document["findings"] if found["topic"] == "memory"]
    assert memory["level"] == "note"
    assert "/proc/meminfo" in memory["text"] and "subset=pid" in memory["fix"]


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "HOME"])
def test_name_of_the_state_directory_must_be_text(orch: Orch, tmp_path: Path, variable: str) -> None:
    place = tmp_path / os.fsdecode(b"not utf-8 \xff")
    place.mkdir()
    env = {"XDG_STATE_HOME": None, variable: str(place)}
    for verb in (("ls",), _UP):
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
        for verb in (("ls",), ("status",), ("down",), _UP):
            done = orch(*verb)
            assert done.code == 2
            assert str(link) in done.err and reason in done.err and "remove the link" in done.err
        found = problems(orch.within("doctor", "--json"))
        assert reason in found["state"] and "remove the link" in found["state"]
        link.unlink()


def after(user: User, shell: str, *words: str) -> Finished:
    """Run orch as this user after a shell command."""
    done = user.run("sh", "-c", f'{shell}; exec "$@"', "sh", str(user.orch), *words)
    return Finished(done.returncode, done.stdout, done.stderr)


def test_umask_that_removes_the_rights_of_the_user_is_named(ordinary_user: User) -> None:
    started = after(ordinary_user, "umask 0400", *_UP)
    assert started.code == 2
    assert "yours, 0400," in started.err and "umask 077" in started.err
    found = problems(after(ordinary_user, "umask 0700", "doctor", "--json"))
    assert "yours, 0700," in found["state"] and "umask 077" in found["state"]
    assert list(ordinary_user.home.iterdir()) == [], "the trial directory is removed"


def test_directory_that_cannot_be_entered_is_not_a_fault_of_python(ordinary_user: User) -> None:
    found = problems(after(ordinary_user, "mkdir -m 700 closed; cd closed; chmod 0 .", "doctor", "--json"))
    assert "python" not in found and "tensorflow" not in found
    closed = safe(str(ordinary_user.home / "closed"))
    assert all(closed in text for text in found.values()), found


# A filter of a container refuses the call with this error.
CALLS = (
    ("pidfd_open", errno.EPERM, "pidfd_open", "Operation not permitted"),
    ("pidfd_open", errno.ENOSYS, "pidfd_open", "Function not implemented"),
    ("pidfd_send_signal", errno.EPERM, "pidfd_send_signal", "Operation not permitted"),
    ("waitid", errno.EINVAL, "waitid(P_PIDFD)", "Invalid argument"),
)


@pytest.mark.skipif(not filtered.is_possible(), reason="the filter is written for other processors")
def test_refused_system_call_is_named_before_the_start(orch: Orch) -> None:
    def with_filter(function: Callable[[], object], call: str, number: int) -> object:
        return in_child(lambda: (filtered.forbid(call, number), function())[1])

    found = [with_filter(find_refused_call, call, number) for call, number, *_ in CALLS]
    assert [(each.name, each.reason) for each in found] == [tuple(says) for _, _, *says in CALLS]
    verbs = _UP, ("config",), ("doctor", "--json")
    *refused, examined = with_filter(
        lambda: [orch.within(*words) for words in verbs], "pidfd_open", errno.EPERM
    )
    text = "the system call pidfd_open is refused here (Operation not permitted)"
    for done in refused:
        assert done.code == 2
        assert done.err.startswith(f"orch: {text}") and "seccomp=PROFILE" in done.err
        assert done.err.count("\n") == 1
    assert text in problems(examined)["system calls"]
    assert orch.run_dirs() == []
