"""Fork or spawn: code before the import of TensorFlow, local modules, options of Python, and what is preloaded."""

from __future__ import annotations

import re
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
    """Write a source, in which SET is a statement that sets a variable."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"\bSET\b", "os.environ['A'] = '1'", text))


# -- code before the import of TensorFlow

# Sources between `import os` and the import of TensorFlow.
HARMLESS = [
    "",
    "if os.environ.get('TF_CONFIG') and 'A' in os.environ: print(os.environ['TF_CONFIG'])",
    "print(dict(os.environ), len(os.environ), {**os.environ})",
    "env = os.environ.copy()\nenv['A'] = '1'",
    "from os import environ as e\nx = e.get('A')",
    "import numpy as np, pandas\nfrom absl import app, flags\nimport tqdm.auto",
    "def f():\n    SET",
    "import tensorflow as tf\nSET",
    "import os, json\nos.environ.pop('TF_CONFIG', None)\nos.environ['TF_CONFIG'] = json.dumps({})",
    "import sys, json\nc = int(sys.argv[1])\nos.environ.update({'TF_CONFIG': json.dumps(c)})",
    "os.environ.update(TF_CONFIG='{}')\nos.putenv('TF_CONFIG', '{}')\nos.unsetenv('TF_CONFIG')",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import weird",
    "import os, subprocess\nsubprocess.run(['true'], env={**os.environ, 'A': '1'})",
    "import multiprocessing\nmultiprocessing.set_start_method('spawn')",
    "import sys\nif '.' not in sys.path:\n    sys.path.insert(0, '.')",
    "import sys\nR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\nsys.path.insert(0, R)",
    "import sys\nfrom pathlib import Path\nsys.path.append(str(Path(__file__).resolve().parent / 'x'))",
    "if __name__ != '__main__':\n    pass",
    "try:\n    import numpy\nexcept ImportError:\n    pass",
    "os.environ['PYTHONHASHSEED'] = str(3)\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'",
    "os.environ['WANDB_MODE'] = 'offline'",
    "import dotenv, omegaconf, hydra",
    "from sys import path as p\np.insert(0, 'lib')",
    "import psutil\nn = psutil.Process().memory_info()",
    "try:\n    import numpy\n    import tensorflow\nexcept ImportError:\n    SET\n    raise",
    "import os, functools\n@functools.lru_cache(None)\ndef f():\n    SET",
    "class C:\n    @property\n    def p(self):\n        SET",
    "args = parse()\nx = getattr(args, name)\ny = vars(args)\nimport os\ndef f():\n    SET",
    "import logging\nlog = logging.getLogger(__name__)\nlog.setLevel(logging.INFO)\nlog.info('x')",
    "import logging\nlog = logging.getLogger(__name__)\nh = logging.StreamHandler()\nlog.addHandler(h)",
    "import logging\nlogging.StreamHandler().setLevel(20)\nlogging.getLogger(__name__).propagate = False",
    "import logging\nlogging.getLogger('tensorflow').setLevel(logging.ERROR)",
    "from absl import logging\nlogging.set_verbosity(logging.INFO)\nlogging.info('x')",
    "import warnings\nwarnings.filterwarnings('ignore')\nwarnings.simplefilter(action='ignore')",
    "import sys\nsys.stderr.write('x')\nprint(file=sys.stderr)\nsys.stdout.flush()",
    "import sys\nif 'numpy' in sys.modules: print()",
    "import sys\nfrom sys import path\nprint(sys.path, path, os.pathsep.join(sys.path))\nq = '.' in path",
    "import sys\np = sys.path[0]\nfor x in sys.path: pass",
]
# The same with the line and what is found there.
CHANGING = [
    ("3 PASSED", "import os, subprocess\nsubprocess.run(['true'], env=os.environ)"),
    ("2 sets A", "os.environ['A'] = str(3)"),
    ("2 sets OMP_A", "os.environ['OMP_A'] = '1'"),
    ("2 deletes A", "del os.environ['A']"),
    ("2 removes A", "os.environ.pop('A', None)"),
    ("2 sets A", "os.environ.update(A='1')"),
    ("2 sets A", "os.environ.setdefault('A', x)"),
    ("2 PASSED", "os.environ |= {'A': '1'}"),
    ("3 uses os.environ.clear", "import os as system\nsystem.environ.clear()"),
    ("2 sets a variable", "os.environ.update({'TF_CONFIG': '{}', **load()})"),
    ("2 sets A", "os.putenv('A', '1')"),
    ("3 sets A", "from os import putenv as p\np('A', '1')"),
    ("3 sets A", "from os import environ as e\ne['A'] = '1'"),
    ("2 PASSED", "e = os.environ\ne['A'] = '1'"),
    ("2 imports setup_it", "import os, setup_it\nsetup_it.go(os.environ)"),
    ("2 PASSED", "prepare(os.environ)"),
    ("3 uses unittest.mock.patch.dict", "from unittest import mock as m\nm.patch.dict(os.environ).start()"),
    ("3 uses dotenv.load_dotenv", "from dotenv import load_dotenv\nload_dotenv()"),
    ("3 sets TF_A", "if not os.environ.get('A'):\n    os.environ['TF_A'] = '1'"),
    ("4 uses f, NOT_FOLLOWED", "def f():\n    SET\nf()"),
    ("6 uses f, NOT_FOLLOWED", "def g():\n    SET\ndef f():\n    g()\nf()"),
    ("5 uses C, NOT_FOLLOWED", "class C:\n    def m(self):\n        SET\nC()"),
    ("3 sets A", "class C:\n    SET"),
    ("5 uses d, NOT_FOLLOWED", "def d(f):\n    SET\n    return f\n@d\ndef g(): pass"),
    ("2 sets A", "f = lambda: os.environ.update({'A': '1'})"),
    ("3 sets a variable", "for n in 'ab':\n    os.environ[n] = '1'"),
    ("5 sets A", "try:\n    pass\nexcept OSError:\n    SET"),
    ("2 uses exec, which can run anything", "exec(open('x').read())"),
    ("3 uses importlib.import_module", "import importlib, sys\nimportlib.import_module(sys.argv[1])"),
    ("3 imports torch", "import numpy\nimport torch"),
    ("3 uses threading.Thread", "import threading\nthreading.Thread(target=print).start()"),
    ("3 uses sys.path.insert", "import sys\nsys.path.insert(0, sys.argv[1])"),
    ("3 changes sys.path, or passes it on", "import sys\nsys.path = []"),
    ("6 sets A", "try:\n    import nltk\n    import tensorflow\nexcept ImportError:\n    SET"),
    ("7 sets A", "try:\n    import nltk\n    import tensorflow\nexcept ImportError:\n    pass\nSET"),
    ("6 sets A", "import contextlib as c\nwith c.suppress(OSError):\n import nltk\n import tensorflow\nSET"),
    ("2 sets KERAS_BACKEND", "os.environ['KERAS_BACKEND'] = 'jax'"),
    ("2 uses os.environ.setdefault", "s = os.environ.setdefault\ns('A', '1')"),
    ("2 PASSED", "d = {'e': os.environ}"),
    ("2 PASSED", "e = None or os.environ\ne['A'] = '1'"),
    ("2 uses os", "getattr(os, 'environ')['A'] = '1'"),
    ("4 uses globals, which can run anything", "def f():\n    SET\nglobals()['f']()"),
    ("5 uses C, NOT_FOLLOWED", "class C:\n    def f(self):\n        SET\ngetattr(C(), name)()"),
    ("3 uses operator.methodcaller", "import operator as o\no.methodcaller(x)"),
    ("5 uses r, NOT_FOLLOWED", "R = []\ndef r(f):\n R.append(f)\n@r\ndef g():\n SET\nfor g in R: g()"),
    ("3 uses logging.getLogger", "import logging\nlog = logging.getLogger('absl')\nlog.setLevel(40)"),
    ("4 replaces builtins.__import__", "import builtins\ndef f(*a): pass\nbuiltins.__import__ = f"),
    ("3 uses sys", "import sys\nsetattr(sys, 'stderr', x)"),
    ("3 changes sys.path, or passes it on", "import sys\np = sys.path\np[:0] = [x]"),
    ("3 changes sys.path, or passes it on", "import sys\np = sys.path\np += [x]"),
    ("3 uses sys.settrace", "import sys\nsys.settrace(f)"),
    ("3 uses sys.modules", "from sys import modules as m\nm['x'] = 1"),
    ("3 uses logging.basicConfig", "import logging as l\nl.basicConfig()"),
    ("3 uses logging.config.dictConfig", "from logging.config import dictConfig as d\nd({})"),
    ("3 uses logging.info", "import logging as l\nl.info('x')"),
    ("3 uses logging.getLogger", "import logging\nlogging.getLogger().addHandler(h)"),
    ("3 replaces logging.root.handlers", "from logging import root\nroot.handlers = []"),
    ("3 uses logging.getLogger", "import logging\nlogging.getLogger('tensorflow').addHandler(h)"),
    ("3 uses absl.logging.use_absl_handler", "from absl import logging\nlogging.use_absl_handler()"),
    ("3 uses warnings.simplefilter", "import warnings\nwarnings.simplefilter('error')"),
    ("3 replaces sys.stderr", "import sys\nsys.stderr = x"),
    ("3 replaces sys.stdout", "import sys\nwith open('x') as sys.stdout:\n    pass"),
    ("3 uses hydra.main", "import hydra\n@hydra.main(version_base=None)\ndef main(cfg): pass"),
    ("3 sets A", "import shutil\nshutil.SET"),
    ("3 uses sys.modules", "import sys\nm = sys.modules[__name__]"),
    ("2 imports all names of os", "from os import *\nenviron['A'] = '1'"),
    ("5 uses sys.path.insert", "import sys\np = 'lib'\np = sys.argv[1]\nsys.path.insert(0, p)"),
    ("5 uses f", "def f():\n    SET\nclass C:\n    f()"),
    ("5 uses A", "class A:\n    def __init_subclass__(cls):\n        pass\nclass B(A):\n    pass"),
]
_WORDS_OF_REASONS = {
    "PASSED": "changes os.environ, or passes it on",
    "NOT_FOLLOWED": "which orch does not follow",
}


def choose_with(cwd: Path, before: str) -> StartMethod:
    write(cwd, f"import os\n{before}\n{TENSORFLOW}")
    return choose(cwd)


def test_script_with_harmless_code_before_the_import_is_forked(tmp_path: Path) -> None:
    for before in HARMLESS:
        start = choose_with(tmp_path, before)
        assert (start.fork, start.modules, start.preload_env) == (True, ("tensorflow",), ()), (before, start)


def test_other_code_prevents_a_fork(tmp_path: Path) -> None:
    for says, before in CHANGING:
        for word, meaning in _WORDS_OF_REASONS.items():
            says = says.replace(word, meaning)
        start = choose_with(tmp_path, before)
        assert (start.fork, start.modules, start.preload_env) == (False, (), ()), (before, start)
        assert re.match(f"t.py line {re.escape(says)}.* before it imports tensorflow$", start.reason), start


def test_constants_for_tensorflow_are_set_while_it_is_preloaded(tmp_path: Path) -> None:
    table: dict[str, dict[str, str]] = {
        "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'": {"TF_CPP_MIN_LOG_LEVEL": "3"},
        "os.environ['CUDA_VISIBLE_DEVICES'] = '-1'": {"CUDA_VISIBLE_DEVICES": "-1"},
        "os.environ.setdefault('TF_X', '1')": {"TF_X": "1"},
        "os.environ.setdefault('TF_SET', '1')": {},
        "os.environ['TF_X'] = '1'\nos.environ['TF_X'] = '2'": {"TF_X": "2"},
        "import numpy\nos.environ['TF_X'] = '1'": {"TF_X": "1"},
    }
    for before, env in table.items():
        write(tmp_path, f"import os\n{before}\n{TENSORFLOW}")
        start = choose(tmp_path, environ={"TF_SET": "0"})
        assert start.fork and dict(start.preload_env) == env, before


MAIN = "def main():\n    print()\n    import tensorflow as tf\n"
OTHER = "def other():\n    SET\n"
ENV = "import os\nenv = os.environ\n"
SETUP = "import os\ndef setup():\n    SET\n"
SETS_A = "import os\nSET\n"
MODELS = "from src.models import net\nimport src.models.net\n"
ENVIRON = "from os import environ\n"
ADD_LIB = "import sys\nsys.path.insert(0, 'lib')\nimport settings\n"
CONFIG = "import argparse\nSIZE = 3\nparser = argparse.ArgumentParser()\ndef f(): pass\n"
FUNCTIONS = dict.fromkeys(("config/__init__.py", "config/sub.py"), "import os\ndef f():\n    SET\n")
# t.py, the other files, and what prevents a fork ("": nothing does).
PROJECTS: list[tuple[str, dict[str, str], str]] = [
    # An import in a function or under a condition is not certain.
    (f"{MAIN}if __name__ == '__main__':\n    main()\n", {}, "t.py line 5 uses main"),
    (f"import os, absl.app\n{MAIN}{OTHER}absl.app.run(main)\n", {}, "t.py line 7 uses main"),
    (f"import os\n{MAIN}try:\n    main()\nexcept OSError:\n    pass\n", {}, "t.py line 6 uses main"),
    (f"import os\n{MAIN}{OTHER}", {}, "t.py runs a function, or code under a condition"),
    (f"import os, sys\nif sys.argv[1:]:\n    import keras\nSET\n{TENSORFLOW}", {}, "t.py line 4 sets A"),
    # Code after a certain import does not matter.
    (f"import os\nif x():\n    {TENSORFLOW}else:\n    import keras\nSET\n", {}, ""),
    (f"import os\ntry:\n    {TENSORFLOW}except ImportError:\n    pass\nSET\n", {}, ""),
    (f"import os\ntry:\n    print()\n    {TENSORFLOW}finally:\n    SET\n", {}, ""),
    (f"import os\nif __name__ == '__main__':\n    {TENSORFLOW}    SET\n", {}, ""),
    (f"import os, warnings\nwith warnings.catch_warnings():\n    {TENSORFLOW}SET\n", {}, ""),
    # Local modules are read in the order of their imports.
    *(
        (
            f"import first\nimport second\n{TENSORFLOW}",
            {"first.py": first, "lib/__init__.py": "", "lib/inner.py": SETS_A, "second.py": SETS_A},
            says,
        )
        for first, says in {"from lib import inner\n": "lib/inner.py line 2 sets A", TENSORFLOW: ""}.items()
    ),
    # A package without __init__.py is local if it has the module.
    (f"from torch.models import load\n{TENSORFLOW}", {"torch/models/net.py": ""}, "imports torch, which"),
    (MODELS + TENSORFLOW, {"src/models/net.py": "x = 1\n"}, ""),
    (MODELS + TENSORFLOW, {"src/models/net.py": SETS_A}, "src/models/net.py line 2 sets A"),
    # Modules of a directory that is added to sys.path are local.
    (ADD_LIB + TENSORFLOW, {"lib/settings.py": SETS_A}, "lib/settings.py line 2 sets A"),
    (ADD_LIB + TENSORFLOW, {"lib/settings.py": ""}, ""),
    (ADD_LIB + TENSORFLOW, {"lib/settings.py": "", "lib/numpy.py": ""}, "lib/numpy.py takes the place"),
    # Uses of the names of local modules.
    *(
        (use + TENSORFLOW, {"common.py": common}, says)
        for use, common, says in (
            ("from common import setup as s\ns()\n", SETUP, "t.py line 2 uses common.setup"),
            ("import common as c\nc.setup()\n", SETUP, "t.py line 2 uses common.setup"),
            ("import common\ngetattr(common, 'setup')()\n", SETUP, "t.py line 2 uses common"),
            ("import common\nvars(common)[x]()\n", SETUP, "t.py line 2 uses common"),
            ("from common import *\nsetup()\n", SETUP, "t.py line 1 imports all names of common"),
            ("from common import *\nenv['A'] = str(1)\n", ENV, "common.py line 2 changes"),
            ("import common\ncommon.env['A'] = str(1)\n", ENV, "common.py line 2 changes"),
            ("from common import environ as e\ne['A'] = str(1)\n", ENVIRON, "line 2 uses common."),
            ("import common\ncommon.environ['A'] = str(1)\n", ENVIRON, "t.py line 2 sets A"),
            # Their variables may be read.
            ("import common\nprint(common.SIZE)\n", CONFIG, ""),
            ("from common import SIZE as s\nsize = 2 * s\n", CONFIG, ""),
            ("import common as c\nc.parser.parse_args()\n", CONFIG, ""),
        )
    ),
    *(
        (f"import config, config.sub\n{use}{TENSORFLOW}", FUNCTIONS, "t.py line 2 uses config")
        for use in ("x = config.f\n", "config.__dict__['f']()\n", "config.sub.f()\n", "x = config\n")
    ),
    # Source that cannot be read.
    (f"import helper\n{TENSORFLOW}", {"helper.py": "import os as as o\n"}, "helper.py line 1 cannot be read"),
    (f"x = {'-' * 5_000}1\n{TENSORFLOW}", {}, "it does not import tensorflow"),
]


def test_what_prevents_a_fork_in_a_project(tmp_path: Path) -> None:
    wrong = []
    for number, (text, files, says) in enumerate(PROJECTS):
        for name, source in {"t.py": text, **files}.items():
            write(tmp_path / str(number), source, name)
        start = choose(tmp_path / str(number))
        if start.fork is bool(says) or says not in start.reason:
            wrong.append((text, files, start.reason))
    assert not wrong, wrong


# -- local modules


def test_the_packages_of_a_module_are_read_before_it(tmp_path: Path) -> None:
    write(tmp_path, "import os\nSET\n", "pkg/__init__.py")
    write(tmp_path, TENSORFLOW, "pkg/sub/mod.py")
    write(tmp_path, TENSORFLOW, "pkg/__main__.py")
    for module in ("pkg.sub.mod", "pkg"):
        reason = choose(tmp_path, "-m", module).reason
        assert reason == "pkg/__init__.py line 2 sets A before it imports tensorflow"
    write(tmp_path, TENSORFLOW, "pkg/__init__.py")
    assert choose(tmp_path, "-m", "pkg").fork


def test_a_local_module_with_the_name_of_one_that_tensorflow_imports_prevents_a_fork(tmp_path: Path) -> None:
    for number, name in enumerate(
        ("numpy.py", "json.py", "queue/__init__.py", "keras/__init__.py", "six.so", "jax.py")
    ):
        cwd = tmp_path / str(number)
        write(cwd, TENSORFLOW)
        write(cwd, "", name)
        start = choose(cwd)
        assert not start.fork, name
        assert "takes the place of a module that TensorFlow imports" in start.reason, name


def test_other_local_names_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path, TENSORFLOW)
    names = ["model.py", "data/keras.py", "trace.py", "imp.py", "test.py", "numpy/data.txt", "json"]
    for name in (*names, "statistics.py"):
        write(tmp_path, "", name)
        assert choose(tmp_path).fork, name


# -- what is preloaded, and options


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


def test_options_of_python_and_kinds_of_targets(tmp_path: Path) -> None:
    write(tmp_path, TENSORFLOW)
    spawned = ("-W error", "-X importtime", "-i", "-I", "-vS", "--check-hash-based-pycs always")
    for options in ("-u", "-PB", "-OO -W ignore::UserWarning -X utf8", *spawned):
        assert choose(tmp_path, *options.split(), "t.py").fork is (options not in spawned), options
    assert choose(tmp_path, "-c", TENSORFLOW).fork and choose(tmp_path, "-m", "t").fork
    for words in (("-m", "elsewhere"), ("-",), (".",)):
        assert not choose(tmp_path, *words).fork, words


def test_variables_that_change_imports(tmp_path: Path) -> None:
    write(tmp_path, TENSORFLOW)
    spawned = ("PYTHONVERBOSE=1", "PYTHONDEVMODE=1", "PYTHONWARNINGS=error")
    forked = ("PYTHONWARNINGS=ignore", "PYTHONUNBUFFERED=1", "LD_PRELOAD=libtcmalloc.so")
    for pair in (*spawned, *forked):
        name, _, value = pair.partition("=")
        assert choose(tmp_path, environ={name: value}).fork is (pair in forked), pair


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
    write(cwd, "".join(words) + "\n" + TENSORFLOW)
    start = choose(cwd)
    assert start.reason
    assert start.fork is bool(start.modules)
