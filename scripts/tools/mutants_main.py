"""Draws mutants of the pure code by seed, runs the pure tests on each, and reports those that no test notices.

The mutants are made by mutmut's operators. mutmut's own runner keeps its copy in the repository and rewrites each
function into a table of its mutants; here a mutant is a changed file in a copy of the tree in a temporary directory,
and only the tests that execute the changed statement run on it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import coverage
import hypothesis  # noqa: F401  imported before the forks, as are the next three
import libcst as cst
import psutil  # noqa: F401
import pydantic  # noqa: F401
import pytest
import typer  # noqa: F401
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [f"orchestrator/core/{name}" for name in ("lifecycle", "diagnosis", "state", "plan", "progress")]
_TESTS = ["tests/unit/core", "tests/unit/request", "tests/unit/stacks/test_odd_one_out.py"]
_PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
# Seconds for the tests of one mutant: this, and a multiple of what they took without a mutant.
_LEAST_S, _FACTOR = 120.0, 5.0
_OUTPUT = "pytest.out"
_STATEMENTS = (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.MatchCase)
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Mutant:
    """A changed file. `lines` are those from the beginning of the statement to the end of the changed expression."""

    file: str
    line: int
    lines: range
    change: str
    text: str
    original: str


@dataclass(frozen=True)
class Measured:
    """The tests by file and line that they execute ("" is an import), and the seconds of each test."""

    by_line: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests that execute a mutant, or all if an import executes it: pure ones and others.

        The fastest come first.
        """
        lines = self.by_line[mutant.file]
        tests = set().union(*(lines.get(line, set()) for line in mutant.lines))
        if "" in tests or not tests:
            tests = set(self.seconds)
        chosen = sorted(tests - {""}, key=self.seconds.__getitem__)
        pure = [test for test in chosen if test.startswith("tests/unit/core/")]
        return pure, [test for test in chosen if test not in pure]


@dataclass(frozen=True)
class _Found:
    node: cst.CSTNode
    change: cst.CSTNode
    line: int
    lines: range


class _Drawer(cst.CSTVisitor):
    """Collects the possible mutants of a file. Annotations, imports, decorators and docstrings stay as they are."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self._statements: list[int] = [1]

    def on_visit(self, node: cst.CSTNode) -> bool:
        position = self.get_metadata(PositionProvider, node)
        if isinstance(node, _STATEMENTS):
            self._statements.append(position.start.line)
        if isinstance(node, cst.Annotation | cst.Import | cst.ImportFrom | cst.Decorator):
            return False
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString):
            return False
        for kind, operator in mutation_operators:
            if not isinstance(node, kind):
                continue
            changes = list(operator(node))
            if isinstance(node, cst.SimpleString):
                changes = changes[:1]  # the others change the case of letters only
            for change in changes:
                lines = range(self._statements[-1], position.end.line + 1)
                self.found.append(_Found(node, change, position.start.line, lines))
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, _STATEMENTS):
            self._statements.pop()


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Return the same mutants for the same seed and sources."""
    possible = []
    for folder in folders:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
            drawer = _Drawer()
            wrapper.visit(drawer)
            file = str(path.relative_to(_ROOT))
            possible += [(file, wrapper.module, found) for found in drawer.found]
    print(f"{len(possible)} mutants are possible in {' '.join(folders)}", flush=True)
    drawn = random.Random(seed).sample(possible, min(count, len(possible)))
    return [_mutant(*each) for each in drawn]


def _mutant(file: str, module: cst.Module, found: _Found) -> Mutant:
    changed = module.deep_replace(found.node, found.change)
    before, after = (" ".join(module.code_for_node(each).split()) for each in (found.node, found.change))
    return Mutant(file, found.line, found.lines, f"{before}  ->  {after}", changed.code, module.code)


@contextlib.contextmanager
def _copies(count: int) -> Iterator[list[Path]]:
    """Yield copies of the tree outside the repository, which are removed afterwards."""
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=_ROOT, text=True).split("\0")
    with tempfile.TemporaryDirectory(prefix="orch-mutants-") as folder:
        copies = [Path(folder) / str(number) for number in range(count)]
        for copy in copies:
            for file in filter(None, files):
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(_ROOT / file, copy / file)
        yield copies


class _Recorder:
    """A plugin of pytest that names the running test to coverage and measures its seconds."""

    def __init__(self, measuring: coverage.Coverage) -> None:
        self._measuring = measuring
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measuring.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - began
        self._measuring.switch_context("")
        return result


