"""Runs on disk for the tests of pages: events, log lines and history, written as a supervisor writes them."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from making import attempt_planned, event, exited, planned_task, started
from run_records import make_run, view_of

from orchestrator.client.page.document import RunPage
from orchestrator.core.state import events
from orchestrator.core.state.events import Event, Progress
from orchestrator.store.runs.run_end import result_from_events
from orchestrator.store.runs.writer import RunStore

STARTED_AT = 1_763_900_000.0


class WrittenRun:
    """A run whose clocks both begin at its start. `seconds` are since then. It is live until close()."""

    def __init__(self, tasks: int = 2, name: str = "job") -> None:
        self.tasks = [f"worker:{index}" for index in range(tasks)]
        self.store: RunStore = make_run(name, started_at=STARTED_AT)
        self.index = (self.store.paths.logs / "index").open("ab")
        self._sizes = dict.fromkeys(self.tasks, 0)

    def __enter__(self) -> WrittenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.close()
        self.store.close()

    def at(self, seconds: float) -> dict[str, float]:
        return {"at": STARTED_AT + seconds, "mono": STARTED_AT + seconds}

    def append(self, *happened: Event) -> None:
        for each in happened:
            self.store.append(each)

    def start(self, attempt: int = 1, seconds: float = 0.0, **env: str) -> None:
        """Plan and start all tasks, which listen a second later."""
        plans = [
            planned_task(
                task,
                address=f"127.0.0.1:{9000 + n}",
                argv=("python", "train.py"),
                env=env,
                log=str(self.store.paths.task_log(task)),
            )
            for n, task in enumerate(self.tasks)
        ]
        cluster = {"worker": tuple(str(plan.address) for plan in plans)}
        mono = STARTED_AT + seconds
        self.append(attempt_planned(plans, attempt, mono).model_copy(update={"cluster": cluster}))
        self.append(*(started(task, mono) for task in self.tasks))
        self.append(*(event(events.TaskReady, mono + 1, task=task) for task in self.tasks))

    def progress(self, seconds: float, task: str, **values: Any) -> None:
        self.append(events.TaskProgressed(**self.at(seconds), task=task, progress=Progress(**values)))

    def exit(self, seconds: float, task: str, exit_code: int = 0, order: int = 0) -> None:
        self.append(exited(task, exit_code, mono=STARTED_AT + seconds, order=order))

    def end(self, seconds: float, outcome: str = "succeeded", exit_code: int = 0) -> None:
        self.append(events.RunEndedEvent(**self.at(seconds), outcome=outcome, exit_code=exit_code))

    def log(self, at: float, task: str, data: bytes) -> None:
        """Append to the log of a task what arrives at `at` (Unix seconds)."""
        with self.store.paths.task_log(task).open("ab") as out:
            out.write(data)
        self.index.write(b"%.6f %b 1 %d %d\n" % (at, task.encode(), self._sizes[task], len(data)))
        self.index.flush()
        self._sizes[task] += len(data)

    def page(self) -> RunPage:
        made = RunPage(view_of(self.store.paths))
        made.refresh()
        return made


def write_run(name: str = "job", *, code: int = 0, is_lost: bool = False) -> Path:
    """Write a run of two tasks and return its directory. worker:0 and the run exit with `code`."""
    with WrittenRun(2, name=name) as run:
        run.start()
        usage = {"worker:0": {"cpu_percent": 1.0, "memory_bytes": 4096}}
        run.store.write_sample(at=0, mono=STARTED_AT + 2, tasks=usage, attempt=1)
        for number, task in enumerate(run.tasks):
            run.log(STARTED_AT + 2, task, b"a line of %b\nand the end" % task.encode())
            run.progress(3, task, phase="training", step=7, loss=0.5)
            if not is_lost:
                run.exit(4, task, code, order=number)
        if not is_lost:
            run.end(5, "failed" if code else "succeeded", code)
            view = view_of(run.store.paths)
            view.refresh()
            run.store.write_result(result_from_events(view.record.id, view.state, view.record.directory))
    return run.store.paths.root


def strings_of(value: object) -> Iterable[str]:
    """Every text of a document, its keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *strings_of(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings_of(each)


class Elements(HTMLParser):
    """The elements of a report: (tag, attributes, text)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._is_open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def embedded(report: bytes) -> dict[str, Any]:
    scripts = Elements(report.decode()).all("script")
    return {
        str(attributes["id"]): json.loads(gzip.decompress(b64decode(text)))
        for attributes, text in scripts
        if "id" in attributes
    }
