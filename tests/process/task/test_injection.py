"""The bootstrap is loaded into a script's interpreter, and the script cannot see it. See test_like_plain_python.py."""

from __future__ import annotations

import ast
import json
import signal
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


def look(directory: Path, command: list[str | Path], **settings: Any) -> dict[str, Any]:
    task = finished(directory, command, **settings)
    assert task.wait() == 0, task.output
    found: dict[str, Any] = json.loads(task.output.splitlines()[-1])
    return found


COMMANDS: list[tuple[list[str | Path], dict[str, str]]] = [
    (["look.py", "a", "b"], {}),
    (["-m", "look", "a"], {"PYTHONPATH": "there:/nowhere"}),
    (["-c", LOOK], {"PYTHONPATH": ""}),
    (["-W", "error", "-X", "utf8", "-O", "-s", "look.py"], {"PYTHONPATH": "/nowhere:"}),
    (["-P", "look.py"], {"PYTHONWARNINGS": "ignore"}),
]


@pytest.mark.parametrize(("command", "env"), COMMANDS)
def test_a_script_sees_the_same_as_without(
    tmp_path: Path, command: list[str | Path], env: dict[str, str]
) -> None:
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


SITECUSTOMIZE = "import builtins; builtins.customized = __file__, __name__\n"


@pytest.mark.parametrize(
    "text", [SITECUSTOMIZE, "raise ValueError('mine')\n", "import nothing_of_that_name\n"]
)
def test_the_users_sitecustomize_runs_as_without(tmp_path: Path, text: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(text)
    env = {"PYTHONPATH": str(tmp_path / "site")}
    script = "import builtins; print(getattr(builtins, 'customized', None))"
    plain = finished(tmp_path / "plain", ["-c", script], bootstrap=False, env=env)
    injected = finished(tmp_path / "injected", ["-c", script], env=env)
    assert (injected.wait(), injected.output) == (plain.wait(), plain.output)
    assert str(tmp_path) in plain.output or "Error" in plain.output


def test_invalid_options_have_no_effect(tmp_path: Path) -> None:
    env = {"ORCH_BOOTSTRAP": "{", "PYTHONPATH": str(INJECT)}
    task = finished(
        tmp_path, ["-c", "import os; print(os.environ.get('PYTHONPATH'))"], bootstrap=False, env=env
    )
    assert (task.wait(), task.output) == (0, "None\n")


def test_a_part_that_fails_is_logged_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    task = finished(tmp_path, ["-c", "print('ran')"], stacks_file=str(tmp_path / "file" / "stacks.txt"))
    assert task.wait() == 0
    first, second = task.output.splitlines()
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
    env = {"ORCH_BOOTSTRAP": '{"hooks": true, "pythonpath": ""}', "PYTHONPATH": str(tmp_path / "inject")}
    script = "import os, sys; print(repr(os.environ['PYTHONPATH']), [m for m in sys.modules if '_orch' in m])"
    task = finished(tmp_path, ["-c", script], bootstrap=False, env=env)
    assert task.output.splitlines()[0].startswith("'' ["), task.output
    assert "_orch_bootstrap" not in task.output


def test_import_of_a_watched_module_is_reported(tmp_path: Path) -> None:
    script = "try: import tensorflow\nexcept ZeroDivisionError: pass"
    for text, phases in (("1/0", ["importing"]), ("", ["importing", "starting"])):
        (tmp_path / "tensorflow.py").write_text(text)
        assert finished(tmp_path, ["-c", script]).phases == phases
