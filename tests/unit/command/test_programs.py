"""The program of a Python command line or of a script's first line, and whether its sources import TensorFlow."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.host.programs import shebang_python
from orchestrator.request.command.program import PythonTarget, find_program, python_line

# -- command lines


def test_target_of_a_python_command_is_found() -> None:
    script = PythonTarget(script="t.py")
    table = {
        script: ("t.py -m x", "-u t.py", "-W ignore -X dev t.py", "-Wignore -Xdev t.py", "-uW ignore t.py"),
        PythonTarget(script="u.py"): ("--check-hash-based-pycs always u.py",),
        PythonTarget(script="-odd.py"): ("-- -odd.py",),
        PythonTarget(module="pkg.mod"): ("-m pkg.mod",),
        PythonTarget(module="pkg"): ("-um pkg", "-mpkg"),
        PythonTarget(code="x"): ("-c x t.py", "-Bcx"),
        PythonTarget(): ("-", "", "--version", "-m"),
    }
    for target, lines in table.items():
        for line in lines:
            assert python_line(line.split()).target == target, line


@given(st.lists(st.text(alphabet="-cmWXux. ", max_size=4), max_size=5))
def test_any_words_have_at_most_one_target(words: list[str]) -> None:
    target = python_line(words).target
    assert sum(part is not None for part in (target.script, target.module, target.code)) <= 1


def test_options_of_the_interpreter() -> None:
    table = {
        "-u t.py -B": "-u",
        "-W ignore -X utf8 -m pkg": "-W ignore -X utf8",
        "-um pkg": "-u",
        "-Bc pass": "-B",
        "-mpkg": "",
        "--check-hash-based-pycs always t.py": "--check-hash-based-pycs always",
    }
    assert {words: " ".join(python_line(words.split()).options) for words in table} == table
    line = python_line(["-uBW", "error", "-Xdev", "t.py"])
    assert line.letters == {"u", "B"}
    assert line.values == (("W", "error"), ("X", "dev"))


# -- first lines


def test_first_line_of_a_script_names_its_interpreter(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "other"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    python = f"{folder}/python"
    table: dict[str, tuple[str, ...]] = {
        f"#!{python}\nprint(1)\n": (python,),
        f"#! {python} -u\n": (python, "-u"),
        "#!/usr/bin/env python\n": (python,),
        f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n": (python,),
    }
    other = [
        "#!/usr/bin/env nothing\n",
        "#!/usr/bin/env -S python -u\n",
        f"#!{folder}/other\n",
        "#!/no/such/python\n",
    ]
    program = tmp_path / "program"
    for text in (*table, *other, "#!\n", "print(1)", ""):
        program.write_text(text)
        assert shebang_python(program, str(folder)) == table.get(text), text


@given(st.binary(max_size=60))
def test_any_first_line_is_read_without_error(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    program = tmp_path_factory.getbasetemp() / "first-line"
    program.write_bytes(b"#!" + text)
    shebang_python(program, "/bin")


# -- sources


def serves(cwd: Path, *words: str, **environ: str) -> bool:
    """Whether the program of these words imports TensorFlow."""
    program = find_program(words, cwd, environ)
    return program.start is not None and program.tree.imports_tensorflow(program.start)


def write(directory: Path, **files: str) -> None:
    """Write modules. Two underscores in a name are a slash."""
    for name, text in files.items():
        path = directory / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_imports_of_a_script(tmp_path: Path) -> None:
    table = {
        "import tensorflow as tf\nopen(__file__ + '.ran', 'w')\nx = '\\d'": True,
        "import os, tensorflow.compat.v1": True,
        "from tensorflow import keras": True,
        "def main():\n    import keras\n": True,
        "try:\n    from tf_keras.layers import Dense\nexcept ImportError: pass\n": True,
        "print('import tensorflow')": False,
        "# import tensorflow\nimport torch": False,
        "import tensorflow_datasets": False,
        "from . import tensorflow": False,
        "from .keras import x": False,
        "import tensorflow\nthis is no python": False,
        "# -*- coding: latin-1 -*-\nimport tensorflow\nx = '\xe9'\n": True,
        "": False,
    }
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in table:
            (tmp_path / "t.py").write_bytes(source.encode("latin-1"))
            found[source] = serves(tmp_path, "t.py")
    assert found == table
    assert [path.name for path in tmp_path.iterdir()] == ["t.py"], "a source is not executed"


def test_unreadable_and_missing_sources_do_not_count(tmp_path: Path) -> None:
    assert not serves(tmp_path, "-c", "import tensorflow\n" + "(" * 10_000 + ")" * 10_000)
    assert not serves(tmp_path, "gone.py")
    assert not serves(tmp_path)
    for module in ("somewhere.else", "", "../x", ".", "a..b"):
        assert find_program(("-m", module), tmp_path, {}).start is None, module


def test_modules_are_found_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole/__init__.py").touch()
    (tmp_path / "whole/__main__.py").write_text("from . import inner")
    write(tmp_path, whole__inner="import keras", pkg__plain="print(1)")
    write(tmp_path, t="import a", a="import b", b="import a, t")
    (tmp_path / "pkg/__main__.py").write_text("import tensorflow")
    assert not serves(tmp_path, "-m", "pkg.plain")
    assert serves(tmp_path, "-m", "pkg")
    assert serves(tmp_path, "-m", "whole")
    # The packages of a module count.
    (tmp_path / "pkg/__init__.py").write_text("import tensorflow")
    assert serves(tmp_path, "-m", "pkg.plain")
    assert not serves(tmp_path, "t.py"), "modules that import each other"


def test_imported_local_modules_count(tmp_path: Path) -> None:
    statements = (
        "import model",
        "import json, model as m",
        "from model import build",
        "from lib import model",
        "import lib.model",
        "from lib.sub import (\n    other,\n    deep,\n)",
        "def main():\n    from lib.model import build",
        "if True: import model",
        "import \\\n    model",
    )
    empty, full = tmp_path / "empty", tmp_path / "full"
    write(full, model="import tensorflow as tf", lib__model="import tensorflow as tf", lib__sub__other="")
    write(full, lib__sub__deep="from .. import model")
    (full / "lib/sub/__init__.py").touch()
    for statement in statements:
        write(empty, t=statement + "\n")
        write(full, t=statement + "\n")
        assert (serves(empty, "t.py"), serves(full, "t.py")) == (False, True), statement


def test_modules_of_pythonpath_and_beside_the_target_of_a_link_count(tmp_path: Path) -> None:
    write(tmp_path, cwd__t="import model", lib__model="import tensorflow")
    assert serves(tmp_path / "cwd", "t.py", PYTHONPATH="../lib")
    assert not serves(tmp_path / "cwd", "-E", "t.py", PYTHONPATH="../lib")
    (tmp_path / "link.py").symlink_to("cwd/t.py")
    assert not serves(tmp_path, "link.py")
    write(tmp_path, cwd__model="import tensorflow")
    assert serves(tmp_path, "link.py")


def test_too_much_source_counts_as_tensorflow(tmp_path: Path) -> None:
    write(tmp_path, **{f"m{number}": f"import m{number + 1}" for number in range(300)})
    assert serves(tmp_path, "m0.py")
