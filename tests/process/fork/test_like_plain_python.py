"""A task is as if Python had been called directly, whichever way it was started: each compared with plain Python."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import Forking, run_plain

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

ENV = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
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
    "syntax error": ({"s.py": "print(1)\nif x\n"}, ["s.py"]),
    "syntax error in a command": ({}, ["-c", "if x"]),
    "null byte": ({"s.py": "print(1)\0"}, ["s.py"]),
    "byte order mark": ({"s.py": "\ufeffprint('ü', __file__)"}, ["s.py"]),
    "exception": (
        {
            "s.py": "def f():\n    1/0\ntry:\n    f()\nexcept Exception as e:\n    raise ValueError('x') from e"
        },
        ["s.py"],
    ),
    "exception in a command": ({}, ["-c", "def f(): 1/0\nf()"]),
    "exception in a module": ({"m.py": "def f(): 1/0\nf()"}, ["-m", "m"]),
    "exception group": ({"s.py": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])"}, ["s.py"]),
    "exit with a text": ({"s.py": "import sys; sys.exit('text')"}, ["s.py"]),
    "exit with a code": ({"s.py": "import sys; sys.exit(3)"}, ["s.py"]),
    "exit without a code": ({"s.py": "raise SystemExit"}, ["s.py"]),
    "exit at once": ({"s.py": "import os; print('lost', end=''); os._exit(4)"}, ["s.py"]),
    "abort": ({"s.py": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}, ["s.py"]),
    "interrupted": (
        {"s.py": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass"},
        ["s.py"],
    ),
    "exit handlers": (
        {
            "s.py": "import atexit, sys\natexit.register(print, 'last')\natexit.register(print, 'first')\nsys.exit(5)"
        },
        ["s.py"],
    ),
    "exception in an exit handler": ({"s.py": "import atexit\natexit.register(lambda: 1/0)"}, ["s.py"]),
    "threads are waited for": (
        {
            "s.py": "import threading\ndone = threading.Event()\n"
            "def f():\n    threading.main_thread().join()\n    print('after main')\n"
            "threading.Thread(target=f).start()\nprint('main')"
        },
        ["s.py"],
    ),
    "exception in a thread": (
        {"s.py": "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start()\nt.join()"},
        ["s.py"],
    ),
    "a script's own hook": (
        {"s.py": "import sys, traceback\nsys.excepthook = lambda *e: traceback.print_exception(*e)\n1/0"},
        ["s.py"],
    ),
    "source, stack and warnings": (
        {
            "s.py": "import inspect, traceback, warnings\ndef f():\n    traceback.print_stack()\n"
            "    warnings.warn('w', stacklevel=2)\n    warnings.warn('v', stacklevel=3)\n"
            "    print([x.filename for x in inspect.stack()])\nf()\nprint(inspect.getsource(f))"
        },
        ["s.py"],
    ),
    "pickling of main's classes": (
        {
            "s.py": "import pickle\nclass C: pass\nclass D(C):\n    x = 1\n"
            "print(type(pickle.loads(pickle.dumps(D()))) is D, pickle.dumps(C))"
        },
        ["s.py"],
    ),
    "imported libraries": (
        {
            "s.py": "import sys\nassert 'decimal' not in sys.modules\nimport decimal, json, logging, logging.config\n"
            "print(decimal, json, logging, json.__spec__, json.__loader__, decimal.__spec__)\n"
            "print(decimal.getcontext(), logging.root.handlers, json.decoder.__spec__.loader.get_source('json')[:50])\n"
            "import importlib\nprint(importlib.reload(json), importlib.util.find_spec('decimal'))\n"
            "import inspect; print(inspect.getsource(json.dumps)[:200])"
        },
        ["s.py"],
    ),
}
for kind in ("fork", "spawn", "forkserver"):
    CASES[f"children by {kind}"] = (
        {
            "s.py": "import multiprocessing as m, os, sys, time\nclass C:\n    x = 3\n"
            "def f(q, c):\n    q.put((type(c).__module__, c.x, __name__, sys.argv, sorted(sys.path), os.getppid()))\n"
            "if __name__ == '__main__':\n"
            f"    m.set_start_method({kind!r})\n    q = m.Queue()\n    p = m.Process(target=f, args=(q, C()))\n"
            "    p.start()\n    got = q.get()\n    p.join()\n    print(got[:5], p.exitcode)\n"
            f"    print(got[5] == os.getpid() or {kind!r} == 'forkserver')\n"
            "    q = m.Process(target=time.sleep, args=(9,))\n    q.start(); q.terminate(); q.join()\n"
            "    print(q.exitcode)\n"
        },
        ["s.py"],
    )


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """The preloader of all these commands, each a run of its own: earlier runs must not affect later ones."""
    with Forking(tmp_path_factory.mktemp("shared")) as agent:
        agent.preload(env=ENV)
        agent.wait_until_preloaded()  # it is then no process that a test has left
        yield agent


@pytest.mark.parametrize("case", CASES)
def test_like_plain_python(case: str, shared: Forking) -> None:
    files, words = CASES[case]
    lay_out(shared.directory, files)
    shared.next_run(case)
    shared.preload(env=ENV)
    assert shared.wait_until_preloaded().seconds == 0
    names = {method: f"{case} {method}".replace(" ", "-").replace("/", "-") for method in ("spawn", "fork")}
    for method, name in names.items():
        shared.run_task(name, words, method == "fork")
    expected = run_plain(shared.directory, words, shared.env)
    found = {method: shared.ending(name) for method, name in names.items()}
    for file in {name.partition("/")[0] for name in files}:
        remove(shared.directory / file)
    for method, ending in found.items():
        assert shared.method_of(names[method]) == method, shared.refusals()
        assert ending.text.splitlines() == expected.text.splitlines(), method
        assert ending == expected, method


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
