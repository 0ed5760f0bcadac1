"""Roles with the installed command, without TensorFlow: which task ends the run, which are stopped, what each sees."""

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
    print(os.environ.get("WHO", "-"), os.environ["TF_CONFIG"], flush=True)
    if role == "chief":
        report('{"phase": "training", "epoch": 1, "step": 3, "steps": 9}')
    while role not in ("chief", "evaluator") or not pathlib.Path(f"{role}-may-go").exists():
        time.sleep(0.01)
finally:
    print(role, "ends", flush=True)
"""


def _start(orch: Orch, *words: str, tasks: int) -> Started:
    started = orch.start("up", *words, "--", orch.script("job.py", _SCRIPT))
    started.until_out('"task"', tasks)
    return started


def _allow_end(orch: Orch, role: str) -> None:
    (orch.directory / f"{role}-may-go").touch()


def _ends(orch: Orch) -> dict[str, tuple[str, int | None, str]]:
    return {end["task"]: (end["state"], end["exit_code"], end["end"]) for end in orch.result()["tasks"]}


def test_chief_ends_run_and_servers_are_stopped(orch: Orch) -> None:
    started = _start(orch, "--workers", "2", "--ps", "1", tasks=4)
    pids = orch.pids()
    _allow_end(orch, "chief")
    done = started.finish()
    assert (done.code, done.out.count(" ends\n")) == (0, 4)
    until_gone(*pids)
    assert _ends(orch) == {"chief:0": ("succeeded", 0, "done")} | dict.fromkeys(
        ("worker:0", "worker:1", "ps:0"), ("stopped", 143, "stopped by orch")
    )
    assert orch.result()["outcome"] == "succeeded" and orch.result()["cause"] is None


def test_killed_worker_restarts_at_its_port_and_killed_server_is_the_cause(orch: Orch) -> None:
    started = _start(orch, "--workers", "2", "--ps", "1", tasks=4)
    until(lambda: (orch.status()["tasks"][0]["progress"] or {}).get("step"))
    before = {task["task"]: task for task in orch.status()["tasks"]}
    os.kill(before["worker:1"]["pid"], signal.SIGKILL)
    started.until_out("worker:1 | ", 2)
    started.until_out('"task"', 5)
    # A task's output may be shown before its start is reported.
    until(lambda: {task["task"]: task["restarts"] for task in orch.status()["tasks"]}["worker:1"] == 1)
    after = {task["task"]: task for task in orch.status()["tasks"]}
    assert (after["worker:1"]["address"], after["worker:1"]["restarts"]) == (before["worker:1"]["address"], 1)
    assert after["chief:0"]["pid"] == before["chief:0"]["pid"]
    configs = [
        json.loads(line.partition("- ")[2]) for line in started.out.splitlines() if "worker:1 | -" in line
    ]
    assert len(configs) == 2 and configs[0] == configs[1]
    assert orch("kill", "ps:0").code == 0
    done = started.finish()
    result = orch.result()
    assert (done.code, result["cause"]["task"], result["first_failure"]["task"]) == (137, "ps:0", "ps:0")


def test_run_waits_for_evaluator_but_not_for_servers(orch: Orch) -> None:
    started = _start(orch, "--workers", "1", "--ps", "1", "--evaluator", tasks=4)
    _allow_end(orch, "chief")
    started.until_out("ps ends")
    started.until_out("worker ends")
    until(lambda: {task["task"]: task["state"] for task in orch.status()["tasks"]}["ps:0"] == "stopped")
    states = {task["task"]: task["state"] for task in orch.status()["tasks"]}
    assert states["evaluator:0"] == "running"
    _allow_end(orch, "evaluator")
    done = started.finish()
    assert done.code == 0 and "waiting for evaluator:0 (10m at most)" in done.err
    assert _ends(orch)["evaluator:0"] == ("succeeded", 0, "done")


def test_evaluator_timeout_stops_evaluator(orch: Orch) -> None:
    words = ("--chief", "separate", "-n", "0", "--evaluator", "--evaluator-timeout", "100ms")
    started = _start(orch, *words, tasks=2)
    _allow_end(orch, "chief")
    done = started.finish()
    assert done.code == 0 and "(--evaluator-timeout): it is stopped" in done.err
    assert _ends(orch)["evaluator:0"] == ("stopped", 143, "stopped by orch")


def test_roles_in_orch_toml(orch: Orch) -> None:
    (orch.directory / "orch.toml").write_text(
        f"""
command = ["{orch.script("job.py", _SCRIPT)}"]
workers = 1
[roles.ps]
env = {{ WHO = "servant" }}
[roles.evaluator]
command = ["sh", "-c", "echo $ORCH_TASK looks at $TF_CONFIG"]
"""
    )
    started = orch.start("up")
    started.until_out("task", 4)
    _allow_end(orch, "chief")
    assert started.finish().code == 0
    text = {
        task: words
        for task, _, words in (line.partition(" | ") for line in started.out.splitlines() if "{" in line)
    }
    assert text["ps:0"].startswith("servant {") and text["chief:0"].startswith("- {")
    assert text["evaluator:0"].startswith("evaluator:0 looks at {")
    assert [name for name in text if '"evaluator": [' in text[name]] == ["evaluator:0"]


def test_verbs_accept_roles(orch: Orch) -> None:
    started = _start(orch, "--workers", "1", "--ps", "2", "--evaluator", tasks=5)
    assert orch("logs", "ps:1", "--no-prefix").out.count('"index": 1') == 1
    tasks = [task["task"] for task in orch.status()["tasks"]]
    assert tasks == ["chief:0", "worker:0", "ps:0", "ps:1", "evaluator:0"]
    wrong = orch("logs", "ps:2")
    assert wrong.code == 2 and "has no task ps:2" in wrong.err
    down = orch("down")
    assert down.code == 0
    assert started.finish().code == 143


def test_fault_hits_named_role(orch: Orch) -> None:
    done = orch(
        "up",
        "--ps",
        "1",
        "--chaos",
        "kill ps:0 at step 1",
        "--",
        orch.script("job.py", _SCRIPT),
        timeout_s=60,
    )
    assert done.code == 137
    assert orch.result()["cause"]["task"] == "ps:0"


def test_unknown_role_starts_nothing(orch: Orch) -> None:
    (orch.directory / "orch.toml").write_text("[roles.pss]\n")
    done = orch("up", "--", "true")
    assert (done.code, orch.run_dirs()) == (2, [])
    assert 'unknown role "pss"; did you mean "ps"?' in done.err
