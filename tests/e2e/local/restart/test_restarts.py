"""Which runs are restarted, from where they continue, and how each verb reports it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from orch_command import Orch
from waiting import until

from orchestrator.client import api

pytestmark = pytest.mark.timeout(300)

# Looks like a training to orch: two workers in step, ten steps an epoch, a checkpoint after each epoch. The second
# worker is killed in the third epoch of the first attempt. They wait until orch has written their first progress,
# because orch may merge progress that is reported soon after it.
TRAINER = """
import json, os, pathlib, signal, sys, time

rank, attempt = int(os.environ["ORCH_TASK"][-1]), int(os.environ["ORCH_ATTEMPT"])
here = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"])
here.mkdir(parents=True, exist_ok=True)
events = pathlib.Path(os.environ["ORCH_RUN_DIR"], "events.jsonl")
epochs, steps = 5, 10
done = len(list(here.glob("epoch-*")))
print(f"attempt {attempt} from epoch {done + 1}", flush=True)


def tell(**facts):
    line = json.dumps({"phase": "training", "epochs": epochs, "steps": steps, **facts})
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), line.encode() + b"\\n")


def meet(name):
    (here / f"{name}-{rank}").touch()
    while not (here / f"{name}-{1 - rank}").exists():
        time.sleep(0.005)


tell(epoch=done + 1, step=0)
while '"task_progressed"' not in events.read_text().rpartition('"attempt_planned"')[2]:
    time.sleep(0.005)
