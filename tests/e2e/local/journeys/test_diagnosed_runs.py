"""Which task is named as the cause of a failure, from what real processes print, raise and exit with."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_driving import state_letter
from orch_command import Done, Orch
from waiting import until

pytestmark = pytest.mark.timeout(300)

_START = """
import atexit, glob, os, pathlib, signal, sys, time, traceback
task = os.environ["ORCH_TASK"]
index, first = int(task[-1]), os.environ["ORCH_ATTEMPT"] == "1" and os.environ.get("ORCH_RESTARTS", "0") == "0"
run = pathlib.Path(os.environ["ORCH_RUN_DIR"])
def touch(name): open(name, "w").close()
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.005)
def wait_for_exit_of(mark):
    '''Return when the process with the pid in the name of that file is gone, or a zombie.'''
    while not (found := glob.glob(mark + "-*")): pass
    stat = pathlib.Path("/proc", found[0].rpartition("-")[2], "stat")
    try:
        while stat.read_text().rpartition(")")[2].split()[0] not in "ZX": pass
    except OSError:
        pass
def lose_a_peer():
    print('Traceback (most recent call last):\\n  File "t.py", line 1, in <module>\\n'
          "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed", file=sys.stderr)
    sys.exit(1)
def trains():
    report = b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n'
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), report)
def raise_at_stop():
    def handler(*_): raise RuntimeError("shutting down")
    signal.signal(signal.SIGTERM, handler)
    touch("up")
    while True: time.sleep(0.1)
"""
# The case decides how the interpreter ends: without a fault, it runs for ever.
_REST = "\nwhile True: time.sleep(0.1)\n"
_AGAIN = ("--max-restarts", "1")


@dataclass(frozen=True)
class Case:
    """`ends`: exit code, task and kind of the cause, task of the first failure, its exception."""

    script: str
    ends: tuple[int, str | None, str, str | None, str | None]
    options: tuple[str, ...] = ()
    workers: int = 2
    lines: tuple[str, ...] | None = None
    text: str | None = None


_BOOM = "ValueError: boom"
_LOST = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
_CASES = {
    "a task exits slowly after its exception, and its peer before it": Case(
        "if index == 0: wait_for('raised'); lose_a_peer()\n"
        "try: raise ValueError('boom')\nexcept ValueError: traceback.print_exc()\ntouch('raised')",
        (1, "worker:1", "exited", "worker:0", _LOST),
        text=_BOOM,
    ),
    "both raise the same exception, and one has not exited when the other is found": Case(
        "if index == 1: atexit.register(lambda: (touch('raised'), time.sleep(600)))\n"
        "if index == 0: wait_for('raised')\nraise ValueError('boom')",
        (1, "worker:0", "exited", "worker:0", _BOOM),
        text=f"both workers failed: {_BOOM}",
    ),
    "the others exit as soon as the first has, perhaps before it is reaped": Case(
        "if index == 2: touch(f'first-{os.getpid()}'); sys.exit(12)\n"
        "wait_for_exit_of('first'); sys.exit(10 + index)",
        (12, "worker:2", "exited", "worker:2", None),
        workers=3,
    ),
    "a connection to no peer fails, and the stop makes a peer raise": Case(
        "if index == 0: wait_for('up'); raise ConnectionRefusedError('database: Connection refused')\n"
        "raise_at_stop()",
        (1, "worker:0", "exited", "worker:0", "ConnectionRefusedError: database: Connection refused"),
        ("--failure-grace", "10m"),
    ),
    "a peer is lost that raises nothing before the stop": Case(
        "if index == 0: wait_for('up'); lose_a_peer()\nraise_at_stop()",
        (1, "worker:0", "exited", "worker:0", _LOST),
        ("--failure-grace", "10m"),
    ),
    "a file ends too early, after a peer has finished": Case(
        "if index == 1: touch(f'gone-{os.getpid()}'); sys.exit(0)\n"
        "wait_for_exit_of('gone'); raise EOFError('Compressed file ended')",
        (1, "worker:0", "exited", "worker:0", "EOFError: Compressed file ended"),
    ),
    "stderr is closed": Case(
        "sys.stderr.close(); os.close(2); raise ValueError('boom')",
        (1, "worker:0", "exited", "worker:0", _BOOM),
        workers=1,
    ),
    **{
        f"a restarted task fails without the exception of its first start: {policy}": Case(
            "trains()\nif index == 0: time.sleep(600)\nif first: raise ValueError('of the first start')\n"
            "print('once more', flush=True); os._exit(7)",
            (7, "worker:1", "exited", "worker:1", None),
            (*_AGAIN, "--on-failure", policy),
            lines=("once more",),
        )
        for policy in ("restart", "restart-task")
    },
    "a peer was lost in the attempt before": Case(
        "if first and index == 0: print('UNAVAILABLE: Socket closed', flush=True); sys.exit(42)\n"
        "if first: time.sleep(600)\nif index == 1: sys.exit(0)\n"
        "while '\"exit_code\":0' not in (run / 'events.jsonl').read_text(): time.sleep(0.01)\n"
        "print('a wrong setting', flush=True); os._exit(5)",
        (5, "worker:0", "exited", "worker:0", None),
        _AGAIN,
        lines=("a wrong setting",),
    ),
    "a path of orch is taken by a directory": Case(
        "trains()\nif index == 0: time.sleep(600)\n"
        "(run / 'exceptions' / 'worker-1.json').mkdir(parents=True); os._exit(3)",
        (125, None, "limit", None, None),
        ("--on-failure", "restart-task"),
        text="exceptions/worker-1.json: Is a directory",
    ),
}


def _ends(done: Done) -> tuple[Any, ...]:
    cause, first = done.result["cause"], done.result["first_failure"] or {}
    return done.code, cause["task"], cause["kind"], first.get("task"), first.get("exception")


def test_task_that_is_named(orch: Orch) -> None:
    wrong = {}
    for name, case in _CASES.items():
        for mark in orch.directory.iterdir():
            mark.unlink()
        done = orch.run("-q", "-n", str(case.workers), *case.options, script=_START + case.script + _REST)
        first = done.result["first_failure"] or {}
        is_right = (
            _ends(done) == case.ends
            and (case.lines is None or tuple(first["lines"]) == case.lines)
            and (case.text or "") in done.result["cause"]["text"]
        )
        if not is_right:
            wrong[name] = (_ends(done), case.ends, first.get("lines"), done.result["cause"]["text"])
    assert not wrong, wrong


def test_handled_exception_does_not_hide_a_stopped_peer(orch: Orch) -> None:
    """The stopped process is a child of the task's shell, which only waits."""
    script = orch.script(
        "train.py",
        _START + "if index == 0:\n"
        "    try: raise ValueError('tried again')\n"
        "    except ValueError: traceback.print_exc()\n"
        "    for n in range(20): print('step', n, flush=True)\n"
        "    wait_for('go')\n"
        "    print('UNAVAILABLE: Socket closed', file=sys.stderr, flush=True); os.abort()\n"
        "touch(f'below-{os.getpid()}')" + _REST,
    )
    started = orch.start("up", "-n", "2", "--", "sh", "-c", f"{sys.executable} {script}; exit $?")
    found = until(lambda: [*orch.directory.glob("below-*")])
    below = int(found[0].name.partition("-")[2])
    assert below not in orch.pids()
    os.kill(below, signal.SIGSTOP)
    until(lambda: state_letter(below) == "T")
    (orch.directory / "go").touch()
    started.finish()
    result = orch.result()
    assert (result["cause"]["task"], result["cause"]["kind"]) == ("worker:1", "stopped")
    assert (result["first_failure"]["task"], result["first_failure"]["exception"]) == ("worker:0", None)


