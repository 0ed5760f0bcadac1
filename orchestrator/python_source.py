"""What a python command line runs, and whether its source starts TensorFlow (read, never executed)."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TENSORFLOW = frozenset({"tensorflow", "keras", "tf_keras"})
_MAX_SOURCE_BYTES = 2 << 20


@dataclass(frozen=True)
class PythonTarget:
    """At most one of the three is set; none of them: the interactive prompt, stdin, --version and such."""

    script: str | None = None
    module: str | None = None
    code: str | None = None


def python_target(words: Sequence[str]) -> PythonTarget:
    """What `python WORDS` runs, by the rules of the interpreter's own command line (`-Wd -um pkg`, too)."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        following = words[position] if position < len(words) else None
        if word == "--":
            return PythonTarget(script=following)
        if word == "-":
            return PythonTarget()
        if not word.startswith("-"):
            return PythonTarget(script=word)
        if word == "--check-hash-based-pycs":
            position += 1
        if word.startswith("--"):
            continue
        for at, letter in enumerate(word[1:], 2):
            value = word[at:] or following
            if letter == "c":
                return PythonTarget(code=value)
            if letter == "m":
                return PythonTarget(module=value)
            if letter in "WX":
                position += 0 if word[at:] else 1
                break
    return PythonTarget()


def starts_tensorflow(target: PythonTarget, cwd: Path) -> bool:
    """Whether a task that runs this is expected to start a TensorFlow server.

    True if the source imports tensorflow or keras anywhere in it. A module that is not found below `cwd` is
    taken for one that does; source that cannot be read or parsed for one that does not.
    """
    if target.code is not None:
        return _imports_tensorflow(target.code.encode(errors="surrogateescape"))
    if target.module is not None:
        path = _module_file(target.module, cwd)
        return True if path is None else _file_imports_tensorflow(path)
    if target.script is None:
        return False
    path = cwd / target.script
    return _file_imports_tensorflow(path / "__main__.py" if path.is_dir() else path)


def _module_file(module: str, cwd: Path) -> Path | None:
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    base = cwd.joinpath(*parts)
    candidates = (base.with_name(f"{base.name}.py"), base / "__main__.py")
    return next((path for path in candidates if path.is_file()), None)


def _file_imports_tensorflow(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _imports_tensorflow(file.read(_MAX_SOURCE_BYTES))
    except OSError:
        return False


def _imports_tensorflow(source: bytes) -> bool:
    if not any(name.encode() in source for name in _TENSORFLOW):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in the user's text is not orch's to report
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(name.partition(".")[0] in _TENSORFLOW for name in _imported_names(tree))


def _imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
