"""The bootstrap is loaded into a script's interpreter, which the script cannot see, and writes its exception."""

from __future__ import annotations

import ast
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tasks import finished

from worker.agent.task_start import INJECT

LOOK = """
import os, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
found = {
    "environ": dict(os.environ), "order": list(os.environ),
    "path": list(sys.path), "argv": list(sys.argv), "orig": sys.orig_argv[1:], "flags": list(sys.flags),
    "modules": list(sys.modules), "cached": list(sys.path_importer_cache),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "main": {
        name: repr(value).split(" at 0x")[0]
        for name, value in vars(sys.modules["__main__"]).items() if name[:2] == "__"
    },
    "meta": [repr(finder)[:40] for finder in sys.meta_path],
    "warnings": sys.warnoptions, "umask": os.umask(0), "cwd": os.getcwd(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "threads": status["Threads"], "blocked": status["SigBlk"], "ignored": status["SigIgn"],
    "caught": int(status["SigCgt"], 16),
}
import warnings, signal, json
found["filters"] = [str(line) for line in warnings.filters]
found["handlers"] = {str(number): str(signal.getsignal(number)).split(" at 0x")[0] for number in signal.valid_signals()}
print(json.dumps(found))
"""
# SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL print stacks; SIGTERM stops in an orderly way; SIGURG writes stacks.
CAUGHT = {11, 8, 6, 7, 4, 15, 23}
STANDARD_MODULES = {"__future__", "_json", "faulthandler", "fcntl", "atexit"}
OWN_MODULES = {"_orch_bootstrap"} | {
    f"_orch_bootstrap.{part}"
    for part in (
        *("after_import", "cluster_facts", "debugging", "exceptions", "install", "messages"),
        *("stacks", "stopping", "task_facts", "tensorflow_hooks", "tf_config"),
    )
}


def look(directory: Path, command: list[str], **settings: Any) -> dict[str, Any]:
    task = finished(directory, command, **settings)
    assert task.wait() == 0, task.output
    found: dict[str, Any] = json.loads(task.output.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["look.py", "a", "b"], {}),
        (["-m", "look", "a"], {"PYTHONPATH": "there:/nowhere"}),
        (["-c", LOOK], {"PYTHONPATH": ""}),
        (["-W", "error", "-X", "utf8", "-O", "-s", "look.py"], {"PYTHONPATH": "/nowhere:"}),
        (["-P", "look.py"], {"PYTHONWARNINGS": "ignore"}),
    ],
)
def test_a_script_sees_the_same_as_without(tmp_path: Path, command: list[str], env: dict[str, str]) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    plain, injected = (look(tmp_path, command, bootstrap=which, env=env) for which in (False, True))
    for seen in (plain, injected):
        # The number of the progress pipe differs.
        seen["fds"].remove(int(seen["environ"].pop("ORCH_PROGRESS_FD")))
    assert set(injected.pop("modules")) - set(plain.pop("modules")) - STANDARD_MODULES == OWN_MODULES
    assert set(injected.pop("fds")) - set(plain.pop("fds")) == {200}
    before, after = plain.pop("caught"), injected.pop("caught")
    assert {number for number in range(1, 65) if (before ^ after) >> (number - 1) & 1} == CAUGHT
    assert injected["handlers"].pop("15") == "<function _stop"
    assert plain["handlers"].pop("15") == str(int(signal.SIG_DFL))
    # The finder that waits for an import of tensorflow.
    assert injected["meta"].pop(0).startswith("<_orch_bootstrap.after_import._Watcher")
    assert set(injected.pop("cached")) - set(plain.pop("cached")) <= {
        str(Path(__file__).parents[3] / "worker/bootstrap")
    }
    assert injected == plain


