"""The report file: what it holds, what nothing in it can be, and what its Markdown says."""

from __future__ import annotations

import hashlib
import math
import random
import re
from base64 import b64encode

import pytest
from pages import STARTED_AT, Elements, WrittenRun, embedded

from orchestrator.client.page.assets import page_script, page_style
from orchestrator.client.page.comparison import comparison
from orchestrator.client.page.markdown import code, markdown
from orchestrator.client.page.report import report_html
from orchestrator.core.state import events
from orchestrator.core.state.events import Progress
from orchestrator.store.runs.history_file import HistoryFile

ATTACK = b"</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> javascript:alert(1)\n"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The report of a run with hostile texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with WrittenRun(1) as run:
            run.start()
            for line in (ATTACK, b"\xff\xfe\n", b"\x1b[31mred\x1b]0;t\x07\n", "\u202etxt\n".encode()):
                run.log(STARTED_AT + 2, "worker:0", line)
            run.log(STARTED_AT + 2, "worker:0", b"x" * 10_000_000 + b"\n")
            run.append(events.Noticed(**run.at(2), text=ATTACK.decode()))
            run.progress(3, "worker:0", phase="training", metrics={"</script><script>alert(2)": 1.0})
            return report_html([run.page()])


def test_texts_of_tasks_are_data_and_never_markup(report: bytes) -> None:
    assert b"alert(" not in report
    scripts = Elements(report.decode()).all("script")
    assert [text for attributes, text in scripts if "type" not in attributes] == [page_script()]


def test_lines_are_bounded_text_in_the_report(report: bytes) -> None:
    data = embedded(report)
    assert list(data) == ["runs", "log-0"], "a report of one run has no comparison"
    long = "x" * 4096 + " … (10,000,000 characters)"
    assert data["log-0"]["text"] == [ATTACK.decode().rstrip(), "\ufffd\ufffd", "red", "\ufffdtxt", long]
    assert len(report) < 1_000_000


def test_policy_allows_the_own_script_and_style_only(report: bytes) -> None:
    elements = Elements(report.decode())
    (policy,) = [
        attributes["content"]
        for attributes, _ in elements.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    script, style = (
        f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (page_script(), page_style())
    )
    allowed = f"default-src 'none'; script-src {script}; style-src {style}; img-src data:;"
    assert policy == f"{allowed} base-uri 'none'; form-action 'none'"
    assert [text for _, text in elements.all("style")] == [page_style()]


def test_report_loads_nothing(report: bytes) -> None:
    for tag, attributes, _ in Elements(report.decode()).found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "href", "style"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)


def test_report_of_two_runs_holds_their_documents_logs_and_comparison() -> None:
    with WrittenRun(2) as run, WrittenRun(1, name="other") as other:
        for each in (run, other):
            each.start()
            each.log(STARTED_AT + 2, "worker:0", b"hello of " + each.store.paths.run_id.encode() + b"\n")
        data = embedded(report_html([run.page(), other.page()]))
    assert list(data) == ["runs", "log-0", "log-1", "comparison"]
    ids = [document["run"]["id"] for document in data["runs"]]
    assert [data[f"log-{n}"]["text"] for n in range(2)] == [[f"hello of {run_id}"] for run_id in ids]
    assert [each["id"] for each in data["comparison"]["runs"]] == ids


def test_comparison_names_what_differs() -> None:
    with WrittenRun(1) as run, WrittenRun(2, name="other") as other:
        run.start(COMMON="1", ONLY_HERE="1")
        other.start(COMMON="2")
        run.progress(2, "worker:0", phase="training", epoch=1, step=3, loss=0.5, metrics={"accuracy": 0.9})
        run.append(events.VersionsFound(**run.at(2), task="worker:0", versions={"keras": "3.15.1"}))
        found = comparison([run.page().document(), other.page().document()])
    assert found["differences"] == [
        {"kind": "version", "name": "keras", "values": ["3.15.1", None]},
        {"kind": "environment", "name": "ONLY_HERE", "values": ["set", None]},
    ]
    final = {row["name"]: row["values"] for row in found["final"]}
    assert final == {"epoch": [1, None], "step": [3, None], "loss": [0.5, None], "accuracy": [0.9, None]}


def test_code_spans_end_where_they_should() -> None:
    spans = {"plain": "`plain`", "a`b": "``a`b``", "``": "``` `` ```", "\x1b[31mred": "`red`", "": ""}
    assert {text: code(text) for text in spans} == spans
    assert code("two\nlines") == "`two␊lines`"


def test_markdown_keeps_texts_of_tasks_in_code() -> None:
    with WrittenRun(1) as run:
        run.start()
        run.progress(2, "worker:0", phase="training", step=1, loss=0.5, metrics={"@team | <b> ![x](y)": 0.5})
        run.exit(3, "worker:0", exit_code=3)
        run.end(4, "failed", 3)
        page = run.page()
        text = markdown([page.document(), page.document()])
    for line in text.split("\n"):
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
        assert not re.search(r"@team|<b>|!\[", outside), line
    assert "### `job`: failed" in text and "### Comparison" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


LINES_A_STEP = 20


@pytest.mark.parametrize("steps", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_report_of_8_tasks_is_under_500_bytes_a_step(steps: int) -> None:
    """A report of 10,000 steps and 200,000 lines, 5 MB, can be sent by mail."""
    chance = random.Random(1)
    with WrittenRun(8) as run:
        run.start()
        history = HistoryFile(run.store.directory, run.store.paths.samples.name)
        for step in range(steps):
            loss = 2 * math.exp(-step / 3000) + 0.1 * chance.random()
            usage = {task: {"cpu_percent": 100 * chance.random(), "memory_bytes": step} for task in run.tasks}
            place = {"phase": "training", "epoch": 1 + step // 1000, "step": step % 1000, "steps": 1000}
            progress = {
                task: Progress(
                    **place,
                    loss=loss + 0.01 * chance.random(),
                    metrics={"accuracy": chance.random()},
                    steps_per_s=100 * chance.random(),
                )
                for task in run.tasks
            }
            history.add(2.0 + step, 1, progress, usage)
            lines = [
                b"step %d - loss: %.4f - %.2f ms" % (step, loss, chance.random()) for _ in range(LINES_A_STEP)
            ]
            run.log(STARTED_AT + 2 + step, run.tasks[step % 8], b"\n".join(lines) + b"\n")
        history.close()
        run.end(steps + 3.0)
        report = report_html([run.page()])
    data = embedded(report)
    assert len(data["log-0"]["text"]) == steps * LINES_A_STEP
    for columns in data["runs"][0]["series"]["tasks"].values():
        assert len(columns["loss"]) >= 1000 and columns["time"][-1] > steps - 10
    assert len(report) < 500 * steps
