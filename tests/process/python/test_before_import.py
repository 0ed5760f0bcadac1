"""Code before the import of TensorFlow: what may be there when tasks are forked, and what prevents a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.job.choices import StartOption
from orchestrator.core.job.start_method import StartMethod
from orchestrator.request.command.program import find_program
from orchestrator.request.command.start_choice import choose_start

TENSORFLOW = "import tensorflow as tf\n"


def choose(directory: Path, before: str) -> StartMethod:
    """The start method of a script that runs `before`, and then imports TensorFlow."""
    (directory / "t.py").write_text(before + TENSORFLOW)
    return choose_start(find_program(("t.py",), directory, {}), {}, StartOption.AUTO, (), legacy=False)


FORKED = {
    "nothing": "",
    "os.environ read": (
        "import os\nif os.environ.get('TF_CONFIG') and 'A' in os.environ: print(os.environ['TF_CONFIG'])\n"
    ),
    "os.environ read as a whole": "import os\nprint(dict(os.environ), len(os.environ), {**os.environ})\n",
    "os.environ copied": "import os\nenv = os.environ.copy()\nenv['A'] = '1'\n",
    "os.environ read by another name": "from os import environ as e\nx = e.get('A')\n",
    "imports of known modules": "import numpy as np, pandas\nfrom absl import app, flags\nimport tqdm.auto\n",
    "a function that is not called": "import os\ndef f():\n    os.environ['A'] = '1'\n",
    "a variable set after the import": "import os\nimport tensorflow as tf\nos.environ['A'] = '1'\n",
    "TF_CONFIG set and removed": (
        "import os, json\nos.environ.pop('TF_CONFIG', None)\nos.environ['TF_CONFIG'] = json.dumps({})\n"
    ),
    "TF_CONFIG written in other ways": (
        "import os, sys, json\nconfig = {'task': {'type': 'worker', 'index': int(sys.argv[1])}}\n"
        "os.environ.update({'TF_CONFIG': json.dumps(config)})\nos.environ.update(TF_CONFIG='{}')\n"
        "os.putenv('TF_CONFIG', '{}')\nos.unsetenv('TF_CONFIG')\n"
    ),
    "an import for type checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import weird\n",
    "a subprocess with a changed environment": (
        "import os, subprocess\nsubprocess.run(['true'], env={**os.environ, 'A': '1'})\n"
    ),
    "the start method of multiprocessing": "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n",
    "a directory added to sys.path": "import sys\nif '.' not in sys.path:\n    sys.path.insert(0, '.')\n",
    "the parent directory added to sys.path": (
        "import os, sys\nROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n"
        "sys.path.insert(0, ROOT)\n"
    ),
    "a directory added to sys.path with pathlib": (
        "import sys\nfrom pathlib import Path\nsys.path.append(str(Path(__file__).resolve().parent / 'x'))\n"
    ),
    "a test for another name than __main__": "if __name__ != '__main__':\n    pass\n",
    "an optional import": "try:\n    import numpy\nexcept ImportError:\n    pass\n",
    "variables that TensorFlow does not read": (
        "import os\nos.environ['PYTHONHASHSEED'] = str(3)\n"
        "os.environ['TOKENIZERS_PARALLELISM'] = 'false'\nos.environ['WANDB_MODE'] = 'offline'\n"
    ),
    "modules that are harmless until they are called": "import dotenv, omegaconf, hydra\n",
    "sys.path by another name": "from sys import path as p\np.insert(0, 'lib')\n",
    "psutil": "import psutil\nn = psutil.Process().memory_info()\n",
    "a handler that raises": (
        "import os\ntry:\n    import numpy\n    import tensorflow\nexcept ImportError:\n"
        "    os.environ['A'] = '1'\n    raise\n"
    ),
    "a function with a decorator of the standard library": (
        "import os, functools\n@functools.lru_cache(None)\ndef f():\n    os.environ['A'] = '1'\n"
    ),
    "a property": "import os\nclass C:\n    @property\n    def p(self):\n        os.environ['A'] = '1'\n",
    "attributes of a variable by name": (
        "args = parse()\nx = getattr(args, name)\ny = vars(args)\nimport os\ndef f():\n"
        "    os.environ['A'] = '1'\n"
    ),
    "a logger of its own": (
        "import logging\nlog = logging.getLogger(__name__)\nlog.setLevel(logging.INFO)\n"
        "handler = logging.StreamHandler()\nhandler.setLevel(20)\nlog.addHandler(handler)\n"
        "log.propagate = False\nlog.info('x')\n"
    ),
    "the level of a logger of TensorFlow": "import logging\nlogging.getLogger('tensorflow').setLevel(logging.ERROR)\n",
    "logging of absl": "from absl import logging\nlogging.set_verbosity(logging.INFO)\nlogging.info('x')\n",
    "warnings ignored": (
        "import warnings\nwarnings.filterwarnings('ignore')\nwarnings.simplefilter(action='ignore')\n"
    ),
    "output streams used": "import sys\nsys.stderr.write('x')\nprint(file=sys.stderr)\nsys.stdout.flush()\n",
    "a test for an imported module": "import sys\nif 'numpy' in sys.modules: print()\n",
    "sys.path read": (
        "import os, sys\nfrom sys import path\n"
        "print(sys.path, path, os.pathsep.join(sys.path))\np = sys.path[0]\nq = '.' in path\n"
        "for x in sys.path: pass\n"
    ),
}


@pytest.mark.parametrize("before", FORKED.values(), ids=FORKED)
def test_script_with_harmless_code_before_the_import_is_forked(tmp_path: Path, before: str) -> None:
    start = choose(tmp_path, before)
    assert start.fork, start.reason
    assert start.modules == ("tensorflow",)
    assert start.preload_env == ()


# The code, and what the reason says of it.
SPAWNED = {
    "os.environ given to a subprocess": (
        "import os, subprocess\nsubprocess.run(['true'], env=os.environ)\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "a computed value": ("import os\nos.environ['A'] = str(3)\n", "line 2 sets A"),
    "a variable that is not only for TensorFlow": (
        "import os\nos.environ['OMP_A'] = '1'\n",
        "line 2 sets OMP_A",
    ),
    "a variable deleted": ("import os\ndel os.environ['A']\n", "line 2 deletes A"),
    "a variable removed": ("import os\nos.environ.pop('A', None)\n", "line 2 removes A"),
    "os.environ.update": ("import os\nos.environ.update(A='1')\n", "line 2 sets A"),
    "setdefault with a computed value": ("import os\nos.environ.setdefault('A', x)\n", "line 2 sets A"),
    "os.environ joined in place": (
        "import os\nos.environ |= {'A': '1'}\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ.clear by another name of os": (
        "import os as system\nsystem.environ.clear()\n",
        "line 2 uses os.environ.clear",
    ),
    "os.environ.update with unknown names": (
        "import os\nos.environ.update({'TF_CONFIG': '{}', **load()})\n",
        "line 2 sets a variable",
    ),
    "os.putenv": ("import os\nos.putenv('A', '1')\n", "line 2 sets A"),
    "os.putenv by another name": ("from os import putenv as p\np('A', '1')\n", "line 2 sets A"),
    "os.environ imported by another name": ("from os import environ as e\ne['A'] = '1'\n", "line 2 sets A"),
    "os.environ stored in a variable": (
        "import os\ne = os.environ\ne['A'] = '1'\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ given to an unknown module": (
        "import os, setup_it\nsetup_it.go(os.environ)\n",
        "line 1 imports setup_it",
    ),
    "os.environ given to a function": (
        "import os\nprepare(os.environ)\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ patched": (
        "import os\nfrom unittest import mock\nmock.patch.dict(os.environ, A='1').start()\n",
        "line 3 uses unittest.mock.patch.dict",
    ),
    "variables loaded from a file": (
        "from dotenv import load_dotenv\nload_dotenv()\n",
        "line 2 uses dotenv.load_dotenv",
    ),
    "a variable set under a condition": (
        "import os\nif not os.environ.get('A'):\n    os.environ['TF_A'] = '1'\n",
        "line 3 sets TF_A",
    ),
    "a function of the script called": (
        "import os\ndef f():\n    os.environ['A'] = '1'\nf()\n",
        "line 4 uses f, which orch does not follow",
    ),
    "a function of the script that calls another": (
        "import os\ndef g():\n    os.environ['A'] = '1'\ndef f():\n    g()\nf()\n",
        "line 6 uses f, which orch does not follow",
    ),
    "a class of the script called": (
        "import os\nclass C:\n    def m(self):\n        os.environ['A'] = '1'\nC()\n",
        "line 5 uses C, which orch does not follow",
    ),
    "a variable set in a class body": ("import os\nclass C:\n    os.environ['A'] = '1'\n", "line 3 sets A"),
    "a decorator of the script": (
        "import os\ndef d(f):\n    os.environ['A'] = '1'\n    return f\n@d\ndef g(): pass\n",
        "line 5 uses d, which orch does not follow",
    ),
    "a variable set in a lambda": (
        "import os\nf = lambda: os.environ.update({'A': '1'})\n",
        "line 2 sets A",
    ),
    "variables set in a loop": (
        "import os\nfor n in 'ab':\n    os.environ[n] = '1'\n",
        "line 3 sets a variable",
    ),
    "a variable set in a handler": (
        "import os\ntry:\n    pass\nexcept OSError:\n    os.environ['A'] = '1'\n",
        "line 5 sets A",
    ),
    "exec": ("exec(open('x').read())\n", "line 1 uses exec, which can run anything"),
    "a module with a computed name": (
        "import importlib, sys\nimportlib.import_module(sys.argv[1])\n",
        "line 2 uses importlib.import_module",
    ),
    "an unknown module": ("import numpy\nimport torch\n", "line 2 imports torch"),
    "a name of an unknown module": ("from ray.tune import run\n", "line 1 imports ray"),
    "a thread": (
        "import threading\nthreading.Thread(target=print).start()\n",
        "line 2 uses threading.Thread",
    ),
    "a pool of processes": (
        "from multiprocessing import Pool\npool = Pool(2)\n",
        "line 2 uses multiprocessing.Pool",
    ),
    "chosen CPUs": ("import os\nos.sched_setaffinity(0, {0})\n", "line 2 uses os.sched_setaffinity"),
    "a computed directory on sys.path": (
        "import sys\nsys.path.insert(0, sys.argv[1])\n",
        "line 2 uses sys.path.insert",
    ),
    "sys.path replaced": ("import sys\nsys.path = []\n", "line 2 changes sys.path, or passes it on"),
    "a module put into sys.modules": (
        "import sys\nsys.modules['keras'] = None\n",
        "line 2 uses sys.modules",
    ),
    "a variable set in the handler of another import": (
        (
            "import os\ntry:\n    import nltk\n    import tensorflow\nexcept ImportError:\n"
            "    os.environ['A'] = '1'\n"
        ),
        "line 6 sets A",
    ),
    "a variable set after the handler of another import": (
        (
            "import os\ntry:\n    import nltk\n    import tensorflow\nexcept ImportError:\n"
            "    pass\nos.environ['A'] = '1'\n"
        ),
        "line 7 sets A",
    ),
    "a variable set after a suppressed import": (
        (
            "import os, contextlib\nwith contextlib.suppress(ImportError):\n    import nltk\n"
            "    import tensorflow\nos.environ['A'] = '1'\n"
        ),
        "line 5 sets A",
    ),
    "another backend of Keras": (
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n",
        "line 2 sets KERAS_BACKEND",
    ),
    "a method of os.environ stored": (
        "import os\ns = os.environ.setdefault\ns('A', '1')\n",
        "line 2 uses os.environ.setdefault",
    ),
    "os.environ stored in a dict": (
        "import os\nd = {'e': os.environ}\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ behind an or": (
        "import os\ne = None or os.environ\ne['A'] = '1'\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ given as env": (
        "import os\nconf(env=os.environ)\n",
        "line 2 changes os.environ, or passes it on",
    ),
    "os.environ by getattr": ("import os\ngetattr(os, 'environ')['A'] = '1'\n", "line 2 uses os"),
    "load_dotenv by another name": (
        "from dotenv import load_dotenv as l\nl()\n",
        "line 2 uses dotenv.load_dotenv",
    ),
    "dotenv.load_dotenv": ("import dotenv\ndotenv.load_dotenv()\n", "line 2 uses dotenv.load_dotenv"),
    "a function called through globals": (
        "import os\ndef f():\n    os.environ['A'] = '1'\nglobals()['f']()\n",
        "line 4 uses globals, which can run anything",
    ),
    "a method called by a computed name": (
        ("import os\nclass C:\n    def f(self):\n        os.environ['A'] = '1'\ngetattr(C(), name)()\n"),
        "line 5 uses C, which orch does not follow",
    ),
    "operator.methodcaller": (
        (
            "import operator, os\nclass C:\n    def f(self):\n        os.environ['A'] = '1'\n"
            "operator.methodcaller('f')(x)\n"
        ),
        "line 5 uses operator.methodcaller",
    ),
    "a function registered by a decorator": (
        (
            "import os\nR = []\ndef reg(f):\n    R.append(f)\n    return f\n@reg\ndef setup():\n"
            "    os.environ['A'] = '1'\nfor g in R: g()\n"
        ),
        "line 6 uses reg, which orch does not follow",
    ),
    "a logger of absl in a variable": (
        "import logging\nlog = logging.getLogger('absl')\nlog.setLevel(40)\n",
        "line 2 uses logging.getLogger",
    ),
    "builtins.__import__ replaced": (
        "import builtins\ndef f(*a): pass\nbuiltins.__import__ = f\n",
        "line 3 replaces builtins.__import__",
    ),
    "an attribute of sys set by name": ("import sys\nsetattr(sys, 'stderr', x)\n", "line 2 uses sys"),
    "sys.path stored and changed": (
        "import sys\np = sys.path\np[:0] = [x]\n",
        "line 2 changes sys.path, or passes it on",
    ),
    "sys.path stored and made longer": (
        "import sys\np = sys.path\np += [x]\n",
        "line 2 changes sys.path, or passes it on",
    ),
    "sys.settrace": ("import sys\nsys.settrace(f)\n", "line 2 uses sys.settrace"),
    "cProfile": ("import cProfile as c\np = c.Profile()\n", "line 2 uses cProfile.Profile"),
    "sys.path imported and changed": (
        "from sys import path\npath.insert(0, x)\n",
        "line 2 uses sys.path.insert",
    ),
    "sys.path given to a function": (
        "import sys\nprepare(sys.path)\n",
        "line 2 changes sys.path, or passes it on",
    ),
    "sys.modules imported and changed": (
        "from sys import modules as m\nm['x'] = 1\n",
        "line 2 uses sys.modules",
    ),
    "sys.modules by another name of sys": (
        "import sys as s\ns.modules['x'] = 1\n",
        "line 2 uses sys.modules",
    ),
    "logging.basicConfig": ("import logging as l\nl.basicConfig()\n", "line 2 uses logging.basicConfig"),
    "dictConfig": (
        "from logging.config import dictConfig as d\nd({})\n",
        "line 2 uses logging.config.dictConfig",
    ),
    "fileConfig": (
        "import logging.config\nlogging.config.fileConfig('x')\n",
        "line 2 uses logging.config.fileConfig",
    ),
    "setLoggerClass": ("import logging\nlogging.setLoggerClass(C)\n", "line 2 uses logging.setLoggerClass"),
    "captureWarnings": (
        "import logging\nlogging.captureWarnings(True)\n",
        "line 2 uses logging.captureWarnings",
    ),
    "logging.disable": ("import logging\nlogging.disable(50)\n", "line 2 uses logging.disable"),
    "logging.info": ("import logging as l\nl.info('x')\n", "line 2 uses logging.info"),
    "logging.warning by another name": (
        "from logging import warning as w\nw('x')\n",
        "line 2 uses logging.warning",
    ),
    "a handler of the root logger": (
        "import logging\nlogging.getLogger().addHandler(h)\n",
        "line 2 uses logging.getLogger",
    ),
    "the root logger in a variable": (
        "import logging\nr = logging.getLogger()\nr.setLevel(10)\n",
        "line 2 uses logging.getLogger",
    ),
    "logging.root": ("import logging\nlogging.root.addHandler(h)\n", "line 2 uses logging.root.addHandler"),
    "logging.root imported": (
        "from logging import root\nroot.handlers = []\n",
        "line 2 replaces logging.root.handlers",
    ),
    "a handler of a logger of TensorFlow": (
        "import logging\nlogging.getLogger('tensorflow').addHandler(h)\n",
        "line 2 uses logging.getLogger",
    ),
    "the logger of absl": (
        "from absl import logging\nlogging.get_absl_logger().addHandler(h)\n",
        "line 2 uses absl.logging.get_absl_logger",
    ),
    "logging.lastResort replaced": (
        "import logging\nlogging.lastResort = None\n",
        "line 2 replaces logging.lastResort",
    ),
    "the handler of absl": (
        "from absl import logging\nlogging.use_absl_handler()\n",
        "line 2 uses absl.logging.use_absl_handler",
    ),
    "warnings made errors": (
        "import warnings\nwarnings.simplefilter('error')\n",
        "line 2 uses warnings.simplefilter",
    ),
    "sys.stderr replaced": ("import sys\nsys.stderr = x\n", "line 2 replaces sys.stderr"),
    "sys.stdout replaced": (
        "import sys\nwith open('x') as sys.stdout:\n    pass\n",
        "line 2 replaces sys.stdout",
    ),
    "stderr redirected": (
        ("import contextlib, io\nwith contextlib.redirect_stderr(io.StringIO()):\n    import numpy\n"),
        "line 2 uses contextlib.redirect_stderr",
    ),
    "a file descriptor redirected": ("import os\nos.dup2(3, 2)\n", "line 2 uses os.dup2"),
    "hydra.main": (
        "import hydra\n@hydra.main(version_base=None)\ndef main(cfg): pass\n",
        "line 2 uses hydra.main",
    ),
    "an attribute by a computed name of a module": (
        "import os\ngetattr(os, name)('A', '1')\n",
        "line 2 uses os",
    ),
    "the environment of another module's os": (
        "import shutil\nshutil.os.environ['A'] = '1'\n",
        "line 2 sets A",
    ),
    "a module from sys.modules": ("import sys\nm = sys.modules[__name__]\n", "line 2 uses sys.modules"),
    "all names of os": ("from os import *\nenviron['A'] = '1'\n", "line 1 imports all names of os"),
    "a path variable that changes": (
        "import sys\np = 'lib'\np = sys.argv[1]\nsys.path.insert(0, p)\n",
        "line 4 uses sys.path.insert",
    ),
    "a variable set in a function called by a class": (
        "import os\ndef f():\n    os.environ['A'] = '1'\nclass C:\n    f()\n",
        "line 5 uses f",
    ),
    "a base class of the script": (
        "class A:\n    def __init_subclass__(cls):\n        pass\nclass B(A):\n    pass\n",
        "line 4 uses A",
    ),
}


@pytest.mark.parametrize(("before", "says"), SPAWNED.values(), ids=SPAWNED)
def test_other_code_prevents_a_fork(tmp_path: Path, before: str, says: str) -> None:
    start = choose(tmp_path, before)
    assert not start.fork
    assert f"t.py {says}" in start.reason
    assert start.reason.endswith("before it imports tensorflow")
    assert (start.modules, start.preload_env) == ((), ())


ENV = "import os\nenv = os.environ\n"
SETUP = "import os\ndef setup():\n    os.environ['A'] = '1'\n"


@pytest.mark.parametrize(
    ("use", "common", "says"),
    [
        ("from common import setup as s\ns()\n", SETUP, "t.py line 2 uses common.setup"),
        ("import common as c\nc.setup()\n", SETUP, "t.py line 2 uses common.setup"),
        ("import common\ngetattr(common, 'setup')()\n", SETUP, "t.py line 2 uses common"),
        ("import common\nvars(common)[x]()\n", SETUP, "t.py line 2 uses common"),
        ("from common import *\nsetup()\n", SETUP, "t.py line 1 imports all names of common"),
        ("from common import *\nenv['A'] = str(1)\n", ENV, "common.py line 2 changes"),
        ("import common\ncommon.env['A'] = str(1)\n", ENV, "common.py line 2 changes"),
        ("from common import environ as e\ne['A'] = str(1)\n", "from os import environ\n", "line 2 uses common."),
        ("import common\ncommon.environ['A'] = str(1)\n", "from os import environ\n", "t.py line 2 sets A"),
    ],
)  # fmt: skip
def test_use_of_a_local_modules_name_prevents_a_fork(
    tmp_path: Path, use: str, common: str, says: str
) -> None:
    (tmp_path / "common.py").write_text(common)
    start = choose(tmp_path, use)
    assert not start.fork
    assert says in start.reason


@pytest.mark.parametrize(
    "use",
    [
        "import config\nprint(config.SIZE)\n",
        "from config import SIZE as s\nsize = 2 * s\n",
        "import config as c\nc.parser.parse_args()\n",
    ],
)
def test_variables_of_local_modules_may_be_read(tmp_path: Path, use: str) -> None:
    config = "import argparse\nSIZE = 3\nparser = argparse.ArgumentParser()\ndef f(): pass\n"
    (tmp_path / "config.py").write_text(config)
    start = choose(tmp_path, use)
    assert start.fork, start.reason


@pytest.mark.parametrize(
    "use", ["x = config.f\n", "config.__dict__['f']()\n", "config.sub.f()\n", "x = config\n"]
)
def test_indirect_access_to_a_local_module_prevents_a_fork(tmp_path: Path, use: str) -> None:
    for name in ("config/__init__.py", "config/sub.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import os\ndef f():\n    os.environ['A'] = '1'\n")
    assert not choose(tmp_path, f"import config, config.sub\n{use}").fork