def test_the_users_sitecustomize_runs_as_without(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    env = {"PYTHONPATH": str(tmp_path / "site")}
    script = "import builtins; print(getattr(builtins, 'customized', None))"
    customizes = "import builtins; builtins.customized = __file__, __name__\n"
    for text in (customizes, "raise ValueError('mine')\n", "import nothing_of_that_name\n"):
        (tmp_path / "site" / "sitecustomize.py").write_text(text)
        plain = finished(tmp_path, ["-c", script], bootstrap=False, env=env)
        expected = (plain.wait(), plain.output)
        assert str(tmp_path) in plain.output or "Error" in plain.output
        injected = finished(tmp_path, ["-c", script], env=env)
        assert (injected.wait(), injected.output) == expected


def test_invalid_options_have_no_effect(tmp_path: Path) -> None:
    env = {"ORCH_BOOTSTRAP": "{", "PYTHONPATH": str(INJECT)}
    script = "import os; print(os.environ.get('PYTHONPATH'))"
    task = finished(tmp_path, ["-c", script], bootstrap=False, env=env)
    assert (task.wait(), task.output) == (0, "None\n")


def test_a_part_that_fails_is_logged_in_one_line(tmp_path: Path) -> None:
    """An exception that cannot be written is printed."""
    files = {name: str(tmp_path / "worker-0.log" / name) for name in ("stacks_file", "exception_file")}
    task = finished(tmp_path, ["-c", "print('ran')\n1/0"], **files)
    assert task.wait() == 1 and "ZeroDivisionError" in task.output
    first, second, *_ = task.output.splitlines()
    assert first.startswith("orch: writing stacks on request is off in this task: ")
    assert second == "ran"


def test_an_old_python_gets_no_bootstrap(tmp_path: Path) -> None:
    """Any interpreter may run the injected file, so its syntax must be valid in all of them."""
    text = (INJECT / "sitecustomize.py").read_text()
    ast.parse(text, feature_version=(3, 4))
    pretended = text.replace("sys.version_info < (3, 11)", "True")
    assert pretended != text
    (tmp_path / "inject").mkdir()
    (tmp_path / "inject" / "sitecustomize.py").write_text(pretended)
    env = {"ORCH_BOOTSTRAP": '{"pythonpath": ""}', "PYTHONPATH": str(tmp_path / "inject")}
    script = "import os, sys; print(repr(os.environ['PYTHONPATH']), [m for m in sys.modules if '_orch' in m])"
    task = finished(tmp_path, ["-c", script], bootstrap=False, env=env)
    assert task.output.splitlines()[0].startswith("'' ["), task.output
    assert "_orch_bootstrap" not in task.output


def test_import_of_a_watched_module_is_reported(tmp_path: Path) -> None:
    script = "try: import tensorflow\nexcept ZeroDivisionError: pass"
    for text, phases in (("1/0", ["importing"]), ("", ["importing", "starting"])):
        (tmp_path / "tensorflow.py").write_text(text)
        assert finished(tmp_path, ["-c", script]).phases == phases


# -- an exception that ends a script is written to a file; test_like_plain_python.py has what is printed

CHAINED = """
class Broken(Exception):
    pass

def read():
    return {}["néeded \\U0001f600"]

try:
    read()
except KeyError as error:
    raise Broken('a "quoted"\\nmessage') from error
"""


def test_the_whole_exception_with_its_causes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHAINED)
    expected = finished(tmp_path, ["train.py"], bootstrap=False).output
    # Files beside the script do not replace modules of the bootstrap.
    for name in ("traceback", "json", "linecache", "signal", "threading"):
        (tmp_path / f"{name}.py").write_text("print('mine')")
    task = finished(tmp_path, ["train.py"])
    assert (task.wait(), task.output) == (1, expected)
    found = task.exception
    assert 0 < found.pop("mono") < time.monotonic()
    at = f"{tmp_path / 'train.py'}:11"
    assert found == {"type": "Broken", "message": 'a "quoted"\nmessage', "text": task.output, "at": at}
    assert "KeyError: 'néeded \U0001f600'" in found["text"] and "direct cause" in found["text"]
    assert task.exception_file.stat().st_mode & 0o777 == 0o600
    assert task.exception_file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in task.exception_file.parent.iterdir()] == ["worker-0.txt"]


def test_frames_of_the_bootstrap_are_not_printed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "file = 'bootstrap/after_import.py'\n"
        "hooks = next(m for m in sys.modules.values() if (getattr(m, '__file__', 0) or '').endswith(file))\n"
        "def mine(module): 1/0\n"
        "try: hooks.after_import('sys', mine)\n"
        "except ZeroDivisionError as error: raise ValueError('two') from error"
    )
    (tmp_path / "train.py").write_text(script)
    task = finished(tmp_path, ["train.py"])
    assert task.wait() == 1
    assert "line 4, in mine" in task.output and "after_import.py" not in task.output
    # The file is for a report to orch's authors, too.
    assert "bootstrap/after_import.py" in task.exception["text"]


IN_THREADS = (
    "import threading\nfor n in (1, 2):\n  t = threading.Thread(target=lambda: n/0); t.start(); t.join()\n"
)


def test_long_exception_loses_its_middle(tmp_path: Path) -> None:
    """It is written, too, if the script has an excepthook of its own."""
    raises = "import sys\nsys.excepthook = lambda *_: print('mine')\nraise ValueError('a' * 300_000 + 'end')"
    task = finished(tmp_path, ["-c", raises])
    found = task.exception
    assert found["type"] == "ValueError" and len(task.exception_file.read_bytes()) < 100_000
    assert "characters left out" in found["message"] and found["text"].endswith("aend\n")


