"""The options and the target of a Python command line, and of a script's first line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.host.programs import shebang_python
from orchestrator.request.command.program import PythonTarget, python_line


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["t.py", "-m", "x"], PythonTarget(script="t.py")),
        (["-u", "t.py"], PythonTarget(script="t.py")),
        (["-W", "ignore", "-X", "dev", "t.py"], PythonTarget(script="t.py")),
        (["-Wignore", "-Xdev", "t.py"], PythonTarget(script="t.py")),
        (["-uW", "ignore", "t.py"], PythonTarget(script="t.py")),
        (["--check-hash-based-pycs", "always", "t.py"], PythonTarget(script="t.py")),
        (["--", "-odd.py"], PythonTarget(script="-odd.py")),
        (["-m", "pkg.mod"], PythonTarget(module="pkg.mod")),
        (["-um", "pkg"], PythonTarget(module="pkg")),
        (["-mpkg"], PythonTarget(module="pkg")),
        (["-c", "x", "t.py"], PythonTarget(code="x")),
        (["-Bcx"], PythonTarget(code="x")),
        (["-"], PythonTarget()),
        ([], PythonTarget()),
        (["--version"], PythonTarget()),
        (["-m"], PythonTarget()),
    ],
)
def test_target(words: list[str], target: PythonTarget) -> None:
    assert python_line(words).target == target


@given(st.lists(st.text(alphabet="-cmWXux. ", max_size=4), max_size=5))
def test_any_words_have_at_most_one_target(words: list[str]) -> None:
    target = python_line(words).target
    assert sum(part is not None for part in (target.script, target.module, target.code)) <= 1


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-u", "t.py", "-B"], ("-u",)),
        (["-W", "ignore", "-X", "utf8", "-m", "pkg"], ("-W", "ignore", "-X", "utf8")),
        (["-um", "pkg"], ("-u",)),
        (["-Bc", "pass"], ("-B",)),
        (["-mpkg"], ()),
        (["--check-hash-based-pycs", "always", "t.py"], ("--check-hash-based-pycs", "always")),
    ],
)
def test_options_of_the_interpreter(words: list[str], options: tuple[str, ...]) -> None:
    assert python_line(words).options == options


def test_letters_and_values() -> None:
    line = python_line(["-uBW", "error", "-Xdev", "t.py"])
    assert line.letters == {"u", "B"}
    assert line.values == (("W", "error"), ("X", "dev"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!{bin}/python\nprint(1)\n", ("{bin}/python",)),
        ("#! {bin}/python -u\n", ("{bin}/python", "-u")),
        ("#!/usr/bin/env python\n", ("{bin}/python",)),
        ("#!/bin/sh\n'''exec' {bin}/python \"$0\" \"$@\"\n' '''\n", ("{bin}/python",)),
        ("#!/usr/bin/env nothing\n", None),
        ("#!/usr/bin/env -S python -u\n", None),
        ("#!{bin}/other\n", None),
        ("#!/no/such/python\n", None),
        ("#!\n", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_shebang(tmp_path: Path, text: str, words: tuple[str, ...] | None) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "other"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    program = tmp_path / "program"
    program.write_text(text.format(bin=folder))
    expected = None if words is None else tuple(word.format(bin=folder) for word in words)
    assert shebang_python(program, str(folder)) == expected


@given(st.binary(max_size=60))
def test_any_first_line_is_read_without_error(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    program = tmp_path_factory.getbasetemp() / "first-line"
    program.write_bytes(b"#!" + text)
    shebang_python(program, "/bin")
