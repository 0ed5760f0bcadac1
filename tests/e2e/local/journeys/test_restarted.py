"""One run whose first attempt --chaos ended: how each verb and the Python API report its attempts and its history."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forks import ROOT
from orch_command import Done, Finished, Orch
from waiting import PATIENCE_S, until

import orchestrator

# Two workers in step, ten steps an epoch, a checkpoint after each. In the first attempt worker:1 waits at step 24 to be
# killed. Both end when the file `go` exists.
_TRAIN = """
import json, os, pathlib, time
rank, attempt = int(os.environ["ORCH_TASK"][-1]), int(os.environ["ORCH_ATTEMPT"])
here = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"])
done = len(list(here.glob("epoch-*")))
print(f"attempt {attempt} from epoch {done + 1}", flush=True)

def meet(name):
    (here / f"{name}-{rank}").touch()
    while not (here / f"{name}-{1 - rank}").exists():
        time.sleep(0.005)

meet(f"begin-{attempt}")
for epoch in range(done + 1, 6):
    for step in range(1, 11):
        said = {"phase": "training", "epoch": epoch, "epochs": 5, "step": step, "steps": 10, "start_step": 10 * done,
                "loss": float("nan") if step == 2 else 1 / step, "metrics": {"share": step / 10}, "at_once": step == 4}
        os.write(int(os.environ["ORCH_PROGRESS_FD"]), json.dumps(said).encode() + b"\\n")
        if (attempt, rank, epoch, step) == (1, 1, 3, 4):
            time.sleep(600)
        meet(f"step-{attempt}-{epoch}-{step}")
    if rank == 0:
        (here / f"epoch-{epoch}").touch()
    meet(f"end-{attempt}-{epoch}")
while not os.path.exists("go"):
    time.sleep(0.02)
"""
_CHAOS = "kill 1 at step 24; kill 0 at ready in attempt 4"
_Columns = dict[str, list[object]]


@pytest.fixture(scope="module")
def orch(shared_orch: Orch) -> Orch:
    return shared_orch


@pytest.fixture(scope="module")
def done(orch: Orch) -> Done:
    """The ended run. Its history could be read while it was live."""
    words = ("-n", "2", "--on-failure", "restart", "--chaos", _CHAOS, "--", "python3")
    started = orch.start("up", *words, orch.script("train.py", _TRAIN))
    until(lambda: started.ended or (orch.run_dirs() and not orch("history", "--json").err))
    _columns_of(orch("history", "--json"))
    orch.script("go", "")
    finished = started.finish()
    assert finished.code == 0, finished.out + finished.err
    return Done(finished.code, finished.out, finished.err, orch.run_dir())


@pytest.fixture(scope="module")
def columns(orch: Orch, done: Done) -> _Columns:
    return _columns_of(orch("history", done.run.name, "--json"))


def _columns_of(done: Finished) -> _Columns:
    assert (done.code, done.err) == (0, "")
    columns: _Columns = done.document["columns"]
    assert {len(values) for values in columns.values()} == {len(columns["time"])}
    return columns


def test_report(done: Done) -> None:
    for said in (
        "attempt 2 of 4 in 1.0s",
        "orch: attempt 2 resumed at step 20 (4 lost)",
        " in 2 attempts",
        "attempt        1, at step 24: worker:1: SIGKILL",
        "kill worker:1 at step 24: after",
        "all ended in",
        "kill worker:0 at ready in attempt 4: not triggered",
    ):
        assert said in done.err, said


def test_result(done: Done) -> None:
    result = done.result
    assert (result["outcome"], result["attempts"], result["cause"]) == ("succeeded", 2, None)
    (first,) = result["history"]
    assert (first["attempt"], first["exit_code"], first["first_failure"]["task"]) == (1, 137, "worker:1")
    assert (first["cause"]["task"], first["cause"]["kind"]) == ("worker:1", "exited")
    # Two epochs were saved; four steps of the third are lost.
    assert (first["position"], first["resumed_at"], first["steps_lost"]) == (24, 20, 4)
    plans = done.events("attempt_planned")
    assert [plan["attempt"] for plan in plans] == [1, 2]
    assert len({task["address"] for plan in plans for task in plan["tasks"]}) == 4, "new ports each time"


def test_planned_faults_are_in_the_result(done: Done) -> None:
    (end,), (fault, other) = done.result["history"], done.result["faults"]
    assert f"sent by --chaos ({fault['fault']})" in end["cause"]["text"]
    assert fault["task"] == "worker:1" and fault["detection_s"] > 0
    assert (fault["teardown_s"], fault["recovery_s"]) == (end["teardown_s"], end["recovery_s"])
    assert end["recovery_s"] > 0 and 0 < fault["at_s"] < done.result["took_s"]
    assert other["at_s"] is None
    sent = [(event["task"], event["signal"], event["fault"]) for event in done.events("signal_requested")]
    assert sent == [("worker:1", signal.SIGKILL, 0)]


def test_status_and_ls(orch: Orch, done: Done) -> None:
    status = orch.status()
    assert status["run"]["attempt"] == 2
    assert [attempt["steps_lost"] for attempt in status["run"]["history"]] == [4]
    assert [task["restarts"] for task in status["tasks"]] == [1, 1]
    assert "attempt 2 of 4  resumed at step 20 (4 lost)" in orch("status").lines[0]
    assert "ATTEMPTS" in orch("ls").lines[0].split()
    (listed,) = orch("ls", "--json").document["runs"]
    assert listed["attempts"] == 2
    waited = orch("wait", "--json")
    assert (waited.code, waited.document["attempts"]) == (0, 2)


def test_logs(orch: Orch, done: Done) -> None:
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


def test_history_has_the_last_report_of_each_attempt(orch: Orch, done: Done, columns: _Columns) -> None:
    """However short the time to the end was."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert columns["time"] == sorted(columns["time"], key=float)
    last = {
        (row["task"], row["attempt"]): (row["epoch"], row["step"], row["loss"], row["share"]) for row in rows
    }
    assert last[("worker:1", 1)] == (3, 4, 1 / 4, 0.4)
    assert last[("worker:0", 2)] == last[("worker:1", 2)] == (5, 10, 1 / 10, 1.0)
    printed = orch("history", done.run.name)
    assert printed.out == orch("history", done.run.name, "--csv").out
    assert next(csv.DictReader(printed.lines)).keys() == columns.keys()
    assert len(printed.lines) == len(rows) + 1


