"""One run that continues from its last checkpoint after a worker was killed, and how each verb reports its attempts."""

from __future__ import annotations

import json
import sys

import pytest
from orch_command import Finished, Orch

pytestmark = pytest.mark.timeout(300)

# Looks like a training to orch: two workers in step, ten steps an epoch, a checkpoint after each epoch. The second
# worker is killed in the third epoch of the first attempt. They wait until orch has written their first progress,
# because orch may merge progress that is reported soon after it.
_TRAINER = """
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


@pytest.fixture(scope="module")
def done(shared_orch: Orch) -> Finished:
    script = shared_orch.script("trainer.py", _TRAINER)
    done = shared_orch("up", "-n", "2", "--on-failure", "restart", "--", sys.executable, script)
    assert done.code == 0, done.out + done.err
    return done


def test_report(done: Finished) -> None:
    assert "attempt 2 of 4 in 1.0s" in done.err
    assert "orch: attempt 2 resumed at step 20 (4 lost)" in done.err
    assert " in 2 attempts" in done.err
    assert "attempt        1, at step 24: worker:1: SIGKILL" in done.err


def test_result(shared_orch: Orch, done: Finished) -> None:
    result = shared_orch.result()
    assert (result["outcome"], result["attempts"], result["cause"]) == ("succeeded", 2, None)
    (first,) = result["history"]
    assert (first["attempt"], first["exit_code"], first["first_failure"]["task"]) == (1, 137, "worker:1")
    assert (first["cause"]["task"], first["cause"]["kind"]) == ("worker:1", "exited")
    # Two epochs were saved; four steps of the third are lost.
    assert (first["position"], first["resumed_at"], first["steps_lost"]) == (24, 20, 4)
    assert first["recovery_s"] > 0
    plans = shared_orch.events("attempt_planned")
    assert [plan["attempt"] for plan in plans] == [1, 2]
    assert len({task["address"] for plan in plans for task in plan["tasks"]}) == 4, "new ports each time"


def test_status_and_ls(shared_orch: Orch, done: Finished) -> None:
    status = shared_orch.status()
    assert status["run"]["attempt"] == 2
    assert [attempt["steps_lost"] for attempt in status["run"]["history"]] == [4]
    assert [task["restarts"] for task in status["tasks"]] == [1, 1]
    assert "attempt 2 of 4  resumed at step 20 (4 lost)" in shared_orch("status").lines[0]
    assert "ATTEMPTS" in shared_orch("ls").lines[0].split()
    (listed,) = shared_orch("ls", "--json").document["runs"]
    assert listed["attempts"] == 2
    waited = shared_orch("wait", "--json")
    assert (waited.code, waited.document["attempts"]) == (0, 2)


def test_logs(shared_orch: Orch, done: Finished) -> None:
    both = shared_orch("logs", "--no-prefix", "worker:0")
    assert both.lines == ["attempt 1 from epoch 1", "attempt 2 from epoch 3"]
    assert both.err == "orch: attempt 2\n"
    later = shared_orch("logs", "--no-prefix", "--attempt", "2", "worker:0")
    assert (later.lines, later.err) == (["attempt 2 from epoch 3"], "")
    assert shared_orch("logs", "--raw", "--attempt", "1", "worker:0").out == "attempt 1 from epoch 1\n"
    lines = [json.loads(line) for line in shared_orch("logs", "--json").lines]
    assert {(line["task"], line["attempt"]) for line in lines} == {
        (task, attempt) for task in ("worker:0", "worker:1") for attempt in (1, 2)
    }


def test_restart_verb_restarts_all_tasks(orch: Orch) -> None:
    started = orch.start("up", "-n", "2", "--", "sh", "-c", "echo attempt $ORCH_ATTEMPT; exec sleep 600")
    started.until_out("attempt 1", 2)
    first = orch.pids()
    assert orch("restart").code == 0
    started.until_out("attempt 2", 2)
    assert not {*first} & {*orch.pids()}
    status = orch.status()
    assert (status["run"]["attempt"], status["run"]["most_attempts"]) == (2, None)
    assert orch("down").code == 0
    ended = started.finish()
    assert ended.code == 143 and "restarted on request; attempt 2 now" in ended.err