def _enter(copy: Path) -> None:
    """Make this forked process one that was started in the copy and writes to a file there."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
    sys.dont_write_bytecode = True
    output = os.open(copy / _OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _measure(copy: Path, answer: multiprocessing.connection.Connection) -> None:
    _enter(copy)
    measuring = coverage.Coverage(data_file=None, source=[str(copy / "orchestrator/core")], config_file=False)
    recorder = _Recorder(measuring)
    measuring.start()
    code = pytest.main([*_PYTEST, *_TESTS], plugins=[recorder])
    measuring.stop()
    data = measuring.get_data()
    by_line = {
        str(Path(file).relative_to(copy)): {
            line: set(tests) for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    answer.send((int(code), by_line, recorder.seconds))


def measure(copy: Path) -> Measured:
    """Run the tests once without a mutant. Exits if one fails: each mutant would seem to be noticed."""
    ours, theirs = _FORK.Pipe()
    child = _FORK.Process(target=_measure, args=(copy, theirs))
    child.start()
    theirs.close()
    try:
        code, by_line, seconds = ours.recv()
    except EOFError:
        sys.exit("mutants: pytest does not start in the copy of the tree")
    finally:
        _kill(child)
    if code or not by_line:
        print((copy / _OUTPUT).read_text()[-4000:])
        sys.exit(f"mutants: the tests fail without a mutant (pytest exits with {code})")
    return Measured(defaultdict(dict, by_line), seconds)


def _run(copy: Path, mutant: Mutant, parts: tuple[list[str], ...]) -> None:
    _enter(copy)
    (copy / mutant.file).write_text(mutant.text)
    sys.exit(any(pytest.main([*_PYTEST, *tests]) for tests in parts if tests))


def _kill(child: multiprocessing.process.BaseProcess) -> None:
    """Kill a run of the tests with everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()


def run(mutants: dict[int, Mutant], measured: Measured, copies: list[Path]) -> list[Mutant]:
    """Print the fate of each mutant; return those that are alive, or whose tests were not done in time."""
    waiting, free = list(mutants.items()), list(copies)
    running: dict[object, tuple[multiprocessing.process.BaseProcess, int, Mutant, Path, float]] = {}
    alive: list[Mutant] = []
    try:
        while waiting or running:
            while waiting and free:
                number, mutant = waiting.pop(0)
                parts, copy = measured.tests_of(mutant), free.pop()
                limit_s = _LEAST_S + _FACTOR * sum(
                    measured.seconds[test] for tests in parts for test in tests
                )
                child = _FORK.Process(target=_run, args=(copy, mutant, parts))
                child.start()
                running[child.sentinel] = (child, number, mutant, copy, time.monotonic() + limit_s)
            wait(list(running), timeout=1.0)
            for sentinel, (child, number, mutant, copy, by) in list(running.items()):
                is_late = child.is_alive() and time.monotonic() > by
                if child.is_alive() and not is_late:
                    continue
                _kill(child)
                del running[sentinel]
                (copy / mutant.file).write_text(mutant.original)
                free.append(copy)
                fate = "late" if is_late else "alive" if child.exitcode == 0 else "killed"
                if fate != "killed":
                    alive.append(mutant)
                print(f"{number:4} {fate:6} {mutant.file}:{mutant.line}  {mutant.change[:300]}", flush=True)
    finally:
        for child, *_ in running.values():
            _kill(child)
    return alive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=_FOLDERS, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="of the drawn mutants")
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    # Then the copies are removed and no child is left.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    mutants = dict(enumerate(draw(given.folders, given.count, given.seed), 1))
    if given.only:
        mutants = {number: mutants[number] for number in given.only}
    with _copies(given.at_once) as copies:
        measured = measure(copies[0])
        print(f"{len(measured.seconds)} tests pass without a mutant", flush=True)
        alive = run(mutants, measured, copies)
    share = 100 * len(alive) / len(mutants)
    print(f"\n{len(alive)} of {len(mutants)} mutants are alive or late ({share:.0f} %), seed {given.seed}:")
    for mutant in sorted(alive, key=lambda each: (each.file, each.line)):
        print(f"  {mutant.file}:{mutant.line}  {mutant.change[:300]}")


if __name__ == "__main__":
    main()
