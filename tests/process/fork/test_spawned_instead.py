"""Tasks are spawned, and the reason is reported, if a forked one could differ from a spawned one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
from agent_driving import SLEEPER, Driver
from waiting import until, until_gone

from worker.wire.messages import Exited, NotPreloaded, Preloaded, Started

HELLO = ["-c", "print('hello')"]


def reasons_for_spawn(agent: Driver, name: str = "a", *words: str, **order: Any) -> list[str]:
    """Order a forked task, check that it was spawned, and return the reported reasons."""
    agent.run_task(name, words or HELLO, fork=True, **order)
    ending = agent.ending(name)
    assert agent.method_of(name) == "spawn"
    assert ending.text == "hello\n"
    return [message.reason for message in agent.all_of(NotPreloaded) if not message.again]


# A module, and why no task is forked after its import.
UNSUITABLE = {
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()": "1 thread",
    "import os\nopened = open('/dev/zero')": "a file open: /dev/zero",
    "raise ValueError('not today')": "ValueError: not today",
    "import os\nos._exit(3)": "the preloader has ended; see ",
    "raise SystemExit(3)": "SystemExit: 3",
    "import sys\nsys.settrace(lambda *_: None)": "traced",
    "import no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
}


def test_unsuitable_modules_prevent_a_fork(agent: Driver) -> None:
    wrong = []
    for number, (module, reason) in enumerate(UNSUITABLE.items()):
        name = f"unsuitable_{number}"
        agent.preload("json", name, env=agent.library(**{name: module}))
        reasons = reasons_for_spawn(agent, f"t{number}")
        if len(reasons) != 1 or reason not in reasons[0]:
            wrong.append((module, reason, reasons))
        agent.forget(NotPreloaded)
    assert not wrong


def test_task_is_spawned_if_nothing_was_preloaded(own_agent: Driver) -> None:
    assert reasons_for_spawn(own_agent) == ["nothing has been preloaded"]


def test_module_that_the_script_puts_first_is_imported_and_reported(agent: Driver) -> None:
    agent.library(decimal="text = 'hello'")
    agent.preload("decimal", "json")
    program = "import sys; sys.path.insert(0, 'library'); import json, decimal; print(decimal.text)"
    agent.run_task("a", ["-c", program], fork=True)
    lines = agent.ending("a").text.splitlines()
    assert agent.method_of("a") == "fork"
    assert lines[1:] == ["hello"]
    assert lines[0].startswith("orch: library/decimal is another decimal")


def test_task_with_another_environment_or_other_options_is_spawned(agent: Driver) -> None:
    agent.preload("json")
    misfit = "its command line has {!r} where a program is expected"
    assert reasons_for_spawn(agent, "a", *HELLO, env={"TF_DETERMINISTIC_OPS": "1"}) == [
        "its environment has another TF_DETERMINISTIC_OPS"
    ]
    agent.flags = ("-O",)
    assert reasons_for_spawn(agent, "b")[1:] == [misfit.format("-O")]
    agent.flags = ()
    agent.run_task("c", ["-"], fork=True)
    assert (agent.ending("c").text, agent.method_of("c")) == ("", "spawn")
    agent.run_task("d", HELLO, fork=True)
    assert (agent.ending("d").text, agent.method_of("d")) == ("hello\n", "fork")
    assert agent.refusals()[2:] == [misfit.format("-")]
    agent.preload("json", flags=["-O", "-W", "error"])
    assert agent.forked(
        "e", ["-c", "import sys; print(__debug__, sys.warnoptions, sys.orig_argv[1:])"]
    ).startswith("False ['error'] ['-O', '-W', 'error', '-c', ")
    agent.flags = ()
    expected = "it runs under another interpreter, or with other options"
    assert reasons_for_spawn(agent, "f")[-1] == expected


def test_variable_changed_before_the_import_is_reported(agent: Driver) -> None:
    program = (
        "import os\nos.environ['OTHER'] = 'x'\nimport late\n"
        "os.environ['TF_LATE'] = 'no matter to decimal'\nimport decimal\n"
    )
    agent.preload("decimal", env=agent.library(late="import os\nos.environ['OMP_LATE'] = 'x'\n"))
    agent.run_task("a", ["-c", program], fork=True)
    text = agent.ending("a").text
    assert agent.method_of("a") == "fork"
    assert text.startswith("orch: OMP_LATE was changed before decimal was imported")
    assert text.count("\n") == 1 and "--start spawn" in text


def test_preloader_that_never_answers_delays_tasks_but_not_a_stop(agent: Driver) -> None:
    """The next run gets a new preloader."""
    agent.preload("slow", env=agent.library(slow=SLEEPER))
    agent.run_task("a", HELLO, fork=True)
    agent.end(600)
    assert not any(isinstance(message, Started | Exited) for message in agent.messages)
    agent.preload("json")
    assert agent.forked("b", HELLO) == "hello\n"


def test_task_is_not_forked_after_a_stop(agent: Driver, tmp_path: Path) -> None:
    """The preloader is suspended when it gets the order, and continues after the stop."""
    agent.preload()
    agent.wait_until_preloaded()
    (preloader,) = psutil.Process(agent.pid).children()
    preloader.send_signal(signal.SIGSTOP)
    until(lambda: preloader.status() == psutil.STATUS_STOPPED)
    agent.run_task("a", ["-c", "open('began', 'w')"], fork=True)
    agent.end(600)
    preloader.send_signal(signal.SIGCONT)
    assert agent.forked("b", HELLO) == "hello\n"
    assert not (tmp_path / "began").exists()
    assert not any(isinstance(message, Started) and message.task == "a" for message in agent.messages)


def test_preloader_outlives_a_teardown_and_serves_again(agent: Driver) -> None:
    agent.preload("json", env={"ORCH_RUN_ID": "one"})
    agent.run_task("a", ["-c", SLEEPER], fork=True)
    agent.pid_of("a")
    (preloader,) = [each for each in psutil.Process(agent.pid).children() if each.pid != agent.pid_of("a")]
    assert agent.end(0.0).swept == 0
    agent.messages.clear()
    agent.preload("json", env={"ORCH_RUN_ID": "two"})
    assert agent.wait_for(Preloaded).seconds == 0
    program = "import os; print(os.environ['ORCH_RUN_ID'] in open('/proc/self/environ').read())"
    assert agent.forked("b", ["-c", program]) == "True\n"
    assert psutil.Process(agent.pid).children() == [preloader]
    agent.preload("decimal")
    assert agent.forked("c", HELLO) == "hello\n"
    until_gone(preloader.pid)
