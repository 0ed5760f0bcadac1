"""One run whose first attempt failed: its history, and what the Python API returns of it."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import pytest
from orch_command import Finished, Orch
from waiting import until

import orchestrator

# Each attempt reports three steps. The first attempt of worker:1 then fails; "go" lets the others end.
_TRAIN = """
import json, os, sys, time
report = int(os.environ["ORCH_PROGRESS_FD"])
attempt = int(os.environ["ORCH_ATTEMPT"])
for step in range(1, 4):
    loss = float("nan") if step == 2 else 1 / step
    said = {"phase": "training", "epoch": 1, "step": step, "loss": loss, "metrics": {"accuracy": step / 4}}
    os.write(report, json.dumps(said).encode() + b"\\n")
    time.sleep(0.05)
if attempt == 1 and os.environ["ORCH_TASK"] == "worker:1":
    sys.exit(3)
while not os.path.exists("go"):
    time.sleep(0.02)
"""
_Columns = dict[str, list[object]]


def _columns_of(done: Finished) -> _Columns:
    assert (done.code, done.err) == (0, "")
    columns: _Columns = done.document["columns"]
    assert {len(values) for values in columns.values()} == {len(columns["time"])}
    return columns


@pytest.fixture(scope="module")
def run(shared_orch: Orch) -> Path:
    """The ended run. Its history could be read while it was live."""
    script = shared_orch.script("train.py", _TRAIN)
    started = shared_orch.start("up", "-n", "2", "--max-restarts", "1", "--", "python3", script)
    until(lambda: shared_orch.run_dirs() and not shared_orch("history", "--json").err)
    _columns_of(shared_orch("history", "--json"))
    shared_orch.script("go", "")
    assert started.finish().code == 0
    return shared_orch.run_dir()


@pytest.fixture(scope="module")
def columns(shared_orch: Orch, run: Path) -> _Columns:
    return _columns_of(shared_orch("history", run.name, "--json"))


def test_history_has_the_last_report_of_each_attempt(columns: _Columns) -> None:
    """However short the time to the end was."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert columns["time"] == sorted(columns["time"], key=float)
    assert {row["task"] for row in rows} == {"worker:0", "worker:1"}
    last = {(row["task"], row["attempt"]): row for row in rows}
    for end in (("worker:1", 1), ("worker:0", 2), ("worker:1", 2)):
        assert (last[end]["step"], last[end]["loss"], last[end]["accuracy"]) == (3, 1 / 3, 0.75), end


def test_history_as_csv(shared_orch: Orch, run: Path, columns: _Columns) -> None:
    printed = shared_orch("history", run.name)
    assert printed.out == shared_orch("history", run.name, "--csv").out
    assert next(csv.DictReader(printed.lines)).keys() == columns.keys()
    assert len(printed.lines) == len(columns["time"]) + 1


def test_api_returns_the_run(
    shared_orch: Orch, run: Path, columns: _Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(shared_orch.state))
    assert orchestrator.history(run.name) == orchestrator.find(run.name).history() == columns
    result = orchestrator.find(run.name).wait()
    assert result.history() == columns == pickle.loads(pickle.dumps(result)).history()
    # The word has another meaning in the document.
    (ended,) = result.earlier_attempts
    assert ended.cause is not None and ended.cause.task == "worker:1"
    document = shared_orch.result(run)
    assert result.model_dump(mode="json") == document and len(document["history"]) == 1
    read = orchestrator.RunResult.model_validate(document)
    assert read == result
    with pytest.raises(LookupError, match="history"):
        read.history()


def test_history_without_rows_with_hostile_rows_and_of_no_run(shared_orch: Orch) -> None:
    assert shared_orch("up", "-q", "--name", "other", "--", "true").code == 0
    samples = shared_orch.run_dirs()[-1] / "samples.jsonl"
    samples.unlink(missing_ok=True)  # as an older orch leaves it
    empty = shared_orch("history", "other", "--json")
    assert empty.code == 0 and "has no history" in empty.err
    assert set(map(len, empty.document["columns"].values())) == {0}
    assert shared_orch("history", "other").out.startswith("time,task,attempt,")

    row = {"time": 1.0, "task": "worker:0", "phase": "a\nb,c", "metrics": {"\x1b[2Jx": 1.0, "\u202ey": None}}
    samples.write_text(json.dumps(row) + "\n")
    shown = shared_orch("history", "other")
    assert shown.code == 0 and len(shown.lines) == 2
    assert "\x1b" not in shown.out and "\u202e" not in shown.out
    (found,) = csv.DictReader(shown.lines)
    assert (found["phase"], found["loss"], found["attempt"]) == ("a\u240ab,c", "", "0")

    for words, code, said in ((("--csv", "--json"), 2, "contradict"), (("none-such",), 3, "none-such")):
        refused = shared_orch("history", *words)
        assert (refused.code, refused.out) == (code, "") and said in refused.err
