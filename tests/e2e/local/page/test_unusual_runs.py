"""Runs that are damaged, lost, copied, of another user or version: the server shows what can be read of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from acting_as import needs_root
from orch_command import Orch, Started
from page_client import PageBrowser
from pages import STARTED_AT, WrittenRun, strings_of
from users import ORDINARY
from waiting import until

from orchestrator.core.state.events import Noticed

LINES = 1_000_000
AT_ONCE = 100


@pytest.fixture
def server(orch: Orch) -> Started:
    started = orch.start("ui", "--port", "0")
    started.until_out("/?token=")
    return started


@pytest.fixture
def page(server: Started) -> PageBrowser:
    return PageBrowser(server.out.split()[0])


def write_run(name: str, *, ended: bool = True) -> Path:
    """Write a run of two tasks, and return its directory. Without an end it is lost."""
    with WrittenRun(2, name=name) as run:
        run.start()
        for number, task in enumerate(run.tasks):
            run.log(STARTED_AT + 2, task, b"a line of %b\nand the end" % task.encode())
            run.progress(3, task, phase="training", step=7, loss=0.5)
            run.exit(4, task, order=number)
        if ended:
            run.end(5)
        return run.store.paths.root


def prune(run: Path) -> None:
    for name in ("events.jsonl", "samples.jsonl"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "logs")


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def change_version(path: Path, version: int) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "whole": lambda run: None,
    "no record": lambda run: (run / "run.json").write_text("{"),
    "no events": lambda run: (run / "events.jsonl").unlink(),
    "torn events": lambda run: cut(run / "events.jsonl"),
    "events of bytes": lambda run: (run / "events.jsonl").write_bytes(bytes(range(256)) * 100),
    "pruned": prune,
    "no logs": lambda run: shutil.rmtree(run / "logs"),
    "no index": lambda run: (run / "logs/index").unlink(),
    "index of bytes": lambda run: (run / "logs/index").write_bytes(bytes(range(256)) * 100),
    "index of other offsets": lambda run: (run / "logs/index").write_bytes(b"1.0 worker:0 1 99999 -5\n" * 5),
    "strange samples": lambda run: (run / "samples.jsonl").write_text('{"time":1e999}\n{"loss":NaN'),
    "lock is a directory": lambda run: ((run / "lock").unlink(), (run / "lock").mkdir()),
    "old": lambda run: change_version(run / "run.json", 0),
}


def test_any_run_has_a_page(page: PageBrowser) -> None:
    runs = {name: write_run(name.replace(" ", "-")) for name in _DAMAGES}
    for name, damage in _DAMAGES.items():
        damage(runs[name])
    runs["lost"] = write_run("lost", ended=False)
    runs["copy"] = shutil.copytree(runs["whole"], runs["whole"].with_name("copy"))
    listed = {row["id"]: row for row in page.read("/api/runs")["runs"]}
    assert set(listed) == {run.name for run in runs.values()}
    assert listed[runs["lost"].name]["state"] == "lost"
    for name, run in runs.items():
        path, beside = f"/api/runs/{run.name}", runs["lost" if name == "whole" else "whole"]
        document: dict[str, Any] = page.read(path)
        assert document["run"]["id"] == run.name
        last = page.read(f"{path}/lines?tail=10")
        older = page.get(f"{path}/lines?before={last['before'] or 10**9}")
        assert older.status == 200, name
        shown = last["rows"]["text"] + [
            text for part in older.body.splitlines() for text in json.loads(part)["text"]
        ]
        assert "a line of worker:1" in shown or name in ("pruned", "no logs", "index of other offsets"), name
        assert page.read(f"/api/compare?run={run.name}&run={beside.name}")["runs"][0]["id"] == run.name
    remarks = {name: page.read(f"/api/runs/{run.name}")["run"]["remarks"] for name, run in runs.items()}
    assert "run.json is damaged" in remarks["no record"][0]
    assert "events.jsonl is missing or damaged" in remarks["no events"][0]
    assert "this is a copy" in remarks["copy"][0]


HOSTILE = (
    b"</script><script>alert(1)</script> javascript:alert(1)",
    b"\x1b[31mred\x1b]0;title\x07 \x1b[2J\x9b2J",
    "safe \u202e txt.exe \u2066 end\u2028".encode(),
    b"\xff\xfe\xed\xa0\x80",
)


def test_texts_of_tasks_arrive_as_bounded_text_without_control_characters(page: PageBrowser) -> None:
    with WrittenRun(1) as run:
        run.start()
        events = page.events(run.store.paths.run_id)
        next(events)
        for line in HOSTILE:
            run.log(STARTED_AT + 2, "worker:0", line + b"\n")
        run.append(Noticed(**run.at(3), text=HOSTILE[1].decode("latin-1") + HOSTILE[2].decode()))
        followed: list[str] = []
        while len(followed) < len(HOSTILE):
            kind, data = next(events)
            followed += data["text"] if kind == "lines" else []
        run.log(STARTED_AT + 4, "worker:0", b"x" * 10_000_000 + b"\n")
        kind = ""
        while kind != "lines":
            kind, data = next(events)
        events.close()
        path = f"/api/runs/{run.store.paths.run_id}"
        answers = [
            page.get(path),
            page.get(f"{path}/lines?tail=10"),
            page.get(f"{path}/lines?before={1 << 40}"),
        ]
        documents = [[json.loads(part) for part in answer.body.splitlines()] for answer in answers]
        shown = [text for rows in reversed(documents[2]) for text in rows["text"]]
        assert answers[1].document["rows"]["text"] == shown
    assert followed == shown[:4] and shown[0] == HOSTILE[0].decode()
    assert shown[4].startswith("x" * 4096 + " … ") and data["text"][0].startswith("10.0 MB of lines skipped")
    for answer in answers:
        assert answer.headers["content-type"] in ("application/json", "application/x-ndjson")
        assert answer.headers["x-content-type-options"] == "nosniff"
    for document in documents:
        for text in strings_of(document):
            assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\u2028") and len(text) < 5_000


def test_secrets_stay_masked(orch: Orch, page: PageBrowser) -> None:
    words = ("-e", "API_TOKEN=abc-secret", "--", "sh", "-c", "exit 3", "--password=abc-secret")
    assert orch("up", "-q", "-n", "1", *words).code == 3
    run = orch.run_dir().name
    paths = (
        "/api/runs",
        f"/api/runs/{run}",
        f"/api/runs/{run}/lines",
        f"/api/compare?run={run}&run={write_run('a').name}",
    )
    bodies = [page.get(path).text for path in paths]
    assert not any("abc-secret" in body for body in bodies)
    assert "--password" in bodies[0] and "API_TOKEN" in bodies[1]


def test_run_of_another_version_or_user_is_named(page: PageBrowser) -> None:
    newer = write_run("newer")
    change_version(newer / "run.json", 99)
    (row,) = page.read("/api/runs")["runs"]
    assert (row["state"], row["id"]) == ("unknown", newer.name) and "newer orch" in row["problem"]
    answer = page.get(f"/api/runs/{newer.name}")
    assert answer.status != 200 and "newer orch" in answer.document["error"]


@needs_root
def test_run_of_another_user_is_not_shown(page: PageBrowser) -> None:
    foreign = write_run("foreign")
    os.chown(foreign, ORDINARY, ORDINARY)
    listed = page.read("/api/runs")
    assert listed["runs"] == [] and foreign.name in listed["skipped"][0]
    for rest in ("", "/lines?tail=10", "/feed?state=1.1.0"):
        assert page.get(f"/api/runs/{foreign.name}{rest}").status == 404


def test_run_that_is_lost_while_somebody_looks_is_shown_as_lost(orch: Orch, page: PageBrowser) -> None:
    orch.script("talks.py", "import time; print('on', flush=True); time.sleep(600)")
    assert orch("up", "-d", "--", "talks.py").code == 0
    run = orch.run_dir().name
    events = page.events(run)
    assert next(events)[1]["document"]["run"]["live"]
    supervisor = orch.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    states = (data["run"] for kind, data in events if kind == "change" and "run" in data)
    last = next(state for state in states if state["state"] == "lost")
    assert not last["live"]
    events.close()
    until(lambda: page.read("/api/runs")["runs"][0]["state"] == "lost")
    assert page.order(run, "stop").status == 404


def test_directory_in_the_place_of_a_run_is_not_taken_for_it(page: PageBrowser) -> None:
    with WrittenRun(1, name="first") as run:
        run.start()
        events = page.events(run.store.paths.run_id)
        next(events)
        place = run.store.paths.root
        place.rename(place.with_name("elsewhere"))
        shutil.copytree(place.with_name("elsewhere"), place)
        kinds = dict(events)
        assert "removed" in kinds["problem"]["problem"]


def test_run_of_more_tasks_than_the_limit_on_open_files_allows(orch: Orch) -> None:
    few = ("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh")
    server = orch.start("ui", "--port", "0", before=few)
    server.until_out("/?token=")
    page = PageBrowser(server.out.split()[0])
    with WrittenRun(300, name="wide") as run:
        run.start()
        events = page.events(run.store.paths.run_id)
        next(events)
        for task in run.tasks:
            run.log(STARTED_AT + 2, task, b"a line of %b\n" % task.encode())
        seen: list[str] = []
        while len(seen) < len(run.tasks):
            kind, data = next(events)
            assert kind != "problem", data
            seen += data["text"] if kind == "lines" else []
        events.close()


@pytest.mark.slow
def test_server_stays_small_when_a_browser_reads_a_million_lines(server: Started, page: PageBrowser) -> None:
    with WrittenRun(8, name="long") as run:
        run.start()
        for first in range(0, LINES, AT_ONCE):
            lines = b"".join(
                b"step %07d - loss: 0.1234 - a line of a log\n" % (first + n) for n in range(AT_ONCE)
            )
            run.log(STARTED_AT + 2 + first / LINES, run.tasks[first // AT_ONCE % 8], lines)
        path = f"/api/runs/{run.store.paths.run_id}"
        process = psutil.Process(server.process.pid)
        events = page.events(run.store.paths.run_id)
        next(events)
        last = page.read(f"{path}/lines?tail=10")
        before = process.memory_info().rss
        sizes = [
            len(json.loads(part)["text"])
            for part in page.get(f"{path}/lines?before={last['before']}").body.splitlines()
        ]
        assert sum(sizes) + len(last["rows"]["text"]) == LINES
        # About 3 MB; twice that if each thread keeps a heap, and keeps what is free.
        assert process.memory_info().rss - before < 4_000_000
        events.close()