def test_truncated_log_belongs_to_the_current_process(orch: Orch) -> None:
    script = "if first: sys.exit(print('x' * 20000, flush=True) or 42)\nos.ftruncate(1, 0)\nraise ValueError('boom')"
    orch.script("cuts.py", _START + script)
    # -I keeps the bootstrap out, so that only the log can be read.
    done = orch("-v", "up", *_AGAIN, "--", sys.executable, "-I", "cuts.py")
    assert done.code == 1 and "keep orch's code out of the script's process" in done.err
    failure = orch.result()["first_failure"]
    assert (failure["exception"], failure["exception_file"]) == (_BOOM, None)
    assert failure["lines"][0] == "Traceback (most recent call last):"


def test_failed_start_is_ordered_after_exits_of_earlier_attempts(orch: Orch) -> None:
    """The program removes its own file once both tasks have started."""
    program = orch.directory / "program"
    program.write_text(
        '#!/bin/sh\nif [ "$ORCH_TASK" = worker:1 ]; then touch there; exec sleep 600; fi\n'
        'until [ -e there ]; do sleep 0.01; done\nrm "$0"; exit 42\n'
    )
    program.chmod(0o700)
    assert orch("up", "-q", "-n", "2", *_AGAIN, "--", "./program").code == 127
    exits = {event["order"]: event["exit"]["start_error"] is not None for event in orch.events("task_exited")}
    assert exits == {0: False, 1: False, 2: True, 3: True}
    assert orch.result()["first_failure"]["task"] == "worker:0"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_whole_exception_is_in_a_file(orch: Orch, start: str) -> None:
    """Also where each task is a fork of the preloader, which imports the module once."""
    options = ("--preload", "json", *(("--start", "spawn") if start == "spawn" else ()))
    script = (
        "import json\ntry: {}['missing']\nexcept KeyError as error: raise RuntimeError('no table') from error"
    )
    orch.script("fail.py", script)
    done = orch("-v", "up", *options, "--", "fail.py")
    assert done.code == 1 and orch.methods() == {start}
    said = "orch: preloaded json in" if start == "fork" else "orch: not preloaded: --start spawn asks for it"
    assert said in done.err
    assert [event["modules"] for event in orch.preloads()] == [["json"]] * (start == "fork")
    first = orch.result()["first_failure"]
    assert first["exception"] == "RuntimeError: no table"
    whole = Path(first["exception_file"])
    assert whole.parent == orch.run_dir() / "exceptions" and f"full traceback {whole}" in done.err
    text = whole.read_text()
    assert text.index("KeyError: 'missing'") < text.index("RuntimeError: no table")
    assert "bootstrap" not in text and "preloader" not in text
    assert {path.stat().st_mode & 0o777 for path in whole.parent.iterdir()} == {0o600}
