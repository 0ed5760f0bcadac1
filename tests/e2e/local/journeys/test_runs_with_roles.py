"""Roles with the installed command: which task ends the run, which are stopped, and what each sees."""

from __future__ import annotations

import json
import os
import signal

from orch_command import Orch, Started
from waiting import until, until_gone

# The chief and the evaluator end when their files exist; all others serve until they are stopped.
_SCRIPT = """
import os, pathlib, sys, time
role = os.environ["ORCH_TASK"].partition(":")[0]
def report(line):
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), line.encode() + b"\\n")
try:
    print(os.environ.get("WHO", "-"), os.environ["TF_CONFIG"])
    if role == "chief":
        report('{"phase": "training", "epoch": 1, "step": 3, "steps": 9}')
    while role not in ("chief", "evaluator") or not pathlib.Path(f"{role}-may-go").exists():
        time.sleep(0.01)
finally:
    print(role, "ends")
"""
_STOPPED = ("stopped", 143, "stopped by orch")


def _start(orch: Orch, *words: str, tasks: int) -> Started:
    started = orch.start("up", *words, "--", orch.script("job.py", _SCRIPT))
    started.until_out('"task"', tasks)
    return started


def _allow_end(orch: Orch, role: str) -> None:
    orch.script(f"{role}-may-go", "")


def _ends(orch: Orch) -> dict[str, tuple[str, int | None, str]]:
    return {end["task"]: (end["state"], end["exit_code"], end["end"]) for end in orch.result()["tasks"]}


def test_chief_ends_run_servers_are_stopped_and_the_evaluator_is_waited_for(orch: Orch) -> None:
    started = _start(orch, "--workers", "1", "--ps", "2", "--evaluator", tasks=5)
    pids = orch.pids()
    tasks = [task["task"] for task in orch.status()["tasks"]]
    assert tasks == ["chief:0", "worker:0", "ps:0", "ps:1", "evaluator:0"]
    assert orch("logs", "ps:1", "--no-prefix").out.count('"index": 1') == 1
    wrong = orch("logs", "ps:2")
    assert wrong.code == 2 and "has no task ps:2" in wrong.err

    _allow_end(orch, "chief")
    until(lambda: orch.task("chief:0")["state"] == "succeeded")
    # Servers never exit by themselves, and are stopped at the end.
    running = ("worker:0", "ps:0", "ps:1", "evaluator:0")
    assert {orch.task(task)["state"] for task in running} == {"running"}
    refused = orch("kill", "chief:0")
    assert refused.code == 2 and "chief:0 has ended (exit 0)" in refused.err

    _allow_end(orch, "evaluator")
    done = started.finish()
    assert done.code == 0 and done.out.count(" ends\n") == 5
    assert "waiting for evaluator:0 (10m at most)" in done.err
    until_gone(*pids)
    ended = dict.fromkeys(("chief:0", "evaluator:0"), ("succeeded", 0, "done"))
    assert _ends(orch) == ended | dict.fromkeys(("worker:0", "ps:0", "ps:1"), _STOPPED)
    assert orch.result()["outcome"] == "succeeded" and orch.result()["cause"] is None


def test_killed_worker_restarts_at_its_port_and_killed_server_is_the_cause(orch: Orch) -> None:
    started = _start(orch, "--workers", "2", "--ps", "1", tasks=4)
    until(lambda: (orch.task("chief:0")["progress"] or {}).get("step"))
    before = {task["task"]: task for task in orch.status()["tasks"]}
    os.kill(before["worker:1"]["pid"], signal.SIGKILL)
    started.until_out("worker:1 | ", 2)
    started.until_out('"task"', 5)
    # A task's output may be shown before its start is reported.
    until(lambda: orch.task("worker:1")["restarts"] == 1)
    assert orch.task("worker:1")["address"] == before["worker:1"]["address"]
    assert orch.task("chief:0")["pid"] == before["chief:0"]["pid"]
    lines = [line for line in started.out.splitlines() if "worker:1 | -" in line]
    first, second = (json.loads(line.partition("- ")[2]) for line in lines)
    assert first == second
    assert orch("kill", "ps:0").code == 0
    done = started.finish()
    result = orch.result()
    assert (done.code, result["cause"]["task"], result["first_failure"]["task"]) == (137, "ps:0", "ps:0")
    assert result["cause"]["text"] == "SIGKILL, sent by `orch kill`"


def test_roles_of_orch_toml_and_an_evaluator_that_takes_too_long(orch: Orch) -> None:
    orch.script("job.py", _SCRIPT)
    orch.script(
        "orch.toml",
        """
command = ["job.py"]
workers = 1
evaluator-timeout = "100ms"
[roles.ps]
env = { WHO = "servant" }
[roles.evaluator]
command = ["sh", "-c", "echo $ORCH_TASK looks at $TF_CONFIG; exec sleep 600"]
""",
    )
    started = orch.start("up")
    started.until_out('"task"', 4)
    _allow_end(orch, "chief")
    done = started.finish()
    assert done.code == 0 and "(--evaluator-timeout): it is stopped" in done.err
    assert orch.task("evaluator:0")["state"] == "stopped"
    lines = (line.partition(" | ") for line in done.out.splitlines() if "{" in line)
    text = {task: words for task, _, words in lines}
    assert text["ps:0"].startswith("servant {") and text["chief:0"].startswith("- {")
    assert text["evaluator:0"].startswith("evaluator:0 looks at {")
    assert [name for name in text if '"evaluator": [' in text[name]] == ["evaluator:0"]