meet(f"begin-{attempt}")
for epoch in range(done + 1, epochs + 1):
    for step in range(1, steps + 1):
        tell(epoch=epoch, step=step)
        if (attempt, rank, epoch, step) == (1, 1, 3, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        meet(f"step-{attempt}-{epoch}-{step}")
    if rank == 0:
        (here / f"epoch-{epoch}").touch()
    meet(f"end-{attempt}-{epoch}")
"""
# Asks for a restart each time.
PREEMPTED = """
import os
print("attempt", os.environ["ORCH_ATTEMPT"], flush=True)
raise SystemExit(42)
"""
# Prints its attempt and pid, and sleeps.
PATIENT = """
import os, signal, time
print("attempt", os.environ["ORCH_ATTEMPT"], "pid", os.getpid(), flush=True)
time.sleep(600)
"""
# worker:1 is killed once; both tasks work until it is back.
COMPANION = """
import os, pathlib, signal, time

rank = int(os.environ["ORCH_TASK"][-1])
os.write(int(os.environ["ORCH_PROGRESS_FD"]), b'{"phase": "training", "epoch": 1, "steps": 9, "step": 1}\\n')
died = pathlib.Path("died")
if rank == 1 and not died.exists():
    died.touch()
    os.kill(os.getpid(), signal.SIGKILL)
back = pathlib.Path("back")
if rank == 1:
    back.touch()
while not back.exists():
    time.sleep(0.02)
"""


def up(script: str, *options: str, workers: int = 2) -> list[str]:
    return ["up", "-n", str(workers), *options, "--", sys.executable, script]


def test_killed_worker_restarts_from_the_last_checkpoint(orch: Orch) -> None:
    script = orch.script("trainer.py", TRAINER)
    done = orch(*up(script, "--on-failure", "restart"))
    assert done.code == 0, done.out + done.err

    result = orch.result()
    assert (result["outcome"], result["attempts"], result["cause"]) == ("succeeded", 2, None)
    (first,) = result["history"]
    assert (first["attempt"], first["exit_code"], first["first_failure"]["task"]) == (1, 137, "worker:1")
    assert (first["cause"]["task"], first["cause"]["kind"]) == ("worker:1", "exited")
    # Two epochs were saved; four steps of the third are lost.
    assert (first["position"], first["resumed_at"], first["steps_lost"]) == (24, 20, 4)
    assert first["recovery_s"] > 0

    assert "attempt 2 of 4 in 1.0s" in done.err
    assert "orch: attempt 2 resumed at step 20 (4 lost)" in done.err
    assert " in 2 attempts" in done.err
    assert "attempt        1, at step 24: worker:1: SIGKILL" in done.err


def test_every_verb_distinguishes_attempts(orch: Orch) -> None:
    script = orch.script("trainer.py", TRAINER)
    assert orch(*up(script, "--on-failure", "restart")).code == 0

    first, second = orch.events("attempt_planned")
    assert [first["attempt"], second["attempt"]] == [1, 2]
    addresses = [{task["address"] for task in plan["tasks"]} for plan in (first, second)]
    assert len(addresses[0] | addresses[1]) == 4, "each attempt gets new ports"

    status = orch.status()
    assert status["run"]["attempt"] == 2
    assert [attempt["steps_lost"] for attempt in status["run"]["history"]] == [4]
    assert [task["restarts"] for task in status["tasks"]] == [1, 1]
    assert "attempt 2 of 4  resumed at step 20 (4 lost)" in orch("status").lines[0]
    assert "ATTEMPTS" in orch("ls").lines[0].split()
    (listed,) = orch("ls", "--json").document["runs"]
    assert listed["attempts"] == 2

    both = orch("logs", "--no-prefix", "worker:0")
    assert both.lines == ["attempt 1 from epoch 1", "attempt 2 from epoch 3"]
    assert both.err == "orch: attempt 2\n"
    later = orch("logs", "--no-prefix", "--attempt", "2", "worker:0")
    assert (later.lines, later.err) == (["attempt 2 from epoch 3"], "")
    assert orch("logs", "--raw", "--attempt", "1", "worker:0").out == "attempt 1 from epoch 1\n"
    lines = [json.loads(line) for line in orch("logs", "--json").lines]
    assert {(line["task"], line["attempt"]) for line in lines} == {
        (task, attempt) for task in ("worker:0", "worker:1") for attempt in (1, 2)
    }
    waited = orch("wait", "--json")
    assert (waited.code, waited.document["attempts"]) == (0, 2)


def test_failure_before_the_first_step_is_not_restarted(orch: Orch) -> None:
    # It imports TensorFlow, because any other program counts as working after 5 s.
    script = orch.script("wrong.py", "import sys\nsys.exit('a wrong path')\nimport tensorflow\n")
    done = orch(*up(script, "--on-failure", "restart", "--start", "spawn"))
    assert done.code == 1
    result = orch.result()
    assert (result["attempts"], result["history"]) == (1, [])
    assert result["not_restarted"].startswith("it failed before it reported a training step")
    assert "not restarted  it failed before it reported a training step" in done.err


def test_exit_42_is_restarted_until_the_limit(orch: Orch) -> None:
    done = orch(*up(orch.script("preempted.py", PREEMPTED), "--max-restarts", "1", workers=1))
    assert done.code == 42
    assert done.lines == ["worker:0 | attempt 1", "worker:0 | attempt 2"]
    result = orch.result()
    assert result["attempts"] == 2
    assert [end["exit_code"] for end in result["history"]] == [42]
    assert result["not_restarted"] == "restarted once already"


def test_stop_between_attempts_ends_the_run(orch: Orch) -> None:
    words = up(orch.script("preempted.py", PREEMPTED), "--max-restarts", "9", "-d", workers=1)
    assert orch(*words).code == 0
    status = until(lambda: _with_long_delay(orch))
    assert status["run"]["state"] == "starting"
    assert status["run"]["most_attempts"] == 10
    # In this process: on a busy machine a command may take longer to start than the delay.
    api.down(orch.run_dir().name)
    result = orch.result()
    assert (result["outcome"], result["exit_code"]) == ("stopped", 143)
    assert result["attempts"] == len(result["history"])


def _with_long_delay(orch: Orch) -> dict[str, Any] | None:
    """The status, once the delay to the next attempt is over 6 s; each delay is longer than the last."""
    status: dict[str, Any] = orch.status()
    return status if (status["run"]["restart_in_s"] or 0) > 6 else None


def test_restart_verb_restarts_all_tasks(orch: Orch) -> None:
    started = orch.start(*up(orch.script("patient.py", PATIENT)))
    started.until_out("attempt 1", 2)
    first = orch.pids()
    asked = orch("restart")
    assert asked.code == 0, asked.err
    started.until_out("attempt 2", 2)
    assert not {*first} & {*orch.pids()}
    status = orch.status()
    assert (status["run"]["attempt"], status["run"]["most_attempts"]) == (2, None)
    assert orch("down").code == 0
    ended = started.finish()
    assert ended.code == 143
    assert "restarted on request; attempt 2 now" in ended.err
    assert [end["cause"] for end in orch.result()["history"]] == [None]


def test_restart_task_policy_restarts_one_task(orch: Orch) -> None:
    done = orch(*up(orch.script("companion.py", COMPANION), "--on-failure", "restart-task"))
    assert done.code == 0, done.out + done.err
    assert "orch: worker:1: SIGKILL; restarting this task in 1.0s" in done.err
    result = orch.result()
    assert (result["attempts"], result["history"]) == (1, [])
    assert [task["restarts"] for task in result["tasks"]] == [0, 1]
    starts = [event["task"] for event in orch.events("task_started")]
    assert sorted(starts) == ["worker:0", "worker:1", "worker:1"]
    assert len(orch.events("attempt_planned")) == 1
