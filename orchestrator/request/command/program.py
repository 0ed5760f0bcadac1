"""Read a Python command line: the interpreter's options, and the program that it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.request.command.source_tree import Source, SourceTree, TooLarge

# Options with which Python prints something and exits: -V, -h, -?.
_ANSWERS = frozenset("Vh?")


@dataclass(frozen=True)
class PythonTarget:
    """At most one of the three is set. None is set for the interactive prompt, standard input, --version."""

    script: str | None = None
    module: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class PythonLine:
    """`python OPTIONS TARGET`. `options`: the words before the target, without `-m` and `-c`. `letters`: their single
    letters. `values`: their (letter, value) pairs."""

    options: tuple[str, ...]
    target: PythonTarget
    letters: frozenset[str] = frozenset()
    values: tuple[tuple[str, str], ...] = ()
    long_options: tuple[str, ...] = ()

    @property
    def reads_stdin(self) -> bool:
        """True if Python reads its program, or the lines of a prompt, from standard input."""
        return self.target == PythonTarget() and not (self.letters & _ANSWERS or self.long_options)


@dataclass(frozen=True)
class Program:
    """`start`: the first source, None if it was not found (an installed module) or is too large. `first`: the
    directory that Python puts first on sys.path, None if it puts none there."""

    line: PythonLine
    tree: SourceTree
    start: Source | None
    first: Path | None


def python_line(words: Sequence[str]) -> PythonLine:
    """Read `python WORDS` as the interpreter does (`-Wd -um pkg` too)."""
    options: list[str] = []
    letters: set[str] = set()
    values: list[tuple[str, str]] = []
    long_options: list[str] = []
    target = PythonTarget()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--", "-") or not word.startswith("-"):
            following = rest[0] if rest else None
            target = PythonTarget(script={"--": following, "-": None}.get(word, word))
            break
        if word.startswith("--"):
            long_options.append(word)
            options += [word, *_taken(rest, word == "--check-hash-based-pycs")]
            continue
        # The first letter that takes a value takes the rest of the word, or the next word.
        flags = re.match("[^cmWX]*", word[1:])[0]  # type: ignore[index]
        letters |= set(flags)
        letter, value = word[1 + len(flags) :][:1], word[2 + len(flags) :]
        if letter in ("c", "m"):
            options += [f"-{flags}"] if flags else []
            given = value or (rest[0] if rest else None)
            target = PythonTarget(code=given) if letter == "c" else PythonTarget(module=given)
            break
        taken = _taken(rest, letter != "" and not value)
        options += [word, *taken]
        if letter:
            values.append((letter, value or "".join(taken)))
    return PythonLine(tuple(options), target, frozenset(letters), tuple(values), tuple(long_options))


def _taken(rest: list[str], takes: bool) -> list[str]:
    return [rest.pop(0)] if takes and rest else []


def find_program(words: tuple[str, ...], cwd: Path, environ: Mapping[str, str]) -> Program:
    """The program of `python WORDS` run in `cwd`. Reads its first file only."""
    line = python_line(words)
    script = cwd / line.target.script if line.target.script is not None else None
    first = _first_on_path(line, script, cwd, environ)
    search = "" if line.letters & {"E", "I"} else environ.get("PYTHONPATH", "")
    others = (cwd / part for part in search.split(os.pathsep) if part)
    tree = SourceTree(tuple(dict.fromkeys((*([first] if first else []), *others))), cwd)
    try:
        start = _start(line.target, tree, script)
    except TooLarge:  # a zip file with its packages, for example
        start = None
    return Program(line, tree, start, first)


def _first_on_path(
    line: PythonLine, script: Path | None, cwd: Path, environ: Mapping[str, str]
) -> Path | None:
    if script is not None and _is_directory(script):
        return script
    if line.letters & {"P", "I"} or (environ.get("PYTHONSAFEPATH") and "E" not in line.letters):
        return None
    return cwd if script is None else Path(os.path.realpath(script)).parent


def _start(target: PythonTarget, tree: SourceTree, script: Path | None) -> Source | None:
    if target.code is not None:
        return tree.code(target.code)
    if script is not None:
        return tree.open(script / "__main__.py" if _is_directory(script) else script, "__main__", "")
    if target.module is None:
        return None
    name = target.module
    path = tree.find(name)
    if path is not None and path.name != "__init__.py":
        return tree.open(path, "__main__", name.rpartition(".")[0])
    path = tree.find(f"{name}.__main__")
    return None if path is None else tree.open(path, "__main__", name)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
