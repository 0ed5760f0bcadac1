"""What a python command line runs, and whether it will start TensorFlow, by its source alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.python_source import PythonTarget, python_target, starts_tensorflow


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
    assert python_target(words) == target


@given(st.lists(st.text(alphabet="-cmWXux. ", max_size=4), max_size=5))
def test_any_words_have_a_target(words: list[str]) -> None:
    target = python_target(words)
    assert sum(part is not None for part in (target.script, target.module, target.code)) <= 1


@pytest.mark.parametrize(
    ("source", "serves"),
    [
        ("import tensorflow as tf", True),
        ("import os, tensorflow.compat.v1", True),
        ("from tensorflow import keras", True),
        ("def main():\n    import keras\n", True),
        ("try:\n    from tf_keras.layers import Dense\nexcept ImportError: pass\n", True),
        ("print('import tensorflow')", False),
        ("# import tensorflow\nimport torch", False),
        ("import tensorflow_datasets", False),
        ("from . import tensorflow", False),
        ("from .keras import x", False),
        ("import tensorflow\nthis is no python", False),
        ("# -*- coding: latin-1 -*-\nimport tensorflow\nx = '\xe9'\n", True),
        ("", False),
    ],
)
def test_script(tmp_path: Path, source: str, serves: bool) -> None:
    (tmp_path / "t.py").write_bytes(source.encode("latin-1"))
    assert starts_tensorflow(PythonTarget(script="t.py"), tmp_path) is serves


def test_source_is_not_executed_nor_complained_about(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "t.py").write_text(f"import tensorflow\nopen({str(marker)!r}, 'w')\nx = '\\d'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert starts_tensorflow(PythonTarget(script="t.py"), tmp_path)
    assert not marker.exists()


def test_source_too_deep_to_parse() -> None:
    code = "import tensorflow\n" + "(" * 10_000 + ")" * 10_000
    assert not starts_tensorflow(PythonTarget(code=code), Path("/"))


def test_module_is_looked_for_below_the_directory(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "plain.py").write_text("print(1)")
    (tmp_path / "pkg" / "__main__.py").write_text("import tensorflow")
    assert not starts_tensorflow(PythonTarget(module="pkg.plain"), tmp_path)
    assert starts_tensorflow(PythonTarget(module="pkg"), tmp_path)


@pytest.mark.parametrize("module", ["somewhere.else", "", "../x", ".", "a..b"])
def test_module_that_is_elsewhere_is_taken_for_tensorflows(tmp_path: Path, module: str) -> None:
    assert starts_tensorflow(PythonTarget(module=module), tmp_path)


def test_unreadable_and_interactive(tmp_path: Path) -> None:
    assert not starts_tensorflow(PythonTarget(script="gone.py"), tmp_path)
    assert not starts_tensorflow(PythonTarget(), tmp_path)
