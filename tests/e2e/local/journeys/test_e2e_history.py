"""`orch history`: what the tasks of real runs reported and used, over time."""

from __future__ import annotations

import csv
import json
import pickle
import sys

import pytest
from orch_command import Finished, Orch
from waiting import until

import orchestrator

# Each attempt reports three steps. The first attempt of worker:1 then fails; "go" lets the others end.
TRAIN = """
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


def columns_of(done: Finished) -> dict[str, list[object]]:
    assert (done.code, done.err) == (0, "")
    columns: dict[str, list[object]] = done.document["columns"]
    assert {len(values) for values in columns.values()} == {len(columns["time"])}
    return columns


def rows_of(columns: dict[str, list[object]]) -> list[dict[str, object]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_history_of_a_run_with_two_attempts(orch: Orch) -> None:
    script = orch.script("train.py", TRAIN)
    started = orch.start("up", "-n", "2", "--max-restarts", "1", "--", sys.executable, script)
    until(lambda: orch.run_dirs() and not orch("history", "--json").err)
    columns_of(orch("history", "--json"))  # while it runs
    (orch.directory / "go").touch()
    assert started.finish().code == 0
    columns = columns_of(orch("history", "--json"))
    rows = rows_of(columns)
    assert columns["time"] == sorted(columns["time"], key=float)
    assert {row["task"] for row in rows} == {"worker:0", "worker:1"}
    for task in ("worker:0", "worker:1"):
        mine = [row for row in rows if row["task"] == task]
        # The last report of a process is in the history, however short the time was.
        assert [row["attempt"] for row in mine if row["step"] == 3][-1] == 2
        last = mine[-1]
        assert (last["attempt"], last["step"], last["loss"], last["accuracy"]) == (2, 3, 1 / 3, 0.75)
    failed = [row for row in rows if row["task"] == "worker:1" and row["attempt"] == 1]
    assert (failed[-1]["step"], failed[-1]["loss"]) == (3, 1 / 3)
    printed = orch("history")
    assert printed.out == orch("history", "--csv").out
    assert next(csv.DictReader(printed.lines)).keys() == columns.keys()
    assert len(printed.lines) == len(rows) + 1
    here = orchestrator.history(orch.result()["run_id"])
    assert here == columns and orchestrator.find(orch.run_dir().name).history() == columns
    result = orchestrator.find(orch.run_dir().name).wait()
    assert result.history() == columns == pickle.loads(pickle.dumps(result)).history()
    # The word has another meaning in the document.
    (ended,) = result.earlier_attempts
    assert ended.cause is not None and ended.cause.task == "worker:1"
    assert result.model_dump(mode="json") == orch.result() and len(orch.result()["history"]) == 1
    document = orchestrator.RunResult.model_validate(orch.result())
    assert document == result
    with pytest.raises(LookupError, match="history"):
        document.history()


def test_run_without_a_history_has_empty_columns(orch: Orch) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    (orch.run_dir() / "samples.jsonl").unlink(missing_ok=True)  # as an older orch leaves it
    done = orch("history", "--json")
    assert done.code == 0 and "has no history" in done.err
    assert set(map(len, done.document["columns"].values())) == {0}
    done = orch("history")
    assert (done.code, len(done.lines)) == (0, 1) and done.out.startswith("time,task,attempt,")


def test_names_of_metrics_are_safe_on_the_terminal(orch: Orch) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    row = {"time": 1.0, "task": "worker:0", "phase": "a\nb,c", "metrics": {"\x1b[2Jx": 1.0, "\u202ey": None}}
    (orch.run_dir() / "samples.jsonl").write_text(json.dumps(row) + "\n")
    done = orch("history")
    assert done.code == 0 and len(done.lines) == 2
    assert "\x1b" not in done.out and "\u202e" not in done.out
    (found,) = csv.DictReader(done.lines)
    assert found["phase"] == "a\u240ab,c" and (found["loss"], found["attempt"]) == ("", "0")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(("--csv", "--json"), 2, "contradict"), (("none-such",), 3, "none-such")],
)
def test_wrong_use_is_refused(orch: Orch, words: tuple[str, ...], code: int, said: str) -> None:
    done = orch("history", *words)
    assert (done.code, done.out) == (code, "") and said in done.err
