"""The way to an agent on another host: stage 1 on any Python and in any shell, the bundle, and what goes wrong."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from host_driving import HostDriver
from hypothesis import given
from hypothesis import strategies as st
from waiting import lives, until

from orchestrator.engines import Connection
from orchestrator.links.bundle import bundle
from orchestrator.links.opening import ENDLESS, Opening, OpeningFailed
from worker.agent.stage1 import PREFIX, bases
from worker.wire.stream import LineSplitter


def mark_of(opening: Opening) -> bytes:
    parameters = json.loads(opening.header.splitlines()[1])
    return str(parameters["mark"]).encode()


# -- the exchange


@given(st.binary(max_size=9_000), st.lists(st.integers(0, 9_500), max_size=6))
def test_anything_before_the_answer_is_skipped_and_its_end_is_kept(banner: bytes, cuts: list[int]) -> None:
    opening, splitter = Opening("run", "there", 10.0), LineSplitter()
    data = banner + mark_of(opening) + b'{"state": "ready"}\n{}\n'
    lines = []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        lines += splitter.feed(data[begin:end])
    answers = [opening.take(line) for line in lines[:-1]]
    assert (answers[-1], any(answers[:-1]), lines[-1]) == (True, False, b"{}")
    assert opening.other_text == banner[-4096:].decode(errors="replace").strip()


def test_answer_of_a_host_that_cannot_serve() -> None:
    opening = Opening("run", "there", 10.0)
    for line, error in (
        ('{"state": "refused", "reason": "too old"}', "too old"),
        *((unreadable, "cannot be read") for unreadable in ("{", "[" * 60_000, "x" * 70_000, "[]")),
        (r'{"state": "refused", "reason": "\ud800 is odd"}', r"^\? is odd$"),
    ):
        with pytest.raises(OpeningFailed, match=error):
            opening.take(mark_of(opening) + line.encode())


# -- the bundle


def test_bundle_holds_what_tasks_need_and_is_the_same_everywhere() -> None:
    made = bundle()
    names = set(zipfile.ZipFile(io.BytesIO(made.data)).namelist())
    needed = ("bootstrap/inject/sitecustomize.py", "examples/digits.npz", "wire/messages.py")
    assert {"portpicker.py", *(f"worker/{name}" for name in needed)} <= names
    assert not any("__pycache__" in name for name in names)
    program = "import os; from orchestrator.links.bundle import bundle; os.write(1, bundle().data)"
    again = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert again.stdout == made.data


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


def lost_reason(tmp_path: Path, before: str = "", python: str = sys.executable) -> str:
    driver = HostDriver(tmp_path, before=before, python=python)
    try:
        until(driver.has_ended)
        return str(driver.link.lost_reason)
    finally:
        driver.close()


def test_start_that_fails_is_explained(tmp_path: Path) -> None:
    """By the text of the shell, the name of a missing Python, or the version of an old one."""
    reason = lost_reason(tmp_path, "printf 'Account expired'; echo call us >&2; exit 9; ")
    assert reason == "exit code 9: Account expired\ncall us"
    assert "/no/python3" in lost_reason(tmp_path, python="/no/python3")
    old = tmp_path / "old python"
    program = "import sys; sys.version_info = (3, 9, 2); exec(sys.stdin.buffer.raw.readline())"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S -c '{program}'\n")
    old.chmod(0o755)
    assert "orch needs 3.11 or newer; --remote-python names another" in lost_reason(tmp_path, python=str(old))


@pytest.mark.parametrize("before", ["cat /dev/zero; ", 'yes \'{"state": "ready"}\'; '])
def test_host_that_prints_without_end_is_explained(tmp_path: Path, before: str) -> None:
    assert lost_reason(tmp_path, before) == ENDLESS


def test_host_whose_start_files_read_the_input_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.links.host_link._FIRST_S", 2.0)
    assert lost_reason(tmp_path, "echo hello; cat >/dev/null; ") == "no answer within 2 s hello"


def test_agent_that_crashes_before_its_first_message_is_explained(tmp_path: Path) -> None:
    """The message contains its last output. The login has succeeded, and is not named."""
    reason = lost_reason(tmp_path, "echo welcome >&2; ulimit -n 12; ")
    expected = r"the agent has ended there: it was killed, or it crashed \(OSError: .*Too many open files"
    assert re.match(expected, reason)


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a host whose /tmp is full: nothing is started, and nothing is left."""
    before = {path for base in bases() for path in Path(base).glob(f"{PREFIX}*")}
    assert "File too large" in lost_reason(tmp_path, "ulimit -f 0; trap '' XFSZ; ")
    assert {path for base in bases() for path in Path(base).glob(f"{PREFIX}*")} <= before


def test_connection_is_killed_with_the_proxy_that_it_started() -> None:
    connection = Connection(["sh", "-c", "sleep 600 & echo $!; wait"], None)
    proxy = int(connection.stream.recv(100))
    connection.kill()
    connection.close()
    until(lambda: not lives(proxy))
