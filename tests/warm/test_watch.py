"""`orch up --watch`: which changes start a run again, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orch_command import Orch, Started
from waiting import until, until_gone
from warm_command import WarmOrch

from orchestrator.client.source_watch import SourceWatch, syntax_error

TRAINS = """
import os, time
from part import VALUE
print("said", VALUE, os.environ["ORCH_CHECKPOINT_DIR"], flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(orch: Orch) -> str:
    # Each later text has another length: Python takes a file of the same second and length for unchanged.
    orch.script("part.py", "VALUE = 1")
    return orch.script("train.py", TRAINS)


def watching(warm: WarmOrch, *words: str) -> Started:
    return warm.orch.start("up", "--watch", *words)


def said(started: Started) -> list[list[str]]:
    """The words of each line of the tasks."""
    return [line.split()[3:] for line in started.out.splitlines() if " | said " in line]


def test_saved_module_starts_again_until_ctrl_c(warm: WarmOrch, script: str) -> None:
    started = watching(warm, "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("part.py", "VALUE = 2  # saved")
    started.until_out("said 2")
    # An editor may write another file and rename it.
    (warm.orch.directory / "new").write_text("VALUE = 3  # saved again")
    (warm.orch.directory / "new").rename(warm.orch.directory / "part.py")
    started.until_out("said 3")
    warm.orch.script("part.py", "VALUE = = 4")
    until(lambda: "waiting until one of" in started.err)
    assert f"orch: {warm.orch.directory}/part.py:1: SyntaxError: invalid syntax" in started.err
    warm.orch.script("part.py", "VALUE = 4  # and once more")
    started.until_out("said 4")
    holder = warm.holding()
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert started.err.count("part.py changed: starting again") == 4
    assert len({words[1] for words in said(started)}) == 4  # new checkpoints each time
    assert holder is not None
    until_gone(holder["pid"])
    results = [warm.orch.result(run)["outcome"] for run in warm.orch.run_dirs()]
    assert results == ["stopped"] * 4


def test_run_that_ended_starts_again(warm: WarmOrch) -> None:
    script = warm.orch.script("train.py", "print('said 1 here'); exit(3)")
    started = watching(warm, "--", sys.executable, script)
    until(lambda: "waiting until one of" in started.err)
    assert "worker:0 failed" in started.err.replace("\n", " ") or "exit 3" in started.err
    warm.orch.script("train.py", "print('said 2 here')")
    started.until_out("said 2")
    until(lambda: started.err.count("waiting until one of") == 2)
    started.signal(signal.SIGINT)
    assert started.finish().code == 130


def test_wrong_settings_are_shown_and_awaited(warm: WarmOrch, script: str) -> None:
    started = watching(warm, "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("orch.toml", "workers = none")
    until(lambda: "orch.toml" in started.err and "waiting until a file changes" in started.err)
    warm.orch.script("orch.toml", "workers = 2")
    started.until_out("worker:1 | said 1")
    started.signal(signal.SIGTERM)
    assert started.finish().code == 143


def test_continue_from_the_checkpoints(warm: WarmOrch, script: str) -> None:
    started = watching(warm, "--watch-from", "checkpoint", "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("part.py", "VALUE = 2  # saved")
    started.until_out("said 2")
    started.signal(signal.SIGINT)
    started.finish()
    assert len({words[1] for words in said(started)}) == 1


def test_killed_client_leaves_nothing(warm: WarmOrch, script: str) -> None:
    started = watching(warm, "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("part.py", "VALUE = 2  # saved")
    started.until_out("said 2")
    warm.orch.script("part.py", "exit(0)")
    until(lambda: "waiting until one of" in started.err)
    holder = warm.until_waiting()
    children = holder.children(recursive=True)
    started.signal(signal.SIGKILL)
    until_gone(holder.pid, *(child.pid for child in children))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--watch", "--", "sleep", "1"), "has no Python source in this directory"),
        (("--watch", "-d", "--", "train.py"), "leave out --detach"),
        (("--watch=", "--", "train.py"), "the pattern is empty"),
    ],
)
def test_refused(orch: Orch, script: str, words: tuple[str, ...], reason: str) -> None:
    done = orch("up", *words)
    assert done.code == 2 and reason in done.err and not orch.run_dirs()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[[str], SourceWatch]]:
    made: list[SourceWatch] = []

    def start(pattern: str = "sources") -> SourceWatch:
        made.append(SourceWatch(frozenset({tmp_path / "train.py"}), pattern, tmp_path, "--watch"))
        return made[-1]

    (tmp_path / "train.py").write_text("1")
    yield start
    for each in made:
        each.__exit__()


def test_only_sources_count(tmp_path: Path, watch: Callable[[str], SourceWatch]) -> None:
    (tmp_path / ".venv").mkdir()
    watched = watch("*.yaml")
    for name in ("checkpoints/1.yaml", "__pycache__/x.yaml", ".hidden/x.yaml", "model.keras", "other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("2")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "x.yaml").write_text("2")
    until(watched.has_changed)
    assert watched.changed == (tmp_path / "conf" / "x.yaml",)


def test_removed_and_touched_files_count(tmp_path: Path, watch: Callable[[str], SourceWatch]) -> None:
    watched = watch("sources")
    os.utime(tmp_path / "train.py", (1, 1))
    watched.wait()
    assert watched.changed == (tmp_path / "train.py",)
    watched = watch("sources")
    (tmp_path / "train.py").unlink()
    watched.wait()
    assert watched.changed == (tmp_path / "train.py",)


def test_syntax_errors(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("x = 1")
    bad.write_text("x = 1\ny = (\n")
    assert syntax_error(frozenset({good, tmp_path / "missing.py"})) is None
    assert syntax_error(frozenset({good, bad})) == f"{bad}:2: SyntaxError: '(' was never closed"
    bad.write_bytes(b"x = '\xff'")
    assert "SyntaxError" in str(syntax_error(frozenset({bad})))