def test_exceptions_of_threads_go_into_another_file(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", IN_THREADS])
    assert task.wait() == 0
    assert not task.exception_file.exists()
    noted = task.exception_file.with_name("worker-0.txt.threads").read_text().splitlines()
    assert [json.loads(line)["type"] for line in noted] == ["ZeroDivisionError"] * 2
    assert task.output.count("Exception in thread") == 2


def test_nothing_is_written_into_a_directory_that_replaced_that_of_the_run(tmp_path: Path) -> None:
    task = finished(tmp_path, ["-c", f"{IN_THREADS}print('ran')\n1/0"], run_directory=[0, 1])
    assert task.wait() == 1
    assert "writing stacks on request is off in this task: OSError: " in task.output
    assert "ran\n" in task.output and "ZeroDivisionError" in task.output
    assert [*(tmp_path / "run").iterdir()] == []
    place = (tmp_path / "run").stat()
    task = finished(tmp_path, ["-c", f"{IN_THREADS}1/0"], run_directory=[place.st_dev, place.st_ino])
    written = sorted(path.parent.name for path in (tmp_path / "run").rglob("*.txt*"))
    assert (task.exception["type"], written) == ("ZeroDivisionError", ["exceptions", "exceptions", "stacks"])


# -- TF_CONFIG is kept as orch has set it, whatever the script does to it


ORCHS = json.dumps({"cluster": {"worker": ["127.0.0.1:4001"]}, "task": {"type": "worker", "index": 0}})
# Each change is line 3 of a script, in a forked child of the task.
SCRIPT = """
import json, os, subprocess, sys

def look():
    seen = [os.environ["TF_CONFIG"], os.getenv("TF_CONFIG"), dict(os.environ)["TF_CONFIG"]]
    seen += [os.environb[b"TF_CONFIG"].decode()]
    seen += [subprocess.check_output(["printenv", "TF_CONFIG"], text=True).strip()]
    seen += [os.popen("printenv TF_CONFIG").read().strip()]
    print("seen", set(seen) == {ORCHS}, flush=True)

for code in CODES:
    print("begin", flush=True)
    if not os.fork():
        exec(compile(f"import json, os\\n\\n{code}", "train.py", "exec"), {})
        look()
        os._exit(0)
    os.wait()
"""
CHANGES = {
    "an assignment": "os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['localhost:12345']}})",
    "an assignment of bytes": "os.environb[b'TF_CONFIG'] = b'{}'",
    "an update": "os.environ.update({'TF_CONFIG': '{}', 'A': '1'})",
    "an update by a keyword": "os.environ.update(TF_CONFIG='{}')",
    "a merge": "os.environ |= {'TF_CONFIG': '{}'}",
    "a deletion": "del os.environ['TF_CONFIG']",
    "a removal": "assert os.environ.pop('TF_CONFIG', None) == os.environ['TF_CONFIG']",
    "a removal of everything": "path = os.environ['PATH']; os.environ.clear(); os.environ['PATH'] = path",
    "putenv": "os.putenv('TF_CONFIG', '{}')",
    "unsetenv": "os.unsetenv(b'TF_CONFIG')",
    # Only the first change is reported.
    "several": "os.putenv('TF_CONFIG', '{}'); os.unsetenv(b'TF_CONFIG')\ndel os.environ['TF_CONFIG']",
}
OTHER_USES = [
    "os.environ.setdefault('TF_CONFIG', '{}')",
    "os.environ['TF_CONFIG'] = os.environ['TF_CONFIG']",
    "os.environ['A'] = '1'; os.putenv('B', '2'); assert os.environ.pop('A') == '1'; os.environ.pop('C', None)",
    "env = dict(os.environ); env['TF_CONFIG'] = '{}'; env.clear()",
    "kept = dict(os.environ)\nwhile len(os.environ) > 1: os.environ.popitem()\nos.environ.update(kept)",
]


def outputs(directory: Path, *codes: str, keep: bool = True) -> Iterator[list[str]]:
    """Run each code as a script. Yield the lines that each has written."""
    directory.mkdir(exist_ok=True)
    script = SCRIPT.replace("ORCHS", repr(ORCHS)).replace("CODES", repr(codes))
    (directory / "train.py").write_text(script)
    task = finished(directory, ["train.py"], env={"TF_CONFIG": ORCHS}, keep_tf_config=keep)
    assert task.wait() == 0, task.output
    nothing, *found = task.output.split("begin\n")
    assert (nothing, len(found)) == ("", len(codes)), task.output
    return (text.splitlines() for text in found)


def test_a_change_alone_is_reported_with_its_line_and_has_no_effect(tmp_path: Path) -> None:
    wrong = []
    for change, lines in zip(CHANGES, outputs(tmp_path, *CHANGES.values()), strict=True):
        verb = "removes" if any(word in change for word in ("deletion", "removal", "unsetenv")) else "sets"
        said = f"orch: train.py line 3 {verb} TF_CONFIG; the task keeps the one that orch made"
        if len(lines) != 2 or not lines[0].startswith(said) or lines[1] != "seen True":
            wrong.append((change, lines))
    found = zip(OTHER_USES, outputs(tmp_path, *OTHER_USES), strict=True)
    wrong += [(use, lines) for use, lines in found if lines != ["seen True"]]
    assert not wrong


def test_the_scripts_own_tf_config_has_effect_if_requested(tmp_path: Path) -> None:
    assert list(outputs(tmp_path, CHANGES["an assignment"], keep=False)) == [["seen False"]]
