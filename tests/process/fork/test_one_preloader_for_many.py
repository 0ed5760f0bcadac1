"""A preloader serves all tasks and runs whose imports would be the same, and no others."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from agent_driving import PYTHON, Driver, signal_and_wait
from waiting import child_with

from worker.wire.messages import NotPreloaded, Preloaded, PreloadOrder

SHIM = """#!/bin/sh
PATH=/of/the/shim:$PATH ADDED=yes; export PATH ADDED
unset TAKEN
exec {python} "$@"
"""
FACTS = """
import json, os, sys
own = sorted(item for item in os.environ.items() if item[0] not in ("ORCH_PROGRESS_FD", "_"))
print(json.dumps([own, sys.argv, sys.orig_argv, sys.path, open("/proc/self/cmdline").read().split("\\0")]))
"""
THREADS = """
import sys, threading, traceback
sys.setswitchinterval(1e-6)
names = sys.argv[1:]
failed = []
together = threading.Barrier(len(names))
def import_it(name):
    together.wait()
    try:
        __import__(name)
    except BaseException:
        failed.append(traceback.format_exc())
threads = [threading.Thread(target=import_it, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*failed)
sys.exit(len(failed))
"""
MODULES = (
    *("json", "decimal", "logging.config", "multiprocessing.pool", "concurrent.futures"),
    *("xml.dom.minidom", "unittest.mock", "asyncio", "email.message", "http.client"),
)


def test_next_test_of_a_suite_uses_the_same_preloader(agent: Driver) -> None:
    """PYTEST_CURRENT_TEST differs, which does not affect imports."""
    agent.preload("json", env={"PYTEST_CURRENT_TEST": "one"})
    agent.wait_until_preloaded()
    agent.messages.clear()
    agent.preload("json", env={"PYTEST_CURRENT_TEST": "two"})
    assert agent.wait_for(Preloaded).seconds == 0
    assert agent.forked("a", ["-c", "import os; print(os.environ['PYTEST_CURRENT_TEST'])"]) == "two\n"


def test_what_an_import_has_read_is_imported_again_after_a_change(agent: Driver, tmp_path: Path) -> None:
    """A module of a package, and a file."""
    package, settings = tmp_path / "library" / "mine", tmp_path / "settings.json"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"from .part import text\nread = open({str(settings)!r}).read()")
    env = {"PYTHONPATH": str(package.parent)}
    part = package / "part.py"
    settings.write_text("old")
    for name, path, text, shown in (
        ("a", part, "text = 'old'", "old old\n"),
        ("b", part, "text = 'edited'", "edited old\n"),
        ("c", settings, "other", "edited other\n"),
    ):
        path.write_text(text)
        agent.forget(NotPreloaded)
        agent.preload("mine", env=env)
        assert agent.forked(name, ["-c", "import mine; print(mine.text, mine.read)"]) == shown
    assert agent.refusals() == [f"{settings} has changed"]


def preload_by(agent: Driver, shim: str, env: dict[str, str]) -> str:
    """Preload with the Python that this script starts. Return its path."""
    path = agent.directory / "python"
    path.write_text(shim)
    path.chmod(0o700)
    log = str(agent.directory / "preloader.log")
    agent.link.send(PreloadOrder((str(path),), env, str(agent.directory), ("json",), {}, log))
    return str(path)


def test_forked_task_has_the_variables_that_a_shim_sets(agent: Driver, tmp_path: Path) -> None:
    """A shim is a script that is used as the Python."""
    env = {"TAKEN": "x", "PYTHONPATH": str(tmp_path)}
    shim = preload_by(agent, SHIM.format(python=PYTHON), env)
    (tmp_path / "facts.py").write_text(FACTS)
    for name in "ab":
        bootstrap = {"task": "same"}
        agent.start(name, [shim, "facts.py", "x"], env, bootstrap=bootstrap, fork=name == "a")
    forked, spawned = agent.ending("a"), agent.ending("b")
    assert agent.method_of("a") == "fork", agent.refusals()
    assert forked == spawned
    assert "/of/the/shim" in forked.text and "TAKEN" not in forked.text


@pytest.mark.parametrize(
    ("shim", "reason"),
    [(f'#!/bin/sh\nexec {PYTHON} "$@" added\n', "adds words"), ("#!/no/such/python\n", "first line names")],
)
def test_interpreter_that_cannot_preload_is_reported(agent: Driver, shim: str, reason: str) -> None:
    preload_by(agent, shim, {})
    assert reason in agent.wait_for(NotPreloaded).reason
    agent.run_task("a", ["-c", "print('hello')"], fork=True)
    assert agent.ending("a").text == "hello\n"


def test_long_error_of_a_preload_is_cut(agent: Driver) -> None:
    agent.preload("bad", env=agent.library(bad="raise ValueError('x' * 1_000_000)"))
    reason = agent.wait_for(NotPreloaded).reason
    assert reason.startswith("ValueError: xxx") and len(reason) < 10_000
    agent.run_task("a", ["-c", "print('hello')"], fork=True)
    assert agent.ending("a").text == "hello\n"


def test_threads_of_a_forked_task_import_preloaded_modules_at_once(agent: Driver) -> None:
    agent.preload(*MODULES)
    for number in range(12):
        agent.run_task(f"t{number}", ["-c", THREADS, *MODULES], fork=True)
        ending = agent.ending(f"t{number}")
        assert ending.exit_code == 0, ending.text
        assert agent.method_of(f"t{number}") == "fork", agent.refusals()


def test_preloader_that_is_killed_between_forks_costs_no_task(agent: Driver) -> None:
    agent.preload("json")
    agent.run_task("first", ["-c", "print('hello')"], fork=True)
    assert agent.ending("first").text == "hello\n" and agent.method_of("first") == "fork"
    preloader = child_with(agent.pid, "preloader")
    assert preloader is not None
    signal_and_wait(preloader, signal.SIGSTOP, "T")
    names = [f"t{number}" for number in range(24)]
    for name in names:
        agent.run_task(name, ["-c", "print('hello')"], fork=True)
    os.kill(preloader, signal.SIGKILL)
    assert {agent.ending(name).text for name in names} == {"hello\n"}
    assert {agent.method_of(name) for name in names} == {"spawn"}


def test_only_variables_that_an_import_may_read_replace_the_preloader(agent: Driver) -> None:
    """An import may read a variable in Python (MINE, by `mine`), or in the C code of a known library (OMP_*)."""
    library = agent.library(mine="import os; os.environ.get('MINE')")
    print_it = ["-c", "import mine, os; print(os.environ['TERM'], os.environ['SITE'])"]
    first = {"TERM": "xterm", "SITE": "a", "SHLVL": "1", **library}
    other = {**first, "TERM": "vt100", "SITE": "b", "SHLVL": "2", "NEW": "1"}
    agent.preload("mine", env=first)
    agent.wait_until_preloaded()
    agent.messages.clear()
    agent.preload("mine", env=other)
    assert agent.wait_for(Preloaded).seconds == 0
    assert agent.forked("a", print_it, env=other) == "vt100 b\n"
    for name in ("MINE", "OMP_NUM_THREADS"):
        agent.run_task(name, print_it, env={name: "1"}, fork=True)
        assert agent.method_of(name) == "spawn"
        assert agent.refusals().pop() == f"its environment has another {name}"
        agent.forget(NotPreloaded)
        agent.preload("mine", env={**other, name: "1"})
        replaced = agent.wait_for(NotPreloaded)
        assert replaced.again and replaced.reason == f"the variable {name} has changed"
        agent.messages.clear()
        agent.preload("mine", env=other)
        agent.wait_until_preloaded()
        agent.messages.clear()


def test_new_module_on_the_search_path_or_beside_the_script(agent: Driver, tmp_path: Path) -> None:
    """Plain Python would import it instead of the preloaded one."""
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second, tmp_path / "mine"):  # without __init__.py, any module has precedence
        directory.mkdir()
    (first / "mine.py").write_text("import decimal; text = 'first'")
    (second / "mine.py").write_text("text = 'second'")
    env = {"PYTHONPATH": f"{first}:{second}"}
    print_it = ["-c", "import mine, decimal; print(mine.text, decimal.__file__)"]
    agent.preload("mine", env=env)
    assert agent.forked("a", print_it).startswith("first /")
    for name, place in (("b", second), ("c", tmp_path)):
        (place / "decimal.py").write_text("")
        agent.run_task(name, print_it, fork=True)
        assert agent.ending(name).text == f"first {place}/decimal.py\n"
        assert agent.refusals().pop() == f"{place} has a module decimal of its own"
