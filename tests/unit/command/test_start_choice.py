"""Fork or spawn: local modules, local names, options of Python, the environment, and what is preloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.job.choices import StartOption
from orchestrator.core.job.start_method import StartMethod
from orchestrator.request.command.program import find_program
from orchestrator.request.command.start_choice import choose_start

TENSORFLOW = "import tensorflow as tf\n"


def choose(
    cwd: Path,
    *words: str,
    environ: Mapping[str, str] | None = None,
    asked: StartOption = StartOption.AUTO,
    preload: tuple[str, ...] = (),
    legacy: bool = False,
) -> StartMethod:
    environ = environ or {}
    return choose_start(find_program(words or ("t.py",), cwd, environ), environ, asked, preload, legacy)


def write(directory: Path, text: str, name: str = "t.py") -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("before", "env"),
    [
        ("os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'", (("TF_CPP_MIN_LOG_LEVEL", "3"),)),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '-1'", (("CUDA_VISIBLE_DEVICES", "-1"),)),
        ("os.environ.setdefault('TF_X', '1')", (("TF_X", "1"),)),
        ("os.environ.setdefault('TF_SET', '1')", ()),
        ("os.environ['TF_X'] = '1'\nos.environ['TF_X'] = '2'", (("TF_X", "2"),)),
        ("import numpy\nos.environ['TF_X'] = '1'", (("TF_X", "1"),)),
    ],
)
def test_constants_for_tensorflow_are_set_while_it_is_preloaded(
    tmp_path: Path, before: str, env: tuple[tuple[str, str], ...]
) -> None:
    write(tmp_path, f"import os\n{before}\n{TENSORFLOW}")
    start = choose(tmp_path, environ={"TF_SET": "0"})
    assert start.fork, start.reason
    assert start.preload_env == env


MAIN = "def main():\n    print()\n    import tensorflow as tf\n"
OTHER = "def other():\n    os.environ['A'] = '1'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{MAIN}if __name__ == '__main__':\n    main()\n", "t.py line 5 uses main"),
        (f"import os, absl.app\n{MAIN}{OTHER}absl.app.run(main)\n", "t.py line 7 uses main"),
        (
            f"import os\n{MAIN}try:\n    main()\nexcept Exception as e:\n    print(e)\n",
            "t.py line 6 uses main",
        ),
        (f"import os\n{MAIN}{OTHER}", "t.py runs a function, or code under a condition"),
        (
            f"import os, sys\nif sys.argv[1:]:\n    import keras\nos.environ['A'] = '1'\n{TENSORFLOW}",
            "t.py line 4 sets A",
        ),
    ],
)
def test_an_import_in_a_function_or_under_a_condition_is_not_certain(
    tmp_path: Path, text: str, says: str
) -> None:
    write(tmp_path, text)
    start = choose(tmp_path)
    assert not start.fork
    assert says in start.reason


@pytest.mark.parametrize(
    "text",
    [
        f"import os\nif x():\n    {TENSORFLOW}else:\n    import keras\nos.environ['A'] = '1'\n",
        f"import os\ntry:\n    {TENSORFLOW}except ImportError:\n    pass\nos.environ['A'] = '1'\n",
        f"import os\ntry:\n    print()\n    {TENSORFLOW}finally:\n    os.environ['A'] = '1'\n",
        f"import os\nif __name__ == '__main__':\n    {TENSORFLOW}    os.environ['A'] = '1'\n",
        f"import os, warnings\nwith warnings.catch_warnings():\n    {TENSORFLOW}os.environ['A'] = '1'\n",
    ],
)
def test_code_after_a_certain_import_does_not_matter(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    start = choose(tmp_path)
    assert start.fork, start.reason


def test_local_modules_are_read_in_the_order_of_their_imports(tmp_path: Path) -> None:
    write(tmp_path, "import first\nimport second\n" + TENSORFLOW)
    write(tmp_path, "from lib import inner\n", "first.py")
    write(tmp_path, "", "lib/__init__.py")
    write(tmp_path, "import os\nos.environ['A'] = '1'\n", "lib/inner.py")
    write(tmp_path, "import os\nos.environ['B'] = '1'\n", "second.py")
    assert choose(tmp_path).reason == "lib/inner.py line 2 sets A before it imports tensorflow"
    write(tmp_path, TENSORFLOW, "first.py")
    assert choose(tmp_path).fork


def test_the_packages_of_a_module_are_read_before_it(tmp_path: Path) -> None:
    write(tmp_path, "import os\nos.environ['A'] = '1'\n", "pkg/__init__.py")
    write(tmp_path, TENSORFLOW, "pkg/sub/mod.py")
    write(tmp_path, TENSORFLOW, "pkg/__main__.py")
    for module in ("pkg.sub.mod", "pkg"):
        assert choose(tmp_path, "-m", module).reason == (
            "pkg/__init__.py line 2 sets A before it imports tensorflow"
        )
    write(tmp_path, TENSORFLOW, "pkg/__init__.py")
    assert choose(tmp_path, "-m", "pkg").fork


def test_a_package_without_init_is_local_if_it_has_the_module(tmp_path: Path) -> None:
    write(tmp_path, "from torch.models import load\n" + TENSORFLOW)
    write(tmp_path, "", "torch/models/net.py")
    assert "imports torch, which may do anything" in choose(tmp_path).reason
    write(tmp_path, "from src.models import net\nimport src.models.net\n" + TENSORFLOW)
    write(tmp_path, "def f(): pass\n", "src/models/net.py")
    assert choose(tmp_path).fork
    write(tmp_path, "import os\nos.environ['A'] = '1'\n", "src/models/net.py")
    assert choose(tmp_path).reason == "src/models/net.py line 2 sets A before it imports tensorflow"


def test_modules_of_a_directory_added_to_sys_path_are_local(tmp_path: Path) -> None:
    add = "import sys\nsys.path.insert(0, 'lib')\n"
    write(tmp_path, add + "import settings\n" + TENSORFLOW)
    write(tmp_path, "import os\nos.environ['A'] = '1'\n", "lib/settings.py")
    assert choose(tmp_path).reason == "lib/settings.py line 2 sets A before it imports tensorflow"
    write(tmp_path, "", "lib/settings.py")
    assert choose(tmp_path).fork
    write(tmp_path, "", "lib/numpy.py")
    assert "lib/numpy.py takes the place" in choose(tmp_path).reason


@pytest.mark.parametrize("name", [
    "numpy.py", "json.py", "queue/__init__.py", "keras/__init__.py", "six.so", "pandas.py", "PIL/__init__.py", "jax.py",
])  # fmt: skip
def test_a_local_module_with_the_name_of_one_that_tensorflow_imports_prevents_a_fork(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, TENSORFLOW)
    write(tmp_path, "", name)
    start = choose(tmp_path)
    assert not start.fork
    assert "takes the place of a module that TensorFlow imports" in start.reason


@pytest.mark.parametrize(
    "name",
    ["model.py", "data/keras.py", "trace.py", "imp.py", "test.py", "numpy/data.txt", "json", "statistics.py"],
)
def test_other_local_names_do_not_matter(tmp_path: Path, name: str) -> None:
    write(tmp_path, TENSORFLOW)
    write(tmp_path, "", name)
    assert choose(tmp_path).fork


def test_modules_are_preloaded_in_the_order_of_their_first_use(tmp_path: Path) -> None:
    write(tmp_path, TENSORFLOW + "tf.keras.Sequential()\n")
    assert choose(tmp_path).modules == ("tensorflow", "keras")
    assert choose(tmp_path, legacy=True).modules == ("tensorflow", "tf_keras")
    assert choose(tmp_path, environ={"TF_USE_LEGACY_KERAS": "1"}).modules == ("tensorflow", "tf_keras")
    assert choose(tmp_path, environ={"KERAS_BACKEND": "jax"}).modules == ("tensorflow",)
    assert choose(tmp_path, preload=("scipy",)).modules == ("tensorflow", "keras", "scipy")
    write(tmp_path, "import keras\n" + TENSORFLOW)
    assert choose(tmp_path).modules == ("keras", "tensorflow")
    write(tmp_path, "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nfrom tensorflow import keras\n")
    assert choose(tmp_path).modules == ("tensorflow", "tf_keras")
    write(tmp_path, TENSORFLOW + "import model\n")
    write(tmp_path, "from tensorflow import keras\n", "model.py")
    assert choose(tmp_path).modules == ("tensorflow", "keras")


def test_a_script_without_tensorflow_is_forked_only_for_other_modules(tmp_path: Path) -> None:
    write(tmp_path, "import json\n")
    assert choose(tmp_path).reason == "it does not import tensorflow, so a fork would not be faster"
    start = choose(tmp_path, preload=("torch",))
    assert (start.fork, start.modules) == (True, ("torch",))


def test_modules_to_preload_are_allowed(tmp_path: Path) -> None:
    write(tmp_path, "import mypkg.settings\n" + TENSORFLOW)
    assert not choose(tmp_path).fork
    assert choose(tmp_path, preload=("mypkg",)).modules == ("tensorflow", "mypkg")


@pytest.mark.parametrize(
    ("words", "fork"),
    [
        (("-u", "t.py"), True),
        (("-PB", "t.py"), True),
        (("-OO", "-W", "ignore::UserWarning", "-X", "utf8", "t.py"), True),
        (("-W", "error", "t.py"), False),
        (("-X", "importtime", "t.py"), False),
        (("-i", "t.py"), False),
        (("-I", "t.py"), False),
        (("-vS", "t.py"), False),
        (("--check-hash-based-pycs", "always", "t.py"), False),
        (("-c", TENSORFLOW), True),
        (("-m", "t"), True),
        (("-m", "elsewhere"), False),
        (("-",), False),
        ((".",), False),
    ],
)
def test_options_of_python_and_kinds_of_targets(tmp_path: Path, words: tuple[str, ...], fork: bool) -> None:
    write(tmp_path, TENSORFLOW)
    assert choose(tmp_path, *words).fork is fork


@pytest.mark.parametrize(
    ("name", "value", "fork"),
    [
        ("PYTHONVERBOSE", "1", False),
        ("PYTHONDEVMODE", "1", False),
        ("PYTHONWARNINGS", "error", False),
        ("PYTHONWARNINGS", "ignore", True),
        ("PYTHONUNBUFFERED", "1", True),
        ("PYTHONMALLOC", "malloc", True),
        ("LD_PRELOAD", "libtcmalloc.so", True),
    ],
)
def test_variables_that_change_imports(tmp_path: Path, name: str, value: str, fork: bool) -> None:
    write(tmp_path, TENSORFLOW)
    assert choose(tmp_path, environ={name: value}).fork is fork


def test_spawn_on_request_and_for_other_programs(tmp_path: Path) -> None:
    write(tmp_path, TENSORFLOW)
    assert choose(tmp_path, asked=StartOption.SPAWN).reason == "--start spawn asks for it"
    assert choose_start(None, {}, StartOption.AUTO, (), False).reason == "it is not a Python program"


def test_too_much_source_prevents_a_fork(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(300)]
    write(tmp_path, f"import {', '.join(names)}\n" + TENSORFLOW)
    for name in names:
        write(tmp_path, "", f"{name}.py")
    assert choose(tmp_path).reason == "its source is more than orch reads before a start"


def test_source_that_cannot_be_read_prevents_a_fork(tmp_path: Path) -> None:
    write(tmp_path, "import helper\n" + TENSORFLOW)
    write(tmp_path, "import tensorflow as as tf\n", "helper.py")
    assert "helper.py line 1 cannot be read by orch" in choose(tmp_path).reason
    write(tmp_path, "x = " + "-" * 5_000 + "1\n" + TENSORFLOW)
    assert not choose(tmp_path).fork


_WORDS = st.sampled_from(
    [
        "import tensorflow", "import os", "os.environ", "['A']", " = ", "'x'", "(", ")", "\n", "\n    ", "def f():",
        "class C:", "f()", "if x:", "else:", "try:", "except:", "from . import", " a", "for e in", "lambda: ",
        "sys.path",
        ".insert(0, ", "import t", "with f() as e:", "match x:", "case _:", "del ", "@f", "*", "async ", "await ", ":=",
        "import_module(", "return", "# x", "'''", "\\", "\0", "é", "__file__", "from os import environ as e",
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(_WORDS, max_size=14))
def test_any_source_has_an_answer(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    cwd = tmp_path_factory.getbasetemp() / "any-source"
    cwd.mkdir(exist_ok=True)
    (cwd / "t.py").write_text("".join(words) + "\n" + TENSORFLOW)
    start = choose(cwd)
    assert start.reason
    assert start.fork is bool(start.modules)
