"""No pattern of the project backtracks over long text: a task, a host or a file may send any text."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

ROOT = Path(__file__).parents[2]
# Lengths of text, and the CPU time for one. A pattern in linear time needs less than a tenth of it.
LIMITS_S = {5_000: 0.06, 100_000: 1.0}
# The user's own pattern (--grep), whose text is bounded.
OWN_PATTERN = "orchestrator.store.logs.query"
# The argument that has the flags.
_FLAGS = {
    "compile": 1,
    "search": 2,
    "match": 2,
    "fullmatch": 2,
    "findall": 2,
    "finditer": 2,
    "split": 3,
    "sub": 4,
}
_REPEATS = (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT)
_FILLERS = (" x", "1", ".")
# The methods of a pattern that is stored in a table and called in a loop.
_OF_ALL = {"search", "match", "fullmatch"}


@dataclass(frozen=True)
class Used:
    """A pattern (None if it is not known before it is used), and the methods that are called with it."""

    where: str
    pattern: re.Pattern[Any] | None
    methods: tuple[str, ...]


@pytest.mark.parametrize("length", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_each_pattern_needs_little_time_for_long_text(length: int) -> None:
    context = multiprocessing.get_context("fork")
    slow, first, code = [], 0, -1
    while code != 0:
        reader, writer = context.Pipe(duplex=False)
        searching = context.Process(target=search, args=(first, length, writer))
        searching.start()
        writer.close()
        number, what = first, ""
        with reader, suppress(EOFError):
            while True:
                number, what = reader.recv()
        searching.join()
        code = searching.exitcode or 0
        assert code in (0, -signal.SIGVTALRM), what
        if code:  # the text took too long
            slow.append(what)
            first = number + 1
    assert not slow, "\n".join(slow)


def search(first: int, length: int, tell: Connection) -> None:
    """Search hard texts, from this pattern on. SIGVTALRM ends the process if any takes too long; each is sent first."""
    patterns = list(list_patterns())
    assert len(patterns) > 100
    assert {used.where for used in patterns if used.pattern is None} == {OWN_PATTERN}
    for number, used in enumerate(patterns[first:], first):
        if used.pattern is None:
            continue
        for hard in hard_texts(used.pattern, length):
            subject: Any = hard.encode("latin-1") if isinstance(used.pattern.pattern, bytes) else hard
            for method in used.methods:
                tell.send((number, f"{used.where}: {used.pattern.pattern!r}: {method}: {hard[:60]!r}"))
                signal.setitimer(signal.ITIMER_VIRTUAL, LIMITS_S[length])
                call = getattr(used.pattern, method)
                result = call(subject[:0], subject) if method.startswith("sub") else call(subject)
                if method == "finditer":
                    list(result)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def list_patterns() -> Iterator[Used]:
    """Yield all patterns of the project. TensorFlow is not imported."""
    for name in ("tensorflow", "keras"):
        sys.modules[name] = MagicMock()
    for package in ("orchestrator", "worker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if path.stem != "__main__" and "re." in text and re.search(r"^import re$", text, re.MULTILINE):
                parts = path.relative_to(ROOT).with_suffix("").parts
                calls = _Calls(importlib.import_module(".".join(parts)))
                calls.visit(ast.parse(text))
                yield from calls.found


class _Calls(ast.NodeVisitor):
    """Finds the calls of `re` in a module. Its pattern may use the module's constants, also as a loop over a table."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._loops: list[Any] = []
        self._names: dict[int, str] = {}
        self._methods: dict[str, set[str]] = defaultdict(set)
        self._calls: list[tuple[str, ast.Call, Any]] = []

    @property
    def found(self) -> Iterator[Used]:
        others = set().union(
            *(its for name, its in self._methods.items() if name not in self._names.values())
        )
        for method, call, loop in self._calls:
            methods = {method} if method != "compile" else self._methods[self._names.get(id(call), "")]
            methods = methods or others & _OF_ALL or {"search"}
            flags = [each.value for each in call.keywords if each.arg == "flags"]
            flags += call.args[_FLAGS[method] : _FLAGS[method] + 1]
            value = ast.Tuple([call.args[0], *flags], ast.Load())
            made: list[Any] = [None]
            for over in (None, loop):
                with suppress(NameError):
                    made = self._evaluate(value, over)
                    break
            for each in made:
                pattern = None if each is None else re.compile(each[0], int(sum(each[1:])))
                yield Used(self._module.__name__, pattern, tuple(sorted(methods)))

    def _evaluate(self, value: ast.expr, loop: Any) -> list[Any]:
        over = [] if loop is None else loop.generators
        inner = [ast.comprehension(each.target, each.iter, [], 0) for each in over]
        whole = ast.ListComp(value, inner) if inner else ast.List([value], ast.Load())
        code = compile(ast.fix_missing_locations(ast.Expression(whole)), "pattern", "eval")
        made = eval(code, vars(self._module))
        assert isinstance(made, list)
        return made

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Name):
            self._names[id(node.value)] = node.targets[0].id
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(ast.Name("re"), method) if method in _FLAGS:
                self._calls.append((method, node, self._loops[-1] if self._loops else None))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.attr in _FLAGS:
            self._methods[node.value.id].add(node.attr)
        self.generic_visit(node)

    def _visit_loop(self, node: ast.AST) -> None:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    visit_GeneratorExp = visit_ListComp = visit_SetComp = visit_DictComp = _visit_loop


