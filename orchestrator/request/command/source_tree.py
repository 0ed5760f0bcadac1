"""A command's own source: its script and the local modules that it may import, read and never executed."""

from __future__ import annotations

import ast
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from orchestrator.host.programs import open_without_waiting

# Limits on what is read before a start. Beyond them the answer is "not sure".
MAX_FILES = 200
MAX_BYTES = 4 << 20
MAX_SECONDS = 0.5
_MAX_PARSED_BYTES = 1 << 20
_IMPORT = re.compile(
    # A repetition with ++ gives nothing back, which would take long in a line of blanks.
    rb"(?:^|[;:])[ \t]*(?:import[ \t]+([^\r\n;#]+)"
    rb"|from[ \t]++(\.*+(?:[ \t]*+(?!import\b)[\w.]++)?)[ \t]++import[ \t]*\(?([^\r\n;#]*))",
    re.MULTILINE,
)
_NAME = re.compile(r"[^\W\d]\w*\Z")
_IN_PARENTHESES = re.compile(rb"import[ \t]*\(([^)]{0,2000})\)")
_CONTINUATION = re.compile(rb"\\\r?\n")
TENSORFLOW = frozenset({"tensorflow", "keras", "tf_keras"})


class TooLarge(Exception):
    """There is more source than may be read before a start."""


@dataclass(frozen=True, eq=False)
class Source:
    """A source file. `module`: its dotted name. `package`: where its relative imports start, "" for none. `shown`:
    its name in messages."""

    path: Path
    module: str
    package: str
    shown: str
    text: bytes

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its syntax tree; None if Python could not read it, or if it is too large."""
        if len(self.text) > _MAX_PARSED_BYTES:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the user's text
                return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree)) if self.tree else []

    def imports(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Every import as (absolute module, names taken from it), found without parsing. It may find more than there
        are (in a text), and misses none that starts a line."""
        text = _CONTINUATION.sub(b" ", self.text) if b"\\" in self.text else self.text
        text = _IN_PARENTHESES.sub(lambda found: b"import " + b" ".join(found[1].split()), text)
        for found in _IMPORT.finditer(text):
            if found[1] is not None:
                for part in found[1].split(b","):
                    yield part.split()[0].decode(errors="replace") if part.split() else "", ()
            elif origin := self.absolute(found[2].decode(errors="replace").replace(" ", "")):
                names = (part.split() for part in found[3].split(b","))
                yield origin, tuple(name[0].decode(errors="replace") for name in names if name)

    def absolute(self, origin: str) -> str | None:
        """The absolute name of `origin`: `..a` is `p.a` in package `p.q`. None if the package does not exist."""
        name = origin.lstrip(".")
        level = len(origin) - len(name)
        if not level:
            return name
        parts = self.package.split(".") if self.package else []
        base = parts[: len(parts) - level + 1]
        return None if level > len(parts) else ".".join([*base, name] if name else base)

    def names_of(self, node: ast.AST) -> dict[str, str]:
        """The names that an import statement gives, and what they stand for: {"tf": "tensorflow"}."""
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = self.absolute("." * level + (module or ""))
                return {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in names}
            case ast.Import(names=names):
                tops = [(alias, alias.name.partition(".")[0]) for alias in names]
                return {alias.asname or top: alias.name if alias.asname else top for alias, top in tops}
        return {}


