"""A forked task has what a spawned one has, and nothing else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
from agent_driving import Driver
from waiting import until, until_gone

from worker.wire.messages import Plan, Started

LOOK = """
import decimal, logging.handlers
import ctypes, gc, json, os, resource, signal, sys, threading, warnings
modules = sorted(name for name in sys.modules if not name.startswith(("_orch_bootstrap", "__mp")))
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(json.dumps({
    "modules": modules,
    "env": dict(os.environ),
    "c_env": {name: os.fsdecode(getenv(os.fsencode(name)) or b"none") for name in os.environ},
    "unset": getenv(b"ORCH_PRELOAD") is None and getenv(b"OPENBLAS_NUM_THREADS") is None,
    "shown_env": sorted(open("/proc/self/environ", errors="surrogateescape").read().split("\\0")),
    "cmdline": open("/proc/self/cmdline").read(),
    "comm": open("/proc/self/comm").read(),
    "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) < 3},
    "more fds": len([fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]),
    "progress": os.path.exists(f"/proc/self/fd/{os.environ['ORCH_PROGRESS_FD']}"),
    "inheritable": os.get_inheritable(int(os.environ["ORCH_PROGRESS_FD"])),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs")},
    "handlers": [str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()],
    "limits": [resource.getrlimit(n) for n in range(16)],
    "umask": os.umask(0),
    "nice": os.nice(0),
    "oom": open("/proc/self/oom_score_adj").read(),
    "pdeathsig": (lambda box: ctypes.CDLL(None).prctl(2, ctypes.byref(box)) or box.value)(ctypes.c_int()),
    "streams": [str(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "filters": [str(f) for f in warnings.filters],
    "trace": [sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit()],
    "threads": [str(t.name) for t in threading.enumerate()],
    "path_hooks": len(sys.path_hooks),
    "import": __import__ is __builtins__.__import__ and str(__import__),
}))
"""


def seen(agent: Driver, name: str, fork: bool, program: str = LOOK) -> dict[str, Any]:
    (agent.directory / "look.py").write_text(program)
    agent.run_task(name, ["look.py"], fork, {"ORCH_TASK": "same", "TF_CONFIG": "{}"})
    ending = agent.ending(name)
    assert ending.exit_code == 0, ending
    assert agent.method_of(name) == ("fork" if fork else "spawn"), agent.refusals()
    found: dict[str, Any] = json.loads(ending.text)
    return found


def test_a_forked_task_has_what_a_spawned_one_has(agent: Driver, tmp_path: Path) -> None:
    agent.preload(env={"SHARED": "yes", "ADDED": "ünïcode \udcff", "PYTHONPATH": str(tmp_path)})
    forked, spawned = seen(agent, "a", fork=True), seen(agent, "b", fork=False)
    for each, name in ((forked, "a"), (spawned, "b")):
        number = each["env"].pop("ORCH_PROGRESS_FD")
        assert each["c_env"].pop("ORCH_PROGRESS_FD") == number
        each["fds"] = {fd: target.replace(f"/{name}.log", "/x.log") for fd, target in each["fds"].items()}
        # The variables of the bootstrap contain the task's name.
        each["shown_env"] = [
            word
            for word in each["shown_env"]
            if not word.startswith(("ORCH_BOOTSTRAP=", "ORCH_PROGRESS_FD="))
        ]
    for key in spawned:
        assert forked[key] == spawned[key], key
    assert forked["fds"].keys() == {"0", "1", "2"}
    assert forked["env"]["PYTHONPATH"] == str(tmp_path)


def test_a_task_of_a_cluster_on_several_hosts_is_forked(agent: Driver) -> None:
    """The list of hosts without a proxy is only known after the preloader has started."""
    agent.preload("json", env={"no_proxy": "localhost"})
    agent.link.send(Plan({"worker": ("10.0.0.1:1", "10.0.0.2:2")}))
    show = ["-c", "import os; print(os.environ['no_proxy'])"]
    agent.run_task("a", show, fork=True, role="worker", index=0)
    assert (agent.ending("a").text, agent.method_of("a")) == ("localhost,10.0.0.1,10.0.0.2\n", "fork")


DRAWS = """
import hashlib, logging, multiprocessing, os, random, secrets, tempfile, threading, time, uuid
import numpy as np
print(hashlib.sha256(bytes(multiprocessing.current_process().authkey)).hexdigest())
print(random.random(), np.random.rand(), np.random.default_rng().random(), sep="\\n")
print(secrets.token_hex(), uuid.uuid4(), next(tempfile._get_candidate_names()), sep="\\n")
random.seed(1); np.random.seed(1)
print("fixed", random.random(), np.random.rand(), np.random.default_rng(1).random())
assert threading.main_thread().native_id == os.getpid()
# Both in seconds until now; the process's is taken later, and so only longer when this one is held up in between.
started = time.time() - logging._startTime / (1e9 if isinstance(logging._startTime, int) else 1)
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
began = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
assert started < began + 1, (started, began)
"""


def test_siblings_have_their_own_secrets_and_identities_and_draw_different_numbers(agent: Driver) -> None:
    agent.preload("numpy", "random", "tempfile", "uuid", "multiprocessing", "logging")
    for name in "abc":
        agent.run_task(name, ["-c", DRAWS], fork=name != "c")
    endings = [agent.ending(name) for name in "abc"]
    assert [ending.exit_code for ending in endings] == [0, 0, 0], endings
    assert [agent.method_of(name) for name in "abc"] == ["fork", "fork", "spawn"], agent.refusals()
    texts = [ending.text.splitlines() for ending in endings]
    drawn = [line for text in texts for line in text[:-1]]
    assert len(drawn) == 3 * 7 == len(set(drawn))
    assert texts[0][-1] == texts[1][-1] == texts[2][-1]


def test_numpy_has_as_many_threads_as_in_a_spawned_task(agent: Driver) -> None:
    program = "import os, numpy, json; print(json.dumps({'n': len(os.listdir('/proc/self/task'))}))"
    agent.preload("numpy")
    assert seen(agent, "a", True, program) == seen(agent, "b", False, program)


def test_a_forked_task_dies_with_its_agent(own_agent: Driver) -> None:
    own_agent.preload()
    own_agent.run_task("a", ["-c", "import time; print('up', flush=True); time.sleep(600)"], fork=True)
    own_agent.wait_for_line("a")
    started = own_agent.wait_for(Started)
    preloader = until(
        lambda: [each for each in psutil.Process(own_agent.pid).children() if each.pid != started.pid]
    )
    os.kill(own_agent.pid, signal.SIGKILL)
    until_gone(started.pid, preloader[0].pid)


def test_many_tasks_at_once(agent: Driver) -> None:
    agent.preload()
    for number in range(20):
        agent.run_task(f"t{number}", ["-c", f"import json, sys; sys.exit({number})"], fork=True)
    assert [agent.ending(f"t{number}").exit_code for number in range(20)] == [*range(20)]
    assert {agent.method_of(f"t{number}") for number in range(20)} == {"fork"}


# -- a forked task has its own exit, variables and identity, not those of the preloader

HELD_UP = """
import os, pathlib, time
forks = 0
def hold_up():
    global forks
    forks += 1
    if forks == 2:  # the task; the first was the process between
        pathlib.Path("forked").write_text(str(os.getpid()))
        while not pathlib.Path("go").exists():
            time.sleep(0.005)
os.register_at_fork(after_in_child=hold_up)
"""
LEFT_OPEN = """
import os
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.write(1, b"freed\\n")
def write(text):
    log.write(text)
log = open("log.csv", "w")
write("step,loss")
cycle = Cycle()
import json
"""


def test_task_whose_agent_is_killed_during_the_fork_never_starts(own_agent: Driver, tmp_path: Path) -> None:
    own_agent.preload("held_up", env=own_agent.library(held_up=HELD_UP))
    own_agent.run_task("a", ["-c", "open('began', 'w')"], fork=True)
    forked = int(until(lambda: (tmp_path / "forked").exists() and (tmp_path / "forked").read_text()))
    os.kill(own_agent.pid, signal.SIGKILL)
    until_gone(own_agent.pid)
    (tmp_path / "go").write_text("")
    try:
        until_gone(forked)
    except AssertionError:
        os.kill(forked, signal.SIGKILL)  # its parent is gone
        raise
    assert not (tmp_path / "began").exists()


def test_what_a_script_leaves_open_is_written(agent: Driver, tmp_path: Path) -> None:
    agent.preload()
    assert agent.forked("a", ["-c", LEFT_OPEN]) == "freed\n"
    assert (tmp_path / "log.csv").read_text() == "step,loss"


def test_what_a_preloaded_module_has_printed_is_not_printed_by_tasks(agent: Driver, tmp_path: Path) -> None:
    agent.preload("talks", env=agent.library(talks="print('talking', end='')") | {"PYTHONUNBUFFERED": ""})
    assert agent.forked("a", ["-c", "print('first'); import talks"]) == "first\n"
    assert (tmp_path / "preloader.log").read_text() == "talking"
