"""A task is as if Python had been called directly, whichever way it was started: each compared with plain Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_driving import PYTHON, Driver, Ending

PARTS = 3
ANY = "of any type, or none"
ENV = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
FACTS = """
import os, sys
main = sys.modules["__main__"]
print(sys.argv, sys.orig_argv, sys.path, sys.flags, os.getcwd(), sys.executable, sys.prefix)
print(main is sys.modules[__name__], __name__, __file__ if "__file__" in globals() else None)
print(__spec__, type(__loader__), __package__, __builtins__, globals().get("__cached__"), sorted(globals()))
print(globals().get("__annotations__"), __doc__)
frame, depth = sys._getframe(), 0
while frame := frame.f_back:
    depth += 1
    print("called from", frame.f_code.co_filename, frame.f_code.co_name)
print(open("/proc/self/cmdline").read(), open("/proc/self/comm").read())
print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stdout.write_through)
print(sys.stdout is sys.__stdout__, sys.stdin.read(), os.readlink("/proc/self/fd/0"))
"""

# The files and the command.
COMMANDS: dict[str, tuple[dict[str, str], list[str]]] = {
    "script": ({"s.py": FACTS}, ["s.py", "a b", "-x", "ünïcode"]),
    "script in a directory": (
        {"d/s.py": FACTS + "import beside", "d/beside.py": "print(__file__)"},
        ["d/s.py"],
    ),
    "script through dots": ({"d/s.py": FACTS}, ["./d/../d/s.py"]),
    "script without .py": ({"s": FACTS}, ["s"]),
    "command": ({"beside.py": ""}, ["-c", FACTS + "import beside; print(beside.__file__)", "a", "-b"]),
    "command in one word": ({}, ["-cimport sys; print(sys.argv, sys.orig_argv)", "a"]),
    "module": ({"m.py": FACTS}, ["-m", "m", "a", "-m"]),
    "module in a package": ({"p/__init__.py": "print(__name__)", "p/m.py": FACTS}, ["-m", "p.m"]),
    "package": (
        {"p/__init__.py": "", "p/__main__.py": FACTS + "from . import __name__ as n; print(n)"},
        ["-m", "p"],
    ),
    "directory": ({"d/__main__.py": FACTS + "import beside", "d/beside.py": "print(__file__)"}, ["d", "a"]),
    "zip file": (
        {"z.zip/__main__.py": FACTS + "import beside", "z.zip/beside.py": "print(1)"},
        ["z.zip", "a"],
    ),
    "no such file": ({}, ["nowhere.py"]),
    "no such module": ({}, ["-m", "nowhere"]),
    "directory without __main__": ({"d/x.py": ""}, ["d"]),
    "syntax error in a command": ({}, ["-c", "if x"]),
    "exception in a command": ({}, ["-c", "def f(): 1/0\nf()"]),
    "exception in a module": ({"m.py": "def f(): 1/0\nf()"}, ["-m", "m"]),
    "null byte": ({"s.py": "print(1)\0"}, ["s.py"]),
    "byte order mark": ({"s.py": "\ufeffprint('ü', __file__)"}, ["s.py"]),
}
MINE = "import sys\nsys.excepthook = lambda *_: print('mine')\n"
# The text of s.py.
SCRIPTS = {
    "exit with a text": "import sys; sys.exit('text')",
    "exit with a code": "import sys; sys.exit(3)",
    "exit at once": "import os; print('lost', end=''); os._exit(4)",
    "abort": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "exit handlers": (
        "import atexit, sys\natexit.register(print, 'last')\natexit.register(print, 'first')\nsys.exit(5)"
    ),
    "exception in an exit handler": "import atexit\natexit.register(lambda: 1/0)",
    "threads are waited for": (
        "import threading\ndone = threading.Event()\n"
        "def f():\n    threading.main_thread().join()\n    print('after main')\n"
        "threading.Thread(target=f).start()\nprint('main')"
    ),
    "exception in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start()\nt.join()"
    ),
    # C code prints the exception of a callback, and continues.
    "exception that C code has printed": (
        f"import ctypes\n{MINE}def f(): 1/0\n"
        "try:\n  f()\nexcept ZeroDivisionError as e:\n  e.__traceback__ = e.__traceback__.tb_next\n"
        "  sys.last_value = e\nsys.exit(3)"
    ),
    "source, stack and warnings": (
        "import inspect, traceback, warnings\ndef f():\n    traceback.print_stack()\n"
        "    warnings.warn('w', stacklevel=2)\n    warnings.warn('v', stacklevel=3)\n"
        "    print([x.filename for x in inspect.stack()])\nf()\nprint(inspect.getsource(f))"
    ),
    "pickling of main's classes": (
        "import pickle\nclass C: pass\nclass D(C):\n    x = 1\n"
        "print(type(pickle.loads(pickle.dumps(D()))) is D, pickle.dumps(C))"
    ),
    "imported libraries": (
        "import sys\nassert 'decimal' not in sys.modules\nimport decimal, json, logging, logging.config\n"
        "print(decimal, json, logging, json.__spec__, json.__loader__, decimal.__spec__)\n"
        "print(decimal.getcontext(), logging.root.handlers)\nfinder = json.decoder.__spec__.loader\n"
        "print(finder.get_source('json.decoder')[:50])\n"
        "import importlib.util\nprint(importlib.reload(json), importlib.util.find_spec('decimal'))\n"
        "import inspect; print(inspect.getsource(json.dumps)[:200])"
    ),
    "both streams": ("import sys\nfor n in range(500):\n  print(n)\n  print(n, file=sys.stderr)"),
    "child processes": (
        "import os, subprocess, sys\n"
        'look = \'import os, signal, sys; print([m for m in sys.modules if "_orch_b" in m], sys.path, '
        'os.environ.get("ORCH_BOOTSTRAP"), os.environ.get("PYTHONPATH"), int(signal.getsignal(15)))\'\n'
        "subprocess.run([sys.executable, '-c', look], check=True)\n"
        "pid = os.fork()\nif pid == 0:\n  sys.stderr = open(os.devnull, 'w')\n  raise ValueError('a child\\'s')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
}
for kind in ("fork", "spawn", "forkserver"):
    SCRIPTS[f"children by {kind}"] = (
        "import multiprocessing as m, os, sys, time\nclass C:\n    x = 3\n"
        "def f(q, c):\n    q.put((type(c).__module__, c.x, __name__, sys.argv, sorted(sys.path), os.getppid()))\n"
        "if __name__ == '__main__':\n"
        f"    m.set_start_method({kind!r})\n    q = m.Queue()\n    p = m.Process(target=f, args=(q, C()))\n"
        "    p.start()\n    got = q.get()\n    p.join()\n    print(got[:5], p.exitcode)\n"
        f"    print(got[5] == os.getpid() or {kind!r} == 'forkserver')\n"
        "    q = m.Process(target=time.sleep, args=(9,))\n    q.start(); q.terminate(); q.join()\n"
        "    print(q.exitcode)\n"
    )
# The same, and the type of the exception that ends it.
RAISING = {
    "syntax error": ("print(1)\nif x\n", "SyntaxError"),
    "exception": (
        "def f():\n    1/0\ntry:\n    f()\nexcept Exception as e:\n    raise ValueError('x') from e",
        "ValueError",
    ),
    "exception group": ("raise ExceptionGroup('g', [ValueError(1), OSError(2, 'two')])", "ExceptionGroup"),
    "exception without a text": ("class E(Exception):\n  __str__ = None\nraise E", "E"),
    "endless recursion": ("def f(): f()\nf()", "RecursionError"),
    "missing module": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "own hook": (f"{MINE}1/0", "ZeroDivisionError"),
    "own hook that prints": (
        "import sys, traceback\nsys.excepthook = lambda *e: traceback.print_exception(*e)\n1/0",
        "ZeroDivisionError",
    ),
    "own hook, syntax error": (f"{MINE}x = (", "SyntaxError"),
    "own hook that calls the previous one": (
        "import sys\nprevious = sys.excepthook\nsys.excepthook = lambda *a: previous(*a)\n1/0",
        "ZeroDivisionError",
    ),
    "previous hook called by the script": (
        "import sys\nmine = sys.excepthook\nsys.excepthook = lambda *_: print('mine')\n"
        "try:\n  int('x')\nexcept ValueError:\n  mine(*sys.exc_info())\n1/0",
        "ZeroDivisionError",
    ),
    "broken traceback": (
        "import sys, traceback\ntraceback.format_exception = None\n1/0",
        "ZeroDivisionError",
    ),
    "broken json": (
        "import sys\nsys.modules['json'] = sys\nimport os\nos.stat('/none')",
        "FileNotFoundError",
    ),
}
# A module of the script with the name of one whose import is watched.
WATCHED = {
    "that fails": ("1/0", "ZeroDivisionError"),
    "that lacks a module": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "with a syntax error": ("x = (", "SyntaxError"),
    "that looks at itself": (
        "print(type(__loader__).__name__, __spec__, __loader__ is __spec__.loader)",
        None,
    ),
}
FINDS_TWICE = (
    "import importlib.util, sys; print(importlib.util.find_spec('tensorflow')); import tensorflow\n"
    "print(vars(tensorflow.__loader__)); del sys.modules['tensorflow']; import tensorflow"
)
CASES = {
    **{name: (files, words, ANY) for name, (files, words) in COMMANDS.items()},
    **{name: ({"s.py": text}, ["s.py"], None) for name, text in SCRIPTS.items()},
    **{name: ({"s.py": text}, ["s.py"], kind) for name, (text, kind) in RAISING.items()},
    **{
        f"module {name}": ({"tensorflow.py": text, "s.py": FINDS_TWICE}, ["s.py"], kind)
        for name, (text, kind) in WATCHED.items()
    },
}


def lay_out(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        archive, inside, member = name.partition(".zip/")
        path = directory / (f"{archive}.zip" if inside else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if inside:
            with zipfile.ZipFile(path, "a") as file:
                file.writestr(member, text)
        else:
            path.write_bytes(text.encode())


def run_plain(directory: Path, words: Sequence[str]) -> Ending:
    """The same without orch: its own session, stdin empty, output appended to a file."""
    log = directory / "plain.log"
    with log.open("ab") as output:
        done = subprocess.run(
            [PYTHON, *words],
            cwd=directory,
            env={**os.environ, **ENV},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=100,
        )
    code, text = done.returncode, log.read_text()
    log.unlink()
    return Ending.of(None, -code, text) if code < 0 else Ending.of(code, None, text)


@pytest.mark.parametrize("part", range(PARTS))
def test_like_plain_python(agent: Driver, part: int) -> None:
    """The exception that ends a script is also written to a file; a child's or a thread's is not."""
    agent.preload(env=ENV)
    wrong = []
    for number, (case, (files, words, kind)) in enumerate(CASES.items()):
        if number % PARTS != part:
            continue
        lay_out(agent.directory, files)
        names = {f"{number}-{method}": method for method in ("spawn", "fork")}
        for name, method in names.items():
            agent.run_task(name, words, method == "fork")
        expected = run_plain(agent.directory, words)
        for name, method in names.items():
            found, used = agent.ending(name), agent.method_of(name)
            noted = agent.directory / f"{name}.exception"
            raised = json.loads(noted.read_text())["type"] if noted.exists() else None
            if (found, used) != (expected, method) or kind not in (ANY, raised):
                got = f"{case}: {used}, {raised}, {found}"
                wrong.append(f"{got}\n   instead of {method}, {kind}, {expected}")
        for file in {name.partition("/")[0] for name in files}:
            path = agent.directory / file
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not wrong, "\n".join([*wrong, *agent.refusals()])
