"""The way to an agent on another host: stage 1 on any Python and in any shell, the bundle, and what goes wrong."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from acting_as import as_user, needs_root
from host_driving import HostDriver
from hypothesis import given
from hypothesis import strategies as st
from waiting import lives, until

from orchestrator.engines import Connection
from orchestrator.links.bundle import Bundle, bundle
from orchestrator.links.opening import AgentGone, Opening, OpeningFailed, RemoteAgent
from worker.remote.stage1 import bases

ROOT = Path(__file__).parents[3]
HOST = RemoteAgent("0123456789abcdef", "there", 10.0)
SMALL = Bundle(b"exec('')\n", b"zip", "hash")


def parameters(opening: Opening) -> dict[str, str]:
    found: dict[str, str] = json.loads(opening.to_send.splitlines()[1])
    return found


def answer(opening: Opening, **fields: str) -> bytes:
    return parameters(opening)["mark"].encode() + json.dumps(fields).encode() + b"\n"


# -- the exchange


@given(st.binary(max_size=9_000), st.lists(st.integers(0, 9_500), max_size=6))
def test_anything_before_the_answer_is_skipped_and_its_end_is_kept(banner: bytes, cuts: list[int]) -> None:
    opening = Opening(SMALL, HOST, is_first=True)
    data = banner + answer(opening, state="ready") + b"1 {}\n"
    found: bytes | None = None
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        piece = data[begin:end]
        found = opening.feed(piece) if found is None else found + piece
    assert found == b"1 {}\n"
    assert opening.other_text == banner[-4096:].decode(errors="replace").strip()


def test_bundle_is_sent_only_if_it_is_missing() -> None:
    opening = Opening(SMALL, HOST, is_first=True)
    mark = answer(opening, state="need")
    opening.to_send = b""
    assert opening.feed(mark) is None
    assert opening.to_send == b"zip"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"state": "refused", "reason": "too old"}', "too old"),
        ('{"state": "gone", "reason": "it crashed"}', "it crashed"),
        ("{", "cannot be read"),
        ("[" * 60_000, "cannot be read"),
        ("x" * 70_000, "cannot be read|without an end"),
        ("[]", "cannot be read"),
    ],
)
def test_answer_of_a_host_that_cannot_serve(line: str, error: str) -> None:
    opening = Opening(SMALL, HOST, is_first=True)
    data = parameters(opening)["mark"].encode() + line.encode() + b"\n"
    with pytest.raises(AgentGone if "gone" in line else OpeningFailed, match=error):
        opening.feed(data)


def test_answer_without_an_end_is_refused() -> None:
    opening = Opening(SMALL, HOST, is_first=True)
    with pytest.raises(OpeningFailed, match="without an end"):
        opening.feed(parameters(opening)["mark"].encode() + b"x" * 70_000)


# -- the bundle


def test_bundle_holds_what_tasks_need_and_is_the_same_everywhere() -> None:
    made = bundle()
    names = set(zipfile.ZipFile(io.BytesIO(made.data)).namelist())
    needed = (
        "agent/agent.py",
        "bootstrap/inject/sitecustomize.py",
        "remote/stage1.py",
        "training/data/digits.npz",
    )
    assert {"portpicker.py", "manifest.json", *(f"worker/{name}" for name in needed)} <= names
    assert not any("__pycache__" in name for name in names)
    program = "from orchestrator.links.bundle import bundle; print(bundle().digest)"
    again = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert again.stdout.strip() == made.digest


def test_stage_1_is_one_line_that_python_3_6_compiles() -> None:
    assert bundle().stage_1.count(b"\n") == 1
    (line,) = ast.parse(bundle().stage_1, feature_version=(3, 6)).body
    assert isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)
    (source,) = line.value.args
    assert isinstance(source, ast.Constant)
    tree = ast.parse(source.value, feature_version=(3, 6))
    # ast knows the grammar of old versions, but not their modules.
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not any(node.module == "__future__" for node in imports)


# -- real hosts


def lost_reason(
    tmp_path: Path, before: str = "", python: str = sys.executable, host: RemoteAgent | None = None
) -> str:
    driver = HostDriver(tmp_path, before=before, python=python, host=host)
    try:
        until(driver.has_ended)
        return str(driver.link.lost_reason)
    finally:
        driver.close()


def test_start_that_fails_is_explained(tmp_path: Path) -> None:
    """By the text of the shell, the name of a missing Python, or the version of an old one."""
    reason = lost_reason(tmp_path, "echo Account expired; echo call us >&2; exit 9; ")
    assert reason == "exit code 9: Account expired\ncall us"
    assert "/no/python3" in lost_reason(tmp_path, python="/no/python3")
    old = tmp_path / "old python"
    program = "import sys; sys.version_info = (3, 9, 2); exec(sys.stdin.buffer.raw.readline())"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S -c '{program}'\n")
    old.chmod(0o755)
    assert "orch needs 3.11 or newer; --remote-python names another" in lost_reason(tmp_path, python=str(old))


def test_host_without_a_cache_gets_the_bundle_each_time(tmp_path: Path, cache: Path) -> None:
    with HostDriver(tmp_path, before="XDG_CACHE_HOME=/proc/none; export XDG_CACHE_HOME; ") as host:
        assert (host.home / "bundle" / "manifest.json").exists()
        host.cut()
        host.hold(1)


def test_damaged_bundle_is_replaced(tmp_path: Path, cache: Path) -> None:
    for damage in (Path.unlink, lambda path: path.write_text("raise SystemExit(1)\n")):
        with HostDriver(tmp_path):
            pass
        damage(cache / bundle().digest / "worker" / "agent" / "agent.py")
    with HostDriver(tmp_path):
        pass
    assert [path.name for path in cache.iterdir()] == [bundle().digest]


def test_old_and_unfinished_bundles_are_removed(tmp_path: Path, cache: Path) -> None:
    """Not those that another start may be unpacking. The shell is noisy, which the start does not mind."""
    ages_s = {"0" * 64: 40 * 24 * 3600, "1" * 64: 3600, ".new-cut": 3600, ".new-now": 5, ".old-cut": 5}
    for name, age_s in ages_s.items():
        (cache / name / "worker").mkdir(parents=True)
        os.utime(cache / name, (time.time() - age_s,) * 2)
    with HostDriver(tmp_path, before="echo Welcome; printf 'no newline'; echo oh >&2; "):
        pass
    assert {path.name for path in cache.iterdir()} == {".new-now", "1" * 64, bundle().digest}
    for name in (".new-now", "1" * 64):
        shutil.rmtree(cache / name)


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a host whose /tmp is full: nothing is started, and nothing is left."""
    limit = "ulimit -f 0; trap '' XFSZ; XDG_CACHE_HOME=/proc/none; export XDG_CACHE_HOME; "
    host = RemoteAgent.new("there", 10.0)
    assert "File too large" in lost_reason(tmp_path, limit, host=host)
    assert not [base for base in bases() if list(Path(base).glob(f"*{host.agent_id}"))]