def hard_texts(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Yield long texts that begin as the pattern does, and do not end as it does."""
    seen = set()
    for head, body in _places(parser.parse(pattern.pattern, pattern.flags & ~_of_type(pattern)), ""):
        repeated = [("", head), *((head, filler) for filler in _FILLERS), ("", f"{head} "), ("", f"{head}1")]
        repeated += [(head, body), ("", head + body), ("", f"{head}{body}x")] if body else []
        for start, unit in repeated:
            if unit and (start, unit) not in seen:
                seen.add((start, unit))
                yield (start + unit * (length // len(unit)))[:length] + "\x00"


def _of_type(pattern: re.Pattern[Any]) -> int:
    return int(re.UNICODE) if isinstance(pattern.pattern, bytes) else 0


def _places(items: Any, before: str) -> Iterator[tuple[str, str]]:
    """Yield (a text that matches up to a repetition, a text that it repeats), and the text of the whole pattern."""
    for kind, value in items:
        if kind in _REPEATS:
            for choice in range(2):
                yield before, _example(value[2], choice)
        for inner in _inner(kind, value):
            if any(each is not kinds.LITERAL for each, _ in inner):
                yield from _places(inner, before)
        example = _example([(kind, value)], 0)
        if kind is not kinds.LITERAL:
            yield before, example
        before += example
    yield before, ""
    yield before[:-1], ""


def _inner(kind: Any, value: Any) -> list[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is kinds.SUBPATTERN:
        return [value[3]]
    if kind is kinds.ATOMIC_GROUP:
        return [value]
    return list(value[1]) if kind is kinds.BRANCH else []


def _example(items: Any, choice: int) -> str:
    """Return a short text that these items match, without regard for assertions."""
    text = ""
    for kind, value in items:
        if kind is kinds.LITERAL:
            text += chr(value)
        elif kind in _REPEATS:
            text += _example(value[2], choice) * max(value[0], min(choice, 1))
        elif inner := _inner(kind, value):
            text += _example(inner[choice % len(inner)], choice)
        elif kind in (kinds.ANY, kinds.NOT_LITERAL, kinds.IN):
            # Characters that many patterns have in common first.
            one = parser.SubPattern(parser.State(), [(kind, value)])
            matches = re._compiler.compile(one, 0).fullmatch  # type: ignore[attr-defined]
            possible = [
                each for each in map(chr, (120, 49, 46, *range(32, 256), *range(32))) if matches(each)
            ]
            text += possible[choice % len(possible)] if possible else ""
    return text
