"""Whether a command imports TensorFlow, as its source and its local modules show."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from orchestrator.request.command.program import find_program


def serves(cwd: Path, *words: str, **environ: str) -> bool:
    program = find_program(words, cwd, environ)
    return program.start is not None and program.tree.imports_tensorflow(program.start)


@pytest.mark.parametrize(
    ("source", "expected"),
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
def test_imports_of_a_script(tmp_path: Path, source: str, expected: bool) -> None:
    (tmp_path / "t.py").write_bytes(source.encode("latin-1"))
    assert serves(tmp_path, "t.py") is expected


def test_source_is_not_executed_and_causes_no_warning(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "t.py").write_text(f"import tensorflow\nopen({str(marker)!r}, 'w')\nx = '\\d'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert serves(tmp_path, "t.py")
    assert not marker.exists()


def test_source_that_is_nested_too_deeply_does_not_count(tmp_path: Path) -> None:
    assert not serves(tmp_path, "-c", "import tensorflow\n" + "(" * 10_000 + ")" * 10_000)


def write(directory: Path, name: str, text: str = "") -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_modules_are_found_in_the_working_directory(tmp_path: Path) -> None:
    write(tmp_path, "pkg/plain.py", "print(1)")
    write(tmp_path, "pkg/__main__.py", "import tensorflow")
    write(tmp_path, "whole/__init__.py")
    write(tmp_path, "whole/__main__.py", "from . import inner")
    write(tmp_path, "whole/inner.py", "import keras")
    assert not serves(tmp_path, "-m", "pkg.plain")
    assert serves(tmp_path, "-m", "pkg")
    assert serves(tmp_path, "-m", "whole")


def test_packages_of_a_module_count(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "import tensorflow")
    write(tmp_path, "pkg/plain.py", "print(1)")
    assert serves(tmp_path, "-m", "pkg.plain")


@pytest.mark.parametrize("module", ["somewhere.else", "", "../x", ".", "a..b"])
def test_installed_modules_have_no_source(tmp_path: Path, module: str) -> None:
    assert find_program(("-m", module), tmp_path, {}).start is None


@pytest.mark.parametrize(
    "statement",
    [
        "import model",
        "import json, model as m",
        "from model import build",
        "from lib import model",
        "import lib.model",
        "from lib.sub import (\n    other,\n    deep,\n)",
        "def main():\n    from lib.model import build",
        "if True: import model",
        "import \\\n    model",
    ],
)
def test_imported_local_modules_count(tmp_path: Path, statement: str) -> None:
    write(tmp_path, "t.py", statement + "\n")
    assert not serves(tmp_path, "t.py")
    write(tmp_path, "model.py", "import tensorflow as tf")
    write(tmp_path, "lib/model.py", "import tensorflow as tf")
    write(tmp_path, "lib/sub/__init__.py")
    write(tmp_path, "lib/sub/other.py")
    write(tmp_path, "lib/sub/deep.py", "from .. import model")
    assert serves(tmp_path, "t.py")


def test_modules_that_import_each_other(tmp_path: Path) -> None:
    write(tmp_path, "t.py", "import a")
    write(tmp_path, "a.py", "import b")
    write(tmp_path, "b.py", "import a, t")
    assert not serves(tmp_path, "t.py")


def test_modules_of_pythonpath_count(tmp_path: Path) -> None:
    write(tmp_path, "cwd/t.py", "import model")
    write(tmp_path, "lib/model.py", "import tensorflow")
    assert serves(tmp_path / "cwd", "t.py", PYTHONPATH="../lib")
    assert not serves(tmp_path / "cwd", "-E", "t.py", PYTHONPATH="../lib")


def test_modules_beside_the_target_of_a_link_count(tmp_path: Path) -> None:
    write(tmp_path, "real/t.py", "import model")
    write(tmp_path, "real/model.py", "import tensorflow")
    (tmp_path / "link.py").symlink_to("real/t.py")
    assert serves(tmp_path, "link.py")


def test_too_much_source_counts_as_tensorflow(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path, f"m{number}.py", f"import m{number + 1}")
    assert serves(tmp_path, "m0.py")


def test_missing_scripts_and_the_prompt_do_not_count(tmp_path: Path) -> None:
    assert not serves(tmp_path, "gone.py")
    assert not serves(tmp_path)