@dataclass
class SourceTree:
    """The files below `roots`, the first directories of the command's sys.path in their order."""

    roots: tuple[Path, ...]
    cwd: Path
    _sources: dict[str, Source | None] = field(default_factory=dict)
    _read_bytes: int = 0
    _deadline: float = field(default_factory=lambda: time.process_time() + MAX_SECONDS)

    def add_root(self, directory: Path, *, first: bool) -> None:
        """The script adds a directory to its sys.path."""
        directory = self.cwd / directory
        self.roots = (directory, *self.roots) if first else (*self.roots, directory)
        self._sources = {name: source for name, source in self._sources.items() if source is not None}

    def check_time(self) -> None:
        if time.process_time() > self._deadline:
            raise TooLarge

    def open(self, path: Path, module: str, package: str) -> Source | None:
        """A file by its path; None if it cannot be read. TooLarge beyond the limits."""
        if len(self._sources) >= MAX_FILES:
            raise TooLarge
        self.check_time()
        try:
            with open(path, "rb", opener=open_without_waiting) as file:
                text = file.read(MAX_BYTES + 1 - self._read_bytes)
        except (OSError, ValueError):
            return None
        self._read_bytes += len(text)
        if self._read_bytes > MAX_BYTES:
            raise TooLarge
        shown = path.relative_to(self.cwd) if path.is_relative_to(self.cwd) else path
        return Source(path, module, package, str(shown), text)

    def code(self, text: str) -> Source:
        return Source(self.cwd / "-c", "__main__", "", "-c", text.encode(errors="surrogateescape"))

    def module(self, name: str) -> Source | None:
        """The local file of a dotted module (a package's __init__.py); None if it is not local."""
        if name not in self._sources:
            path = self.find(name)
            package = name if path is not None and path.name == "__init__.py" else name.rpartition(".")[0]
            self._sources[name] = None if path is None else self.open(path, name, package)
        return self._sources[name]

    def find(self, name: str) -> Path | None:
        """The path of a dotted module's file, if it is local."""
        for path in self._places(name):
            try:
                if path.is_file():
                    return path
            except (OSError, ValueError):
                continue
        return None

    def missing(self) -> Iterator[Path]:
        """Yield where the modules would be that were looked for and have no local file."""
        for name, source in self._sources.items():
            if source is None:
                yield from self._places(name)

    def _places(self, name: str) -> Iterator[Path]:
        """Yield where a dotted module's file may be, in the order in which Python looks."""
        parts = name.split(".")
        if all(_NAME.match(part) for part in parts):
            for root in self.roots:
                base = root.joinpath(*parts)
                yield from (base / "__init__.py", base.with_name(f"{base.name}.py"))

    def is_local(self, name: str, taken: Iterable[str] = ()) -> bool:
        """Whether importing a dotted name, or `taken` from it, runs local files. A directory without an __init__.py
        counts only if it has the very module: an installed package wins over it."""
        wanted = (name.partition(".")[0], name, *(f"{name}.{item}" for item in taken))
        return any(self.find(module) is not None for module in wanted)

    def chain(self, name: str) -> Iterator[Source]:
        """The local files that importing a dotted name runs: its packages from the outside in, then itself."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if source := self.module(".".join(parts[:count])):
                yield source

    def before(self, start: Source) -> tuple[Source, ...]:
        """The packages that `-m pkg.mod` runs before the module itself."""
        return tuple(self.chain(start.package)) if start.package else ()

    def reachable(self, start: Source) -> Iterator[Source]:
        """`start` and every local file that its imports lead to, each once, imports in functions included."""
        seen: set[Path] = set()
        waiting = [*self.before(start), start]
        while waiting:
            source = waiting.pop()
            if source.path in seen:
                continue
            seen.add(source.path)
            yield source
            for origin, names in source.imports():
                waiting += self.chain(origin)
                waiting += filter(None, (self.module(f"{origin}.{name}") for name in names))

    def imports_tensorflow(self, start: Source) -> bool:
        """Whether a file does that `start` may import, if only in a function. True if there is too much source to
        tell; a file that cannot be parsed does not count."""
        try:
            return any(_imports_it(source) for source in self.reachable(start))
        except TooLarge:
            return True


def _imports_it(source: Source) -> bool:
    if not any(name.encode() in source.text for name in TENSORFLOW):
        return False
    dotted = (dotted for node in source.nodes for dotted in source.names_of(node).values())
    return any(name.partition(".")[0] in TENSORFLOW for name in dotted)


def constant_text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def dotted_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """`os.environ` for whatever a file calls it; "" for what is not imported. `names`: see `Source.names_of`."""
    if isinstance(node, ast.Attribute):
        inner = dotted_name(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def called_name(node: ast.AST | None) -> str:
    """`c` for `a.b.c`, and for a call of it."""
    inner = node.func if isinstance(node, ast.Call) else node
    return inner.attr if isinstance(inner, ast.Attribute) else inner.id if isinstance(inner, ast.Name) else ""
