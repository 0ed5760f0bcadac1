"""The report file: what it holds, what nothing in it can be, and what its Markdown says."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

import pytest
from pages import STARTED_AT, Elements, WrittenRun, embedded

from orchestrator.client.page.assets import page_script, page_style
from orchestrator.client.page.comparison import comparison
from orchestrator.client.page.markdown import code, markdown
from orchestrator.client.page.report import report_html
from orchestrator.core.state import events

ATTACK = b"</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> javascript:alert(1)\n"


def test_report_holds_the_documents_and_the_logs() -> None:
    with WrittenRun(2) as run, WrittenRun(1, name="other") as other:
        for each in (run, other):
            each.start()
            each.log(STARTED_AT + 2, "worker:0", b"hello of " + each.store.paths.run_id.encode() + b"\n")
        pages = [run.page(), other.page()]
        data = embedded(report_html(pages))
    assert list(data) == ["runs", "log-0", "log-1", "comparison"]
    ids = [page.view.record.id for page in pages]
    assert [document["run"]["id"] for document in data["runs"]] == ids
    assert [data[f"log-{n}"]["text"] for n in range(2)] == [[f"hello of {run_id}"] for run_id in ids]
    assert [each["id"] for each in data["comparison"]["runs"]] == ids


def test_report_of_one_run_has_no_comparison() -> None:
    with WrittenRun(1) as run:
        assert list(embedded(report_html([run.page()]))) == ["runs", "log-0"]


def test_texts_of_tasks_are_data_and_never_markup() -> None:
    with WrittenRun(1) as run:
        run.start()
        run.log(STARTED_AT + 2, "worker:0", ATTACK)
        run.append(events.Noticed(**run.at(2), text=ATTACK.decode()))
        run.progress(3, "worker:0", phase="training", metrics={"</script><script>alert(2)": 1.0})
        report = report_html([run.page()])
    assert b"alert(" not in report
    elements = Elements(report.decode())
    executed = [text for attributes, text in elements.all("script") if "type" not in attributes]
    assert executed == [page_script()]
    assert embedded(report)["log-0"]["text"] == [ATTACK.decode().rstrip("\n")]


def test_strange_bytes_and_a_long_line_are_bounded_text_in_the_report() -> None:
    with WrittenRun(1) as run:
        run.start()
        for line in (b"\xff\xfe", b"\x1b[31mred\x1b]0;t\x07", "\u202etxt".encode(), b"x" * 10_000_000):
            run.log(STARTED_AT + 2, "worker:0", line + b"\n")
        report = report_html([run.page()])
    shown = embedded(report)["log-0"]["text"]
    assert shown[:3] == ["\ufffd\ufffd", "red", "\ufffdtxt"]
    assert shown[3] == "x" * 4096 + " … (10,000,000 characters)"
    assert len(report) < 1_000_000


def test_policy_allows_the_own_script_and_style_only() -> None:
    with WrittenRun(1) as run:
        elements = Elements(report_html([run.page()]).decode())
    (policy,) = [
        attributes["content"]
        for attributes, _ in elements.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    hashes = [
        f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (page_script(), page_style())
    ]
    assert policy == (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    assert [text for _, text in elements.all("style")] == [page_style()]


def test_report_loads_nothing() -> None:
    with WrittenRun(1) as run:
        elements = Elements(report_html([run.page()]).decode())
    for tag, attributes, _ in elements.found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "href", "style"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)


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


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("plain", "`plain`"),
        ("a`b", "``a`b``"),
        ("``", "``` `` ```"),
        ("two\nlines", "`two␊lines`"),
        ("\x1b[31mred", "`red`"),
        ("", ""),
    ],
)
def test_code_spans_end_where_they_should(text: str, span: str) -> None:
    assert code(text) == span


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
