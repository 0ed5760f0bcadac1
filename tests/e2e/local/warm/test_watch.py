"""`orch up --watch`: which changes start a run again, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from orch_command import Orch, Started
from waiting import lives, until, until_gone
from warm_command import WarmOrch

from orchestrator.client.launch import load_request
from orchestrator.client.source_watch import SourceWatch, local_sources, remove_stale_code, syntax_error
from orchestrator.client.stop import STOP_MARGIN_S
from orchestrator.request.command.source_tree import MAX_FILES

TRAINS = """
import os, time
from part import VALUE
print("said", VALUE, os.environ["ORCH_CHECKPOINT_DIR"], flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(orch: Orch) -> str:
    orch.script("part.py", "VALUE = 1")
    return orch.script("train.py", TRAINS)


def watching(warm: WarmOrch, *words: str) -> Started:
    return warm.orch.start("up", "--watch", *words)


def printed_words(started: Started) -> list[list[str]]:
    """The words of each line that the tasks print."""
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
    # These processes are not those of --warm, which other terminals find.
    assert warm.holding() is None
    started.signal(signal.SIGINT)
    assert started.finish().code == 130
    assert started.err.count("part.py changed: starting again") == 4
    assert len({words[1] for words in printed_words(started)}) == 4  # new checkpoints each time
    (supervisor,) = {warm.orch.record(run)["supervisor_pid"] for run in warm.orch.run_dirs()}
    assert not lives(supervisor)
    results = [warm.orch.result(run)["outcome"] for run in warm.orch.run_dirs()]
    assert results == ["stopped"] * 4


@pytest.mark.parametrize("prefix", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_save_of_the_same_second_and_length_is_run(warm: WarmOrch, script: str, prefix: bool) -> None:
    """Python's compiled code of the text before would look like that of the new one."""
    part, new = warm.orch.directory / "part.py", warm.orch.directory / "new"
    second = 1_700_000_000 * 10**9
    os.utime(part, ns=(second, second))
    env: dict[str, str | None] = {"PYTHONDONTWRITEBYTECODE": None}
    if prefix:
        env["PYTHONPYCACHEPREFIX"] = str(warm.orch.directory / "cache")
    started = warm.orch.start("up", "--watch", "--", sys.executable, script, env=env)
    started.until_out("said 1")
    code = warm.orch.directory / f"cache{warm.orch.directory}" if prefix else part.parent / "__pycache__"
    assert [*code.glob("part.*.pyc")]
    new.write_text("VALUE = 2")
    os.utime(new, ns=(second, second + 1))
    new.rename(part)
    started.until_out("said 2")
    started.signal(signal.SIGINT)
    started.finish()


def test_missing_module_and_wrong_settings_are_awaited(warm: WarmOrch, script: str) -> None:
    part = warm.orch.directory / "part.py"
    part.rename(warm.orch.directory / "away")
    started = watching(warm, "--", sys.executable, script)
    until(lambda: "waiting until one of 1 file changes" in started.err)
    (warm.orch.directory / "away").rename(part)
    started.until_out("said 1")
    assert "part.py changed: starting again" in started.err
    warm.orch.script("orch.toml", "workers = none")
    until(lambda: "orch.toml" in started.err and "waiting until a file changes" in started.err)
    warm.orch.script("orch.toml", "workers = 2")
    started.until_out("worker:1 | said 1")
    # A run that has ended starts again, too.
    warm.orch.script("part.py", "exit(3)")
    until(lambda: started.err.count("waiting until one of") == 2)
    assert "exit 3" in started.err
    warm.orch.script("part.py", "VALUE = 2")
    started.until_out("worker:1 | said 2")
    started.signal(signal.SIGTERM)
    assert started.finish().code == 143


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (("--checkpoint-dir", "kept", "--watch-from", "checkpoint"), ("kept", "kept")),
        (("--checkpoint-dir", "kept"), ("kept", "kept/watch-2")),
        (("--watch-from", "checkpoint"), ()),
    ],
)
def test_next_run_has_new_checkpoints_unless_it_continues(
    warm: WarmOrch, script: str, words: tuple[str, ...], places: tuple[str, ...]
) -> None:
    started = watching(warm, *words, "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("part.py", "VALUE = 2  # saved")
    started.until_out("said 2")
    started.signal(signal.SIGINT)
    started.finish()
    said = [said[1] for said in printed_words(started)]
    # Without a place of its own, the next run continues in that of the last one.
    assert said == [str(warm.orch.directory / place) for place in places or (said[0], said[0])]


def test_processes_of_warm_outlive_a_watch(warm: WarmOrch, script: str) -> None:
    warm("up", "--warm=1h", "--", "true")
    holder = warm.until_waiting()
    with closing(warm.start("up", "--watch", "--", sys.executable, script)) as started:
        assert started.process.stdout is not None
        assert "said 1" in started.process.stdout.readline()
        assert warm.orch.record(warm.orch.run_dirs()[-1])["supervisor_pid"] == holder.pid
        started.process.send_signal(signal.SIGINT)
        assert started.finish().code == 130
    assert warm.until_waiting() == holder
    holding = warm.holding()
    assert holding is not None and holding["idle_s"] == 3600


def test_killed_client_leaves_nothing(warm: WarmOrch, script: str) -> None:
    started = watching(warm, "--", sys.executable, script)
    started.until_out("said 1")
    warm.orch.script("part.py", "VALUE = 2  # saved")
    started.until_out("said 2")
    warm.orch.script("part.py", "exit(0)")
    until(lambda: "waiting until one of" in started.err)
    supervisor = psutil.Process(warm.supervisor())
    children = supervisor.children(recursive=True)
    assert children
    started.signal(signal.SIGKILL)
    until_gone(supervisor.pid, *(child.pid for child in children))


def test_wrong_requests_are_refused_at_once(orch: Orch, script: str) -> None:
    began = time.monotonic()
    refused = {
        ("--watch", "--", "sleep", "1"): "has no Python source in this directory",
        ("--watch", "-d", "--", "train.py"): "leave out --detach",
        ("--watch=", "--", "train.py"): "the pattern is empty",
    }
    for words, reason in refused.items():
        done = orch("up", *words)
        assert done.code == 2 and reason in done.err and not orch.run_dirs(), words
    assert time.monotonic() - began < STOP_MARGIN_S


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
    script = tmp_path / "train.py"
    for change in (lambda: os.utime(script, (1, 1)), script.unlink):
        watched = watch("sources")
        change()
        until(watched.has_changed)
        assert watched.changed == (script,)


def test_too_much_source_watches_all_of_it(tmp_path: Path) -> None:
    names = [f"part{number}" for number in range(MAX_FILES + 1)]
    (tmp_path / "train.py").write_text("".join(f"import {name}\n" for name in names))
    for name in names:
        (tmp_path / f"{name}.py").touch()
    assert local_sources(load_request(1, ["train.py"], tmp_path, {}).spec, os.environ) is None
    with SourceWatch(None, "sources", tmp_path, "--watch") as watched:
        assert len(watched.files) == len(names) + 1


def test_only_code_that_may_be_stale_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "__pycache__"
    place.mkdir()
    names = ("train.cpython-311.pyc", "train.cpython-312.opt-1.pyc", "train.txt", "trainer.cpython-311.pyc")
    for name in ("train.py", "data.py", "data.yaml", *(f"__pycache__/{name}" for name in names)):
        (tmp_path / name).touch()
    later = (tmp_path / "data.py").stat().st_ctime + 100
    kept = place / "data.cpython-311.pyc"
    kept.touch()
    os.utime(kept, (later, later))
    files = [tmp_path / name for name in ("train.py", "data.py", "data.yaml", "missing.py")]
    remove_stale_code(files, {})
    assert {file.name for file in place.iterdir()} == {names[2], names[3], kept.name}


def test_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("x = 1")
    bad.write_text("x = 1\ny = (\n")
    assert syntax_error(frozenset({good, tmp_path / "missing.py"})) is None
    assert syntax_error(frozenset({good, bad})) == f"{bad}:2: SyntaxError: '(' was never closed"
    bad.write_bytes(b"x = '\xff'")
    assert "SyntaxError" in str(syntax_error(frozenset({bad})))
