"""The document of a run: spans and marks, how it ended, and texts of tasks without control characters."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from making import attempt_end
from pages import WrittenRun, strings_of

from orchestrator.client.page.document import RunPage
from orchestrator.client.page.pieces import Members, whole
from orchestrator.client.run_rows import read_status
from orchestrator.core.state import events
from orchestrator.core.state.events import TeardownReason
from orchestrator.core.state.state import RunPhase
from orchestrator.store.runs.run_end import result_from_events

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u202eback\u2028\x00</script>"
BAD = events.BadLoss(value="nan", epoch=1, step=7)


def spans_of(document: dict[str, Any], task: str) -> list[tuple[str, float, float | None]]:
    spans = document["timeline"]["spans"]
    return [(span["state"], span["start"], span["end"]) for span in spans if span["task"] == task]


def kinds_of(document: dict[str, Any]) -> list[str]:
    return [mark["kind"] for mark in document["timeline"]["marks"]]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of three tasks: worker:0 ends well, worker:1 is silent, worker:2 waits and has hostile texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with WrittenRun(3) as run:
            run.start(MY_SETTING="a value that nobody needs", API_TOKEN="***", **{"A\x1b[2J": "x"})
            for task, version in zip(run.tasks, ("2.21.0", "2.21.0", "2.20.0"), strict=True):
                run.progress(2, task, phase="importing")
                versions = {"python": "3.11.7", "tensorflow": version}
                run.append(events.VersionsFound(**run.at(2), task=task, versions=versions))
            run.append(events.Noticed(**run.at(2.5), text=HOSTILE))
            run.progress(3, "worker:2", phase="waiting")
            run.progress(4, "worker:0", phase="training", step=0, steps=10, epoch=1, epochs=3)
            for step in range(1, 5):
                run.progress(4 + step, "worker:0", phase="training", step=step, steps=10, epoch=2, epochs=3)
            run.progress(7, "worker:1", phase="training", step=1)
            run.progress(8, "worker:2", phase="x\x1b[2J", bad_loss=BAD, metrics={"m\u202e": float("inf")})
            run.append(events.Noticed(**run.at(8), text="worker:2: the loss is nan", nan_in="worker:2"))
            run.progress(9, "worker:0", phase="saving", epoch=3, epochs=3)
            run.append(events.CheckpointSaved(**run.at(9), task="worker:0", name="ckpt-1", seconds=1.25))
            run.exit(10, "worker:0")
            silent = {"worker:1": 10.0}
            run.append(events.DeadlineReached(**run.at(17), deadline="stall_limit", quiet_s=silent))
            for step in range(2, 6):
                run.progress(18 + step, "worker:1", phase="training", step=step)
            return run.page().document()


def test_spans_follow_what_a_task_reports(document: dict[str, Any]) -> None:
    """A silence begins at the last report."""
    assert spans_of(document, "worker:0") == [
        ("starting", 0.0, 1.0),
        ("running", 1.0, 2.0),
        ("importing", 2.0, 4.0),
        ("training", 4.0, 9.0),
        ("saving", 9.0, 10.0),
        ("ended-ok", 10.0, None),
    ]
    assert spans_of(document, "worker:1")[-2:] == [("silent", 7.0, 20.0), ("training", 20.0, None)]
    assert ("waiting", 3.0, 8.0) in spans_of(document, "worker:2")
    texts = {(span["task"], span["state"]): span["text"] for span in document["timeline"]["spans"]}
    assert texts["worker:0", "training"] == "epoch 3/3"


def test_marks_are_what_happened(document: dict[str, Any]) -> None:
    assert {"attempt", "ready", "nan", "exit"} < set(kinds_of(document))
    marks = [(mark["task"], mark["text"]) for mark in document["timeline"]["marks"]]
    assert ("worker:0", "worker:0 saved ckpt-1 in 1.2s") in marks
    assert document["end"] is None and document["run"]["live"]


def test_plan_has_versions_tf_config_and_names_of_variables_without_values(document: dict[str, Any]) -> None:
    plan = document["plan"]
    found = plan["versions"]
    assert found["tensorflow"] == "2.21.0 (2), 2.20.0 (1)" and found["python of the tasks"] == "3.11.7"
    assert plan["command"] == "python train.py"
    cluster = {"worker": [f"127.0.0.1:{port}" for port in (9000, 9001, 9002)]}
    assert plan["tf_config"]["worker:1"] == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert {"API_TOKEN", "MY_SETTING"} < set(plan["env_names"])
    assert "a value that nobody needs" not in json.dumps(document)


def test_document_is_json_without_control_characters(document: dict[str, Any]) -> None:
    for text in strings_of(document):
        assert not set(text) & {"\x1b", "\x00", "\u202e", "\u2028"}, text
    json.dumps(document, allow_nan=False).encode()


def changed(page: RunPage) -> dict[str, Any]:
    return dict(whole(Members(page.changed_parts())))


def test_only_the_tasks_with_another_measurement_are_read_while_nothing_happens() -> None:
    """A run of 1,000 quiet tasks has a document of 0.7 MB, which is made again only if an event comes."""
    with WrittenRun(3) as run:
        run.start()
        page = run.page()
        assert [row["task"] for row in changed(page)["tasks"]] == run.tasks
        assert not page.refresh()
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


def test_attempts_and_their_failures() -> None:
    with WrittenRun(2) as run:
        run.start()
        run.exit(5, "worker:1", exit_code=3)
        run.append(events.TeardownBegan(**run.at(5), reason=TeardownReason.FAILURE, grace_s=1))
        run.exit(6, "worker:0", exit_code=1, order=1)
        run.append(events.RestartPlanned(**run.at(7), ended=attempt_end(code=3), delay_s=1))
        run.start(2, seconds=8)
        run.end(10)
        document = run.page().document()
    assert document["timeline"]["attempts"] == [
        {"attempt": 1, "start": 0.0, "end": 7.0},
        {"attempt": 2, "start": 8.0, "end": 10.0},
    ]
    second = [("ended-bad", 5.0, 7.0), ("starting", 8.0, 9.0), ("running", 9.0, 10.0)]
    assert spans_of(document, "worker:1")[-3:] == second
    first = ["attempt", "ready", "failure", "teardown", "exit", "restart"]
    assert kinds_of(document) == [*first, "attempt", "ready", "end"]
    assert document["run"]["state"] == "succeeded" and not document["run"]["live"]


def test_numbers_of_spans_and_saves_are_bounded_and_the_long_spans_stay() -> None:
    with WrittenRun(1) as run:
        run.start()
        for second in range(2, 400, 2):
            run.progress(second, "worker:0", phase="training", step=second)
            run.progress(second + 0.5, "worker:0", phase="evaluating")
        run.progress(400, "worker:0", phase="saving")
        for _ in range(20_000):
            run.append(events.CheckpointSaved(**run.at(401), task="worker:0", name="a", seconds=0.0))
        run.exit(500, "worker:0", 1)
        page = run.page()
        page._timeline.most_spans = 20
        document = page.document()
    spans, marks = spans_of(document, "worker:0"), document["timeline"]["marks"]
    assert len(spans) <= 20 and ("saving", 400.0, 500.0) in spans
    assert all(before[2] == after[1] for before, after in pairwise(spans))
    # Many saves leave room for other marks.
    assert len(marks) < 6_000 and marks[-1]["text"] == "worker:0: exit 1"


def test_documents_of_no_tasks_and_of_a_thousand() -> None:
    with WrittenRun(1) as run:
        document = run.page().document()
    assert document["tasks"] == [] and document["plan"]["tasks"] == []
    assert document["timeline"] == {"attempts": [], "spans": [], "marks": []}
    assert document["series"] == {"metrics": [], "tasks": {}}
    with WrittenRun(1000) as run:
        run.start()
        document = run.page().document()
    assert len(document["tasks"]) == 1000
    assert len(document["plan"]["tasks"]) == 32 and len(document["plan"]["tf_config"]) == 1


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
