"""Draws mutants of the pure code by seed, runs the pure tests on each, and reports those that no test notices.

The mutants are made by mutmut's operators. mutmut's own runner keeps its copy in the repository and rewrites each
function into a table of its mutants; here a mutant is a changed file in a copy of the tree in a temporary directory,
and only the tests that execute the changed statement run on it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import coverage
import hypothesis  # noqa: F401  imported before the forks, as are the next three
import libcst as cst
import psutil  # noqa: F401
import pydantic  # noqa: F401
import pytest
import typer  # noqa: F401
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [f"orchestrator/core/{name}" for name in ("lifecycle", "diagnosis", "state", "plan", "progress")]
_PURE = "tests/unit/core"
_TESTS = [_PURE, "tests/unit/request", "tests/unit/stacks/test_odd_one_out.py"]
_PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
# Seconds for the tests of one mutant: this, and a multiple of what they took without a mutant.
_LEAST_S, _FACTOR = 120.0, 5.0
_OUTPUT, _MEASURED = "pytest.out", "pytest.measured"
_STATEMENTS = (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.MatchCase)
_UNCHANGED = (cst.Annotation, cst.Import, cst.ImportFrom, cst.Decorator)
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Mutant:
    """A file with `change` instead of `node`. `lines`: from the beginning of its statement to its own end."""

    file: str
    module: cst.Module
    node: cst.CSTNode
    change: cst.CSTNode
    line: int
    lines: range

    def __str__(self) -> str:
        codes = (self.module.code_for_node(each) for each in (self.node, self.change))
        before, after = (" ".join(code.split()) for code in codes)
        return f"{self.file}:{self.line}  {before}  ->  {after}"[:400]

    def write(self, copy: Path) -> None:
        (copy / self.file).write_text(self.module.deep_replace(self.node, self.change).code)

    def remove(self, copy: Path) -> None:
        (copy / self.file).write_text(self.module.code)


@dataclass(frozen=True)
class Measured:
    """The tests by file and line that they execute ("" is an import), and the seconds of each test."""

    by_line: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute a mutant, or all if an import executes it. The fastest come first."""
        lines = self.by_line.get(mutant.file, {})
        tests = {test for line in mutant.lines for test in lines.get(line, ())}
        return sorted(self.seconds if "" in tests or not tests else tests, key=self.seconds.__getitem__)


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Return the same mutants for the same seed and sources."""
    possible: list[Mutant] = []
    for path in (path for folder in folders for path in sorted((_ROOT / folder).rglob("*.py"))):
        wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
        places, file = wrapper.resolve(PositionProvider), str(path.relative_to(_ROOT))
        possible += (Mutant(file, wrapper.module, *each) for each in _changes(wrapper.module, places))
    print(f"{len(possible)} mutants are possible in {' '.join(folders)}", flush=True)
    return random.Random(seed).sample(possible, min(count, len(possible)))


def _changes(
    node: cst.CSTNode, places: Mapping[cst.CSTNode, CodeRange], first: int = 1
) -> Iterator[tuple[cst.CSTNode, cst.CSTNode, int, range]]:
    """Yield the changes below a node. Annotations, imports, decorators and docstrings stay as they are."""
    is_docstring = isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString)
    if is_docstring or isinstance(node, _UNCHANGED):
        return
    start, end = places[node].start.line, places[node].end.line
    if isinstance(node, _STATEMENTS):
        first = start
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            changes = list(operator(node))
            # The others change only the case of the letters of a string.
            for change in changes[:1] if isinstance(node, cst.SimpleString) else changes:
                yield node, change, start, range(first, end + 1)
    for child in node.children:
        yield from _changes(child, places, first)


def _make_copy(copy: Path) -> Path:
    """Copy the tree, without what git does not know."""
    copy.mkdir()
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=_ROOT)
    subprocess.run(["xargs", "-0", "cp", "--parents", "-Pt", copy], input=files, cwd=_ROOT, check=True)
    return copy


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


def _measure(copy: Path) -> None:
    _enter(copy)
    measuring = coverage.Coverage(data_file=None, source=[str(copy / "orchestrator/core")], config_file=False)
    recorder = _Recorder(measuring)
    with measuring.collect():
        code = pytest.main([*_PYTEST, *_TESTS], plugins=[recorder])
    data = measuring.get_data()
    by_line = {
        str(Path(file).relative_to(copy)): data.contexts_by_lineno(file) for file in data.measured_files()
    }
    (copy / _MEASURED).write_bytes(pickle.dumps((by_line, recorder.seconds)))
    sys.exit(code)


def measure(copy: Path) -> Measured:
    """Run the tests once without a mutant. Exits if one fails: each mutant would seem to be noticed."""
    child = _start(_measure, copy)
    child.join()
    if child.exitcode:
        print((copy / _OUTPUT).read_text()[-4000:])
        sys.exit(f"mutants: the tests fail without a mutant (pytest exits with {child.exitcode})")
    return Measured(*pickle.loads((copy / _MEASURED).read_bytes()))


def _test(copy: Path, mutant: Mutant, tests: list[str]) -> None:
    """Exit with 0 if all tests pass. The others start more slowly than the pure ones."""
    _enter(copy)
    mutant.write(copy)
    pure = [test for test in tests if test.startswith(_PURE)]
    others = [test for test in tests if not test.startswith(_PURE)]
    sys.exit(any(pytest.main([*_PYTEST, *part]) for part in (pure, others) if part))


def _start(target: Any, *given: object) -> BaseProcess:
    child = _FORK.Process(target=target, args=given)
    child.start()
    return child


def _kill(child: BaseProcess) -> None:
    """Kill a run of the tests with everything that it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()


def run(mutants: dict[int, Mutant], measured: Measured, copies: list[Path]) -> list[Mutant]:
    """Print the fate of each mutant; return those that are alive, or whose tests were not done in time."""
    waiting, alive = list(mutants.items()), []
    running: dict[Path, tuple[BaseProcess, int, Mutant, float]] = {}
    while waiting or running:
        for copy in copies:
            if waiting and copy not in running:
                number, mutant = waiting.pop(0)
                tests = measured.tests_of(mutant)
                by = time.monotonic() + _LEAST_S + _FACTOR * sum(measured.seconds[test] for test in tests)
                running[copy] = _start(_test, copy, mutant, tests), number, mutant, by
        wait([child.sentinel for child, *_ in running.values()], timeout=1.0)
        for copy, (child, number, mutant, by) in list(running.items()):
            code = child.exitcode
            if code is None and time.monotonic() < by:
                continue
            _kill(running.pop(copy)[0])
            mutant.remove(copy)
            fate = {None: "late", 0: "alive"}.get(code, "killed")
            if fate != "killed":
                alive.append(mutant)
            print(f"{number:4} {fate:6} {mutant}", flush=True)
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
    with tempfile.TemporaryDirectory(prefix="orch-mutants-") as folder:
        copies = [_make_copy(Path(folder) / str(number)) for number in range(given.at_once)]
        try:
            measured = measure(copies[0])
            print(f"{len(measured.seconds)} tests pass without a mutant", flush=True)
            alive = run(mutants, measured, copies)
        finally:
            for child in multiprocessing.active_children():
                _kill(child)
    share = 100 * len(alive) / len(mutants)
    print(f"\n{len(alive)} of {len(mutants)} mutants are alive or late ({share:.0f} %), seed {given.seed}:")
    for mutant in sorted(alive, key=lambda each: (each.file, each.line)):
        print(f"  {mutant}")


if __name__ == "__main__":
    main()
