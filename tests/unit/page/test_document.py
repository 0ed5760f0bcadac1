"""The document of a run: spans and marks, how it ended, and texts of tasks without control characters."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pages import WrittenRun, strings_of

from orchestrator.client.page.document import RunPage
from orchestrator.client.page.pieces import Members, whole
from orchestrator.client.run_rows import read_status
from orchestrator.core.state import events
from orchestrator.core.state.events import Progress
from orchestrator.core.state.result import AttemptEnd
from orchestrator.core.state.state import RunPhase
from orchestrator.store.runs.history_file import HistoryFile
from orchestrator.store.runs.run_end import result_from_events

Spans = list[tuple[str, float, float | None]]


def spans_of(document: dict[str, Any], task: str) -> Spans:
    spans = document["timeline"]["spans"]
    return [(span["state"], span["start"], span["end"]) for span in spans if span["task"] == task]


def kinds_of(document: dict[str, Any]) -> list[str]:
    return [mark["kind"] for mark in document["timeline"]["marks"]]


def test_spans_follow_what_a_task_reports() -> None:
    with WrittenRun(1) as run:
        run.start()
        run.progress(2, "worker:0", phase="importing")
        run.progress(4, "worker:0", phase="training", step=0, steps=10, epoch=1, epochs=3)
        for step in range(1, 5):
            run.progress(4 + step, "worker:0", phase="training", step=step, steps=10, epoch=2, epochs=3)
        run.progress(9, "worker:0", phase="saving", epoch=3, epochs=3)
        run.exit(10, "worker:0")
        run.end(11)
        document = run.page().document()
    assert spans_of(document, "worker:0") == [
        ("starting", 0.0, 1.0),
        ("running", 1.0, 2.0),
        ("importing", 2.0, 4.0),
        ("training", 4.0, 9.0),
        ("saving", 9.0, 10.0),
        ("ended-ok", 10.0, 11.0),
    ]
    assert document["timeline"]["spans"][3]["text"] == "epoch 3/3"
    assert kinds_of(document) == ["attempt", "ready", "exit", "end"]
    assert document["run"]["state"] == "succeeded" and not document["run"]["live"]


def test_live_run_has_open_spans_and_no_end() -> None:
    with WrittenRun(1) as run:
        run.start()
        page = run.page()
        document = page.document()
        assert spans_of(document, "worker:0")[-1] == ("running", 1.0, None)
        assert document["end"] is None and document["run"]["live"]
        assert not page.refresh()
        run.progress(2, "worker:0", phase="training", step=1)
        assert page.refresh()


def changed(page: RunPage) -> dict[str, Any]:
    return dict(whole(Members(page.changed_parts())))


def test_only_the_tasks_with_another_measurement_are_read_while_nothing_happens() -> None:
    """A run of 1,000 quiet tasks has a document of 0.7 MB, which is made again only if an event comes."""
    with WrittenRun(3) as run:
        run.start()
        page = run.page()
        assert [row["task"] for row in changed(page)["tasks"]] == run.tasks
        usage = {task: {"cpu_percent": 0.0, "memory_bytes": 5.0} for task in run.tasks}
        run.store.write_sample(at=0, mono=1, tasks=usage, attempt=1)
        assert page.refresh() and len(changed(page)["tasks"]) == 3
        run.store.write_sample(at=0, mono=2, tasks=usage, attempt=1)
        assert not page.refresh()
        usage["worker:1"]["memory_bytes"] = 6.0
        run.store.write_sample(at=0, mono=3, tasks=usage, attempt=1)
        assert page.refresh()
        parts = changed(page)
        assert [(row["task"], row["memory_bytes"]) for row in parts["tasks"]] == [("worker:1", 6)]
        assert not {"timeline", "plan", "end", "stacks"} & set(parts)
        run.progress(4, "worker:2", phase="training", step=1)
        assert page.refresh() and {"timeline", "plan"} < set(changed(page))
        run.append(events.CheckpointSaved(**run.at(5), task="worker:1", name="ckpt-1", seconds=1.0))
        assert page.refresh() and "timeline" in changed(page)


def test_wait_names_the_awaited_task_also_when_it_is_over() -> None:
    with WrittenRun(2) as run:
        run.start()
        for task in run.tasks:
            run.progress(2, task, phase="importing")
        run.progress(3, "worker:0", phase="waiting")
        run.progress(7, "worker:1", phase="waiting")
        for task in run.tasks:
            run.progress(8, task, phase="training", step=1)
        spans = run.page().document()["timeline"]["spans"]
    waits = [span for span in spans if span["state"] == "waiting" and span["task"] == "worker:0"]
    assert [(span["start"], span["end"]) for span in waits] == [(3.0, 8.0)]


def test_silence_begins_at_the_last_report() -> None:
    with WrittenRun(1) as run:
        run.start()
        run.progress(2, "worker:0", phase="training", step=1)
        run.append(events.DeadlineReached(**run.at(12.0), deadline="stall_limit", quiet_s={"worker:0": 10.0}))
        run.progress(20, "worker:0", phase="training", step=2)
        for step in range(3, 6):
            run.progress(20 + step, "worker:0", phase="training", step=step)
        document = run.page().document()
    assert spans_of(document, "worker:0")[-2:] == [("silent", 2.0, 20.0), ("training", 20.0, None)]


def test_attempts_and_their_failures() -> None:
    with WrittenRun(2) as run:
        run.start()
        run.exit(5, "worker:1", exit_code=3)
        run.append(events.TeardownBegan(**run.at(5), reason=events.TeardownReason.FAILURE, grace_s=1))
        run.exit(6, "worker:0", exit_code=1, order=1)
        ended = AttemptEnd(attempt=1, cause=None, first_failure=None, exit_code=3)
        run.append(events.RestartPlanned(**run.at(7), ended=ended, delay_s=1))
        run.start(2, seconds=8)
        document = run.page().document()
    assert document["timeline"]["attempts"] == [
        {"attempt": 1, "start": 0.0, "end": 7.0},
        {"attempt": 2, "start": 8.0, "end": None},
    ]
    assert spans_of(document, "worker:1")[-3:] == [
        ("ended-bad", 5.0, 7.0),
        ("starting", 8.0, 9.0),
        ("running", 9.0, None),
    ]
    assert kinds_of(document) == [
        "attempt",
        "ready",
        "failure",
        "teardown",
        "exit",
        "restart",
        "attempt",
        "ready",
    ]


def test_bad_loss_is_a_mark_and_its_value_is_null() -> None:
    with WrittenRun(1) as run:
        run.start()
        bad = events.BadLoss(value="nan", epoch=1, step=7)
        run.progress(2, "worker:0", phase="training", step=7, bad_loss=bad, metrics={"f1": float("inf")})
        run.append(events.LossBecameBad(**run.at(2), task="worker:0", loss=bad))
        document = run.page().document()
    assert "nan" in kinds_of(document)
    json.dumps(document, allow_nan=False)


def test_number_of_spans_is_bounded_and_the_long_ones_stay() -> None:
    with WrittenRun(1) as run:
        run.start()
        for second in range(2, 400, 2):
            run.progress(second, "worker:0", phase="training", step=second)
            run.progress(second + 0.5, "worker:0", phase="evaluating")
        run.progress(400, "worker:0", phase="saving")
        run.exit(500, "worker:0")
        page = run.page()
        page._timeline.most_spans = 20
        document = page.document()
    spans = spans_of(document, "worker:0")
    assert len(spans) <= 20
    assert ("saving", 400.0, 500.0) in spans
    assert all(before[2] == after[1] for before, after in pairwise(spans))


def test_run_without_any_task_has_a_document() -> None:
    with WrittenRun(1) as run:
        document = run.page().document()
    assert document["tasks"] == [] and document["plan"]["tasks"] == []
    assert document["timeline"] == {"attempts": [], "spans": [], "marks": []}
    assert document["series"] == {"metrics": [], "tasks": {}}


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u202eback\u2028\ud800\x00</script>"


def test_no_text_of_a_document_has_control_characters() -> None:
    with WrittenRun(1, name="job") as run:
        run.start(**{"A\x1b[2J": "x"})
        run.append(events.Noticed(**run.at(3), text=HOSTILE.replace("\ud800", "")))
        run.progress(4, "worker:0", phase="x\x1b[2J", metrics={"m\u202e": 0.5})
        document = run.page().document()
    for text in strings_of(document):
        assert not set(text) & {"\x1b", "\x00", "\u202e", "\u2028"}, text
    json.dumps(document).encode()


def test_series_are_in_the_order_of_the_plan() -> None:
    with WrittenRun(3) as run:
        run.start()
        file = HistoryFile(run.store.directory, run.store.paths.samples.name)
        for second, task in enumerate(reversed(run.tasks), 2):
            file.add(float(second), 1, {task: Progress(step=1, loss=0.5)}, {})
        file.close()
        document = run.page().document()
    assert list(document["series"]["tasks"]) == run.tasks


def test_values_of_variables_are_not_in_the_document() -> None:
    with WrittenRun(1) as run:
        run.start(MY_SETTING="a value that nobody needs", API_TOKEN="***")
        document = run.page().document()
    assert document["plan"]["env_names"] == ["API_TOKEN", "MY_SETTING"]
    assert "a value that nobody needs" not in json.dumps(document)


def test_tf_config_is_that_of_the_tasks() -> None:
    with WrittenRun(2) as run:
        run.start()
        plan = run.page().document()["plan"]
    assert plan["tf_config"]["worker:1"] == {
        "cluster": {"worker": ["127.0.0.1:9000", "127.0.0.1:9001"]},
        "task": {"type": "worker", "index": 1},
    }
    assert plan["command"] == "python train.py"


def test_thousand_tasks_have_a_bounded_document() -> None:
    with WrittenRun(1000) as run:
        run.start()
        document = run.page().document()
    assert len(document["tasks"]) == 1000
    assert len(document["plan"]["tasks"]) == 32 and len(document["plan"]["tf_config"]) == 1


def test_versions_and_saves_of_tasks() -> None:
    with WrittenRun(3) as run:
        run.start()
        for task, version in zip(run.tasks, ("2.21.0", "2.21.0", "2.20.0"), strict=True):
            versions = {"python": "3.11.7", "tensorflow": version}
            run.append(events.VersionsFound(**run.at(2), task=task, versions=versions))
        run.append(events.CheckpointSaved(**run.at(3), task="worker:1", name="ckpt-1", seconds=1.25))
        for _ in range(20_000):
            run.append(events.CheckpointSaved(**run.at(4), task="worker:0", name="a", seconds=0.0))
        run.exit(5, "worker:0", 1)
        document = run.page().document()
    found = document["plan"]["versions"]
    assert found["tensorflow"] == "2.21.0 (2), 2.20.0 (1)" and found["python of the tasks"] == "3.11.7"
    assert "sharding" not in document["plan"]
    marks = [(mark["task"], mark["text"]) for mark in document["timeline"]["marks"]]
    assert ("worker:1", "worker:1 saved ckpt-1 in 1.2s") in marks
    # Many saves leave room for other marks.
    assert len(marks) < 6_000 and marks[-1][1] == "worker:0: exit 1"


def test_versions_of_tasks_are_in_the_status_and_the_result_after_a_restart_too() -> None:
    versions = {"python": "3.11.7", "tensorflow": "2.21.0"}
    with WrittenRun(2) as run:
        run.start()
        run.append(events.VersionsFound(**run.at(2), task="worker:1", versions=versions))
        # The next attempt has the same versions, which are not reported again.
        run.start(2, seconds=3)
        view = run.page().view
        assert [task.versions for task in read_status(view).tasks] == [{}, versions]
        run.end(4)
        view.refresh()
        lost = replace(view.state, phase=RunPhase.LOST)
        for state in (view.state, lost):
            result = json.loads(result_from_events("job", state, "/").model_dump_json())
            assert [task["versions"] for task in result["tasks"]] == [{}, versions]