def test_api_returns_the_run(
    orch: Orch, done: Done, columns: _Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(orch.state))
    run = orchestrator.find(done.run.name)
    assert orchestrator.history(done.run.name) == run.history() == columns
    result = run.wait()
    assert result.history() == columns == pickle.loads(pickle.dumps(result)).history()
    # The word has another meaning in the document.
    (ended,) = result.earlier_attempts
    assert ended.cause is not None and ended.cause.task == "worker:1"
    assert result.model_dump(mode="json") == done.result
    read = orchestrator.RunResult.model_validate(done.result)
    assert read == result
    with pytest.raises(LookupError, match="history"):
        read.history()


def test_history_without_rows_with_hostile_rows_and_of_no_run(orch: Orch, done: Done) -> None:
    assert orch("up", "-q", "--name", "other", "--", "true").code == 0
    samples = orch.run_dirs()[-1] / "samples.jsonl"
    samples.unlink(missing_ok=True)  # as an older orch leaves it
    empty = orch("history", "other", "--json")
    assert empty.code == 0 and "has no history" in empty.err
    assert set(map(len, empty.document["columns"].values())) == {0}

    row = {"time": 1.0, "task": "worker:0", "phase": "a\nb,c", "metrics": {"\x1b[2Jx": 1.0, "\u202ey": None}}
    samples.write_text(json.dumps(row) + "\n")
    shown = orch("history", "other")
    assert shown.code == 0 and "\x1b" not in shown.out and "\u202e" not in shown.out
    (found,) = csv.DictReader(shown.lines)
    assert (found["phase"], found["loss"], found["attempt"]) == ("a\u240ab,c", "", "0")

    for words, code, said in ((("--csv", "--json"), 2, "contradict"), (("none-such",), 3, "none-such")):
        refused = orch("history", *words)
        assert (refused.code, refused.out) == (code, "") and said in refused.err


@pytest.mark.parametrize("policy", ["restart", "restart-task"])
def test_failure_after_an_update_of_orch_uses_no_restarts(tmp_path: Path, policy: str) -> None:
    """A restart would mix two versions. The files are replaced as `pip install --upgrade` does."""
    for package in ("orchestrator", "worker"):
        shutil.copytree(ROOT / package, tmp_path / package)
    script = "echo start $ORCH_ATTEMPT $ORCH_RESTARTS; until [ -e go ]; do sleep 0.1; done; exit 42"
    words = ("up", "--max-restarts", "3", "--on-failure", policy, "--", "sh", "-c", script)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "orchestrator", *words],
        cwd=tmp_path,
        env=Orch(tmp_path, tmp_path / "state").environ({"PYTHONPATH": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None and client.stdout.readline().startswith("worker:0 | start 1")
        module = tmp_path / "worker/bootstrap/install.py"
        shutil.copy(module, module.with_suffix(".new"))
        module.with_suffix(".new").rename(module)
        (tmp_path / "go").touch()
        out, said = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 42 and "start" not in out
    reason = "orch was updated during this run; start it again"
    assert f"not restarted  {reason if policy == 'restart' else f'worker:0: {reason}'}" in said
