"""The page in a real browser: logs, curves, rows, orders, by keyboard, and with hostile data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.client.page.comparison import comparison
from tests.e2e.local.browser import sample_documents as samples
from tests.e2e.local.browser.conftest import live_page, report_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
OpenPage = Callable[..., Any]
NAMES = samples.task_names(4)
VIEWS = ("", "logs", "failure", "plan")
SHOWN = ".log-row:visible, .task-row:visible, .block:visible"
_ATTACKS = (
    "<script>window.attacked = 1</script>",
    "</script><script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "javascript:window.attacked=1",
    "\x1b[31mred\x1b[0m \x9b2J",
    "safe \u202e txt.exe \u2066 end",
)


def _open_run(open_page: OpenPage, document: samples.Document, lines: int = 400) -> Any:
    names = [task["task"] for task in document["tasks"]]
    return open_page(report_page([document], [samples.log_rows(names or ["worker:0"], lines)]))


def _open_live(open_page: OpenPage, document: samples.Document) -> Any:
    """Open the page of a live run, whose feed is `feed`."""
    page = open_page(live_page([document["run"] | {"tasks": 4, "loss": 0.1}]))
    page.get_by_role("link", name="digits").click()
    page.wait_for_function("() => window.feed.view")
    page.evaluate("doc => feed.view.document(doc)", document)
    return page


def _live_document(**of_tasks: object) -> samples.Document:
    document = samples.run_document(state="running", live=True)
    for task in document["tasks"]:
        task |= of_tasks
    return document


def _go(page: Any, tab: str) -> None:
    page.wait_for_function("() => Orch.page && Orch.page.view && Orch.page.view.doc")
    page.evaluate("tab => Orch.go(Orch.address(Orch.page.view.id, tab))", tab)
    page.wait_for_function("tab => Orch.page.view.tab === tab", arg=tab)


def _add_lines(page: Any, rows: samples.Document, where: str = "append") -> None:
    page.evaluate("([rows, where]) => feed.view.lines(rows, where)", [rows, where])


def _until_lines(page: Any, count: int, more: str = "true") -> None:
    page.wait_for_function(f"() => Orch.page.view.logs.store.size === {count} && {more}")


def _numbered(rows: samples.Document, text: str) -> samples.Document:
    """The rows with other texts: this one, with the number of the row."""
    return rows | {"text": [text.format(number) for number, _ in enumerate(rows["text"])]}


def test_text_of_tasks_is_data(open_page: OpenPage) -> None:
    attack = " ".join(_ATTACKS)
    document = _with_text(samples.run_document(state="failed"), attack)
    document["run"] |= {"state": "failed", "live": False, "tensorboard": "javascript:window.attacked=1"}
    document["end"]["outcome"] = "failed"
    page = open_page(report_page([document], [_numbered(samples.log_rows(NAMES, 60), f"{attack} {{}}")]))
    for tab in VIEWS:
        _go(page, tab)
        page.locator(SHOWN).first.wait_for()
        shown = page.evaluate("document.body.innerText")
        assert not set(shown) & set("\x1b\x9b\u202e\u2066"), tab
        assert page.evaluate("document.querySelectorAll('img, iframe, object, #page script').length") == 0
        assert page.evaluate("[...document.links].every(link => /^(https?:|file:)/.test(link.protocol))")
    page.keyboard.press("Tab")
    assert page.evaluate("window.attacked") is None
    made = page.evaluate("Orch.el('a', {href: 'javascript:window.attacked=1'}, 'x').getAttribute('href')")
    assert made == "#"
    assert page.evaluate("Orch.link('javascript:window.attacked=1', 'x').tagName") == "SPAN"


def _with_text(document: samples.Document, text: str) -> samples.Document:
    """Return the document with `text` in every value that tasks, files or users name."""
    kept = {"id", "task", "state", "kind", "colour", "how"}

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: changed(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [changed(part, key) for part in value]
        return f"{text} {value}" if isinstance(value, str) and key not in kept else value

    return {key: value if key == "series" else changed(value) for key, value in document.items()}


def test_logs_are_searched_filtered_and_folded(open_page: OpenPage) -> None:
    page = _open_run(open_page, samples.run_document(state="failed"), lines=3000)
    _go(page, "logs")
    page.get_by_text("of 3,000 lines").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("not finite")
    page.get_by_text("of 3", exact=False).and_(page.locator(".found")).wait_for()
    page.keyboard.press("Enter")
    # Marks of the words before the last letter are replaced a moment later.
    page.locator(".log-row[aria-selected=true] mark", has_text=re.compile("^not finite$")).wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Errors").click()
    page.locator(".size", has_text="8 of 3,000 lines").wait_for()
    page.get_by_role("button", name="All", exact=False).first.click()
    page.get_by_role("button", name="Fold start-up and repeated lines").click()
    page.locator(".size", has_text="3,000 lines").wait_for()
    assert page.evaluate("Orch.page.view.logs.store.shownSize") == 3000


def test_number_of_a_match_is_that_of_the_word_that_was_typed_last(open_page: OpenPage) -> None:
    page = _open_live(open_page, _live_document())
    rows = _numbered(samples.log_rows(NAMES, 60_000), "line {:06}")
    _add_lines(page, rows)
    _go(page, "logs")
    _until_lines(page, 60_000)
    page.evaluate("() => Orch.page.view.logs.rows.moveTo(30000)")
    # The second word is typed while the lines are searched for the first.
    page.evaluate(
        """async () => {
          const {logs} = Orch.page.view, {store} = logs;
          logs.search.value = "0"; logs.onSearch();
          while (!store.stopSearch) await new Promise(ready => setTimeout(ready, 0));
          logs.search.value = "00012"; logs.onSearch();
        }"""
    )
    page.locator(".found", has_text=re.compile("^1 of 11$")).wait_for()
    _add_lines(page, rows, "prepend")
    page.locator(".found", has_text=re.compile("^12 of 22$")).wait_for()
    page.get_by_role("button", name="Errors").click()
    page.locator(".found", has_text="no match").wait_for()


def test_folded_lines_are_shown_on_demand(open_page: OpenPage) -> None:
    page = _open_run(open_page, samples.run_document(), lines=300)
    _go(page, "logs")
    page.get_by_role("button", name="Start", exact=True).click()
    fold = page.locator(".log-row", has_text="12 lines of TensorFlow's start")
    fold.wait_for()
    assert "worker:0-3" in fold.inner_text()
    assert "×4" in page.locator(".log-row", has_text="Epoch 1/10").inner_text()
    fold.click()
    page.locator(".log-row", has_text="cpu_feature_guard").first.wait_for()


def test_the_page_is_used_by_keyboard_alone(open_page: OpenPage) -> None:
    page = _open_run(open_page, samples.run_document(state="failed"), lines=2000)
    page.locator(".task-row").first.wait_for()
    for keys, tab in (("gl", "logs"), ("gf", "failure"), ("gp", "plan"), ("go", "")):
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function("tab => Orch.page.view.tab === tab", arg=tab)
    page.keyboard.press("?")
    page.locator("dialog").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert {"skip", "plot", "timeline-box", "chip", "task-box scroll wide"} <= reached
    page.locator(".plot").first.focus()
    page.keyboard.press("+")
    assert page.get_by_role("button", name="Reset zoom").first.is_visible()
    page.keyboard.press("0")
    page.keyboard.press("g")
    page.keyboard.press("l")
    page.wait_for_function("() => Orch.page.view.logs.store.size === 2000 && Orch.page.view.tab === 'logs'")
    page.keyboard.press("e")
    page.locator(".log-row[aria-selected=true]", has_text="Traceback").wait_for()


def _lines_of(page: Any, chart: str) -> str:
    """Wait until the chart is drawn. Return the expression for its lines."""
    page.wait_for_function(
        f"() => ((Orch.page.view.curves.charts.get('{chart}') || {{}}).lines || []).length"
    )
    return f"Orch.page.view.curves.charts.get('{chart}').lines"


def test_equal_lines_of_the_curves_are_one_and_labels_of_an_axis_differ(open_page: OpenPage) -> None:
    document = samples.run_document()
    for columns in document["series"]["tasks"].values():
        columns["cpu_percent"] = [0.4 + 0.001 * row for row, _ in enumerate(columns["time"])]
    page = _open_run(open_page, document)
    assert page.evaluate(f"{_lines_of(page, 'loss')}.length") == 1
    label = page.locator(".plot").first.get_attribute("aria-label")
    assert label.startswith("Loss; last values: worker:0-3 0.")
    _lines_of(page, "cpu_percent")
    labels = page.evaluate("Orch.page.view.curves.charts.get('cpu_percent').plot.axes[1]._values")
    assert len(set(labels)) == len(labels) > 2 and labels[-1].endswith(" %")


def test_curves_of_two_runs_are_never_merged(open_page: OpenPage) -> None:
    """Two runs with the same seed have the same loss at the same steps, at other times."""
    documents = [samples.run_document(), samples.run_document()]
    documents[1]["run"] |= {"id": "digits-2", "name": "again"}
    for columns in documents[1]["series"]["tasks"].values():
        columns["time"] = [2 * seconds for seconds in columns["time"]]
    page = open_page(report_page(documents, [], comparison(documents)))
    assert page.evaluate(f"{_lines_of(page, 'loss')}.length") == 2


def test_a_curve_has_a_gap_between_attempts_and_a_mark_leads_to_its_lines(open_page: OpenPage) -> None:
    page = _open_run(open_page, samples.run_document(state="failed", points=12), lines=2000)
    first = f"{_lines_of(page, 'loss')}[0].values"
    after = f"{first}.slice({first}.findIndex(value => value === null))"
    assert page.evaluate(f"{first}.filter(value => value === null).length") > 10
    assert page.evaluate(f"{after}.filter(value => typeof value === 'number').length") == 6
    page.locator(".event", has_text="exit 1: ValueError").locator("a").click()
    page.locator(".log-row[aria-selected=true]", has_text="Traceback").wait_for()
    # The same address in a page whose lines are still on their way.
    page.reload()
    page.locator(".log-row[aria-selected=true]", has_text="Traceback").wait_for()


def test_row_of_a_live_task_changes(open_page: OpenPage) -> None:
    """The time of an unchanged task still advances. Restarts are counted."""
    page = _open_live(open_page, _live_document(uptime_s=20.0))
    changes = [{"task": "worker:1", "state": "failed"}, {"task": "worker:2", "restarts": 3}]
    page.evaluate("delta => feed.view.change(delta)", {"tasks": changes})
    later = re.compile(r"^(2[1-9] s|[3-9]\d s|\d+ min.*)$")
    page.locator(".task-row", has_text="worker:0").locator(".uptime", has_text=later).wait_for()
    assert page.locator(".task-row", has_text="worker:1").locator(".uptime").inner_text() == "20 s"
    page.locator(".task-row", has_text="worker:2").locator(".restarts", has_text=re.compile("^3$")).wait_for()


@pytest.mark.parametrize("live", [True, False])
def test_headings_are_above_their_columns(open_page: OpenPage, live: bool) -> None:
    document = samples.run_document(state="running" if live else "succeeded", live=live)
    for task in document["tasks"]:
        task |= {"restarts": 1, "host": "node-1.example"}
    page = _open_live(open_page, document)
    page.locator(".task-row .loss").first.wait_for()
    for column in ("progress", "loss", "pid"):
        head, row = (page.locator(f".{each} .{column}").first for each in ("task-head", "task-row"))
        assert head.bounding_box()["x"] == pytest.approx(row.bounding_box()["x"], abs=1)


def test_runs_without_data_and_with_strange_data_are_shown(open_page: OpenPage) -> None:
    empty = samples.run_document(0, state="lost")
    empty |= {"series": {"metrics": [], "tasks": {}}, "timeline": {"attempts": [], "spans": [], "marks": []}}
    empty |= {"plan": {}, "end": None}
    page = open_page(report_page([empty]))
    page.get_by_text("lost").first.wait_for()
    strange = samples.run_document()
    for columns in strange["series"]["tasks"].values():
        columns["loss"] = [None if row % 3 else 1e30 for row, _ in enumerate(columns["loss"])]
        columns["metrics"]["accuracy"] = [None] * len(columns["time"])
        columns["time"].reverse()
    strange["timeline"]["marks"].append(
        {"task": "worker:0", "time": 40.0, "kind": "nan", "text": "loss is nan"}
    )
    strange["tasks"][0]["progress"]["bad_loss"] = {"value": "nan", "epoch": 1, "step": 4}
    page = _open_run(open_page, strange)
    page.locator(".cell.loss.bad", has_text="nan").wait_for()
    page.locator(".event", has_text="loss is nan").wait_for()


def test_new_lines_do_not_move_what_is_read(open_page: OpenPage) -> None:
    document = _live_document()
    page = _open_live(open_page, document)
    _add_lines(page, samples.log_rows(NAMES, 3000))
    _go(page, "logs")
    at_end = "Orch.page.view.logs.rows.isAtEnd"
    _until_lines(page, 3000, at_end)
    page.evaluate("() => Orch.page.view.logs.rows.moveTo(1000)")
    first = "() => Orch.page.view.logs.store.line(Math.ceil(Orch.page.view.logs.rows.first)).text"
    before = page.evaluate(first)
    _add_lines(page, samples.log_rows(NAMES, 100))
    _add_lines(page, _numbered(samples.log_rows(NAMES, 5000), "older {}"), "prepend")
    _until_lines(page, 8100)
    assert page.evaluate(first) == before
    page.get_by_role("button", name="100 new lines").click()
    page.wait_for_function(f"() => {at_end}")
    _add_lines(page, samples.log_rows(NAMES, 50))
    _until_lines(page, 8150, at_end)
    assert page.evaluate("feed.opened") == document["run"]["id"]


def test_orders_are_confirmed_and_name_run_and_task(open_page: OpenPage) -> None:
    document = _live_document()
    run_id = document["run"]["id"]
    page = _open_live(open_page, document)
    page.get_by_role("button", name="Stop…").click()
    page.locator("dialog", has_text=run_id).get_by_role("button", name="Cancel").click()
    assert page.evaluate("feed.sent") == []
    page.get_by_role("button", name="Kill worker:2").click()
    dialog = page.locator("dialog", has_text="worker:2")
    dialog.get_by_label("Signal").select_option("SIGKILL")
    dialog.get_by_role("button", name="Send a signal").click()
    dialog.wait_for(state="detached")
    assert page.evaluate("feed.sent") == [[run_id, "kill", {"task": "worker:2", "signal": "SIGKILL"}]]
    page.evaluate("feed.view.change({tasks: [{task: 'worker:2', state: 'failed'}]})")
    page.locator(".task-row", has_text="worker:2").get_by_text("failed").wait_for()


def test_only_visible_rows_are_in_the_document(open_page: OpenPage) -> None:
    names = samples.task_names(200)
    page = open_page(report_page([samples.run_document(200, points=20)], [samples.log_rows(names, 200_000)]))
    _go(page, "logs")
    _until_lines(page, 200_000)
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    page.evaluate("() => Orch.page.view.logs.rows.moveTo(100000)")
    page.wait_for_function("() => Orch.page.view.logs.rows.from > 99000")
    page.locator(".log-row:visible").nth(20).wait_for()