@needs_root
def test_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Another user knew the id of the agent and made its directory first: the next place is used."""
    host = RemoteAgent.new("there", 10.0)
    taken = Path(f"/tmp/orch-agent-{os.geteuid()}-{host.agent_id}")
    as_user(54_321, taken.mkdir)
    try:
        with HostDriver(tmp_path, host=host) as driver:
            assert driver.home.parent == Path("/var/tmp")
    finally:
        taken.rmdir()


@pytest.mark.slow
def test_relay_does_not_wait_for_a_dead_connection(tmp_path: Path) -> None:
    """The network is gone, and sshd takes nothing more. The agent has ended."""
    program = """
import socket, sys
from worker.remote.relay import relay
relay(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
"""
    ours, its = socket.socketpair()
    with ours, its:
        words = [sys.executable, "-c", program, str(its.fileno()), str(tmp_path / "agent.log")]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[its.fileno()], cwd=ROOT
        )
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 1000)
        ours.shutdown(socket.SHUT_RDWR)
    with process:
        until(lambda: process.poll() is not None)


def test_connection_is_killed_with_the_proxy_that_it_started() -> None:
    connection = Connection(["sh", "-c", "sleep 600 & echo $!; wait"], None)
    proxy = int(connection.stream.recv(100))
    connection.kill()
    connection.close()
    until(lambda: not lives(proxy))
