"""Reports that `orch report` has written and the pages of `orch ui`, of real runs, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from orch_command import Orch, Started
from waiting import until

from tests.e2e.local.browser.conftest import accessibility_faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("browser")]
OpenPage = Callable[..., Any]
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
VIEWS = ("", "logs", "failure", "plan")
# Prints what Keras prints, and ends as its argument says. A run of one second has three points of a curve.
FITS = """
import os, sys, time
how, task, attempt = sys.argv[1], os.environ["ORCH_TASK"], os.environ["ORCH_ATTEMPT"]
print("2026-11-23 09:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.")
epoch = 0
while not os.path.exists("go") if how == "talks" else epoch < 3:
    epoch += 1
    print(f"Epoch {epoch}/{9999 if how == 'talks' else 3}", flush=True)
    for step in range(1, 6):
        time.sleep(0.15)
        loss = 1 / (epoch + step / 5)
        print(f"{step}/5 ━━━━━━━━━━━━━━━━━━━━ 0s 150ms/step - accuracy: 0.9123 - loss: {loss:.4f}", flush=True)
    print(f"WARNING: a line about epoch {epoch} of {task}", flush=True)
if task == "worker:1" and (how == "fails" or how == "restarts" and attempt == "1"):
    raise ValueError("expected 784 </script><script>window.attacked = 1</script>")
if how == "hangs":
    time.sleep(600)
"""


def start(orch: Orch, how: str, *words: str) -> str:
    """Start a run, and return its id."""
    orch.script("fits.py", FITS)
    done = orch("up", "-d", "--name", how, "-n", "2", *words, "--", "fits.py", how)
    assert done.code == 0, done.err
    return done.out.strip()


def show(page: Any, run: str, view: str) -> None:
    page.evaluate("([run, view]) => Orch.go(Orch.address(run, view))", [run, view])
    page.wait_for_function(
        "([run, view]) => Orch.page.view.id === run && Orch.page.view.tab === view && Orch.page.view.doc",
        arg=[run, view],
    )
    page.locator(".log-row:visible, .task-row:visible, .block:visible, .nothing:visible").first.wait_for()


def looks(page: Any, what: str) -> None:
    """Check what is shown at both widths, light and dark."""
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        look(page, f"{what} {width} {scheme}")


def look(page: Any, what: str) -> None:
    assert accessibility_faults(page) == [], what
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), what
    assert page.evaluate("window.attacked") is None


def test_reports_of_real_runs(open_page: OpenPage, orch: Orch) -> None:
    """Success, restart, failure, hang, and all of them compared."""
    runs = [
        start(orch, "succeeds"),
        start(orch, "restarts", "--max-restarts", "1"),
        start(orch, "fails"),
        start(orch, "hangs", "--stall-timeout", "2s"),
    ]
    assert [orch("wait", run).code for run in runs] == [0, 0, 1, 124]
    for number, run in enumerate(runs):
        assert orch("report", run, "-o", f"{number}.html").code == 0
        page = open_page(orch.directory / f"{number}.html")
        for view in VIEWS:
            show(page, run, view)
            looks(page, f"report of {run} {view}")
    assert orch("report", *runs, "-o", "all.html").code == 0
    page = open_page(orch.directory / "all.html")
    page.locator(".chart canvas").first.wait_for()
    looks(page, "comparison")
    page.get_by_role("link", name="orch").click()
    page.locator(".runs tbody tr").nth(3).wait_for()
    looks(page, "runs of a report")


@pytest.fixture
def address(orch: Orch) -> Iterator[str]:
    """The address of a server, which a test names before `open_page`: the browser leaves first."""
    server: Started = orch.start("ui", "--port", "0")
    server.until_out("/?token=")
    yield server.out.split()[0]
    assert server.err.count("\n") == 1


# Collects how much of the window moved without an input.
_SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) {
      window.shifts.push([entry.value, ...entry.sources.map(({node}) => node && (node.className || node.nodeName))]);
    }
  }).observe({type: "layout-shift"});
}"""


def test_live_pages_grow_without_moving(orch: Orch, address: str, open_page: OpenPage) -> None:
    other, run = start(orch, "succeeds"), start(orch, "talks")
    assert orch("wait", other).code == 0
    page = open_page(address)
    page.locator(".runs tbody tr").nth(1).wait_for()
    looks(page, "list of runs")
    page.get_by_role("link", name="talks").click()
    page.wait_for_function(
        "() => Orch.page.view.series && Orch.page.view.series.last('worker:1', 'loss') !== null"
    )
    page.wait_for_function("() => Orch.page.view.curves.charts.size === 5")
    page.evaluate(_SHIFTS)
    for view in ("", "logs"):
        show(page, run, view)
        # Elsewhere than at its end, the list of lines stays where it is.
        page.evaluate("() => Orch.page.view.logs.rows.moveTo(3)")
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 860})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(600)  # the window's own change moves everything
            page.evaluate("() => { window.shifts = []; }")
            before = page.evaluate("Orch.page.view.logs.store.size")
            page.wait_for_function("before => Orch.page.view.logs.store.size > before + 20", arg=before)
            assert page.evaluate("window.shifts") == [], (view, width)
            look(page, f"live {view} {width} {scheme}")
    show(page, run, "plan")
    looks(page, "live plan")
    page.evaluate("ids => Orch.go('#/compare?' + ids.map(id => `run=${id}`).join('&'))", [other, run])
    page.locator(".chart canvas").first.wait_for()
    looks(page, "live comparison")


def test_live_run_is_followed_and_stopped_by_keyboard(orch: Orch, address: str, open_page: OpenPage) -> None:
    run = start(orch, "talks")
    page = open_page(address)
    page.locator(".runs tbody tr").first.wait_for()
    press_until(page, "Tab", "Orch.page && document.activeElement.textContent === 'talks'")
    page.keyboard.press("Enter")
    page.locator(".task-row", has_text="worker:1").wait_for()
    for key in "gl":
        page.keyboard.press(key)
    # A search goes to a line that is there. It does not jump when one arrives later.
    page.wait_for_function("() => Orch.page.view.logs.store.size > 40")
    page.keyboard.press("/")
    page.wait_for_function("document.activeElement === Orch.page.view.logs.search")
    page.keyboard.type("about epoch 1 of")
    page.locator(".log-row[aria-selected=true] mark", has_text="about epoch 1 of").wait_for()
    page.keyboard.press("Escape")
    order_by_keyboard(page, "Stacks…")
    page.get_by_role("link", name="Failures").wait_for()
    for key in "gf":
        page.keyboard.press(key)
    page.locator("pre", has_text="fits.py").first.wait_for()
    looks(page, "live stacks")
    order_by_keyboard(page, "Stop…")
    page.locator(".run-state", has_text="stopped").wait_for()
    for key in "go":
        page.keyboard.press(key)
    page.locator(".outcome .headline").wait_for()
    looks(page, "stopped")
    assert orch.result()["outcome"] == "stopped"
    assert page.evaluate("Orch.page.view.id") == run


def press_until(page: Any, key: str, condition: str) -> None:
    for _ in range(100):
        page.keyboard.press(key)
        if page.evaluate(condition):
            return
    raise AssertionError(f"{key} never led to {condition}")


def order_by_keyboard(page: Any, button: str) -> None:
    """Give an order, and confirm it."""
    press_until(page, "Tab", f"document.activeElement.textContent === '{button}'")
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    press_until(page, "Tab", "document.activeElement.type === 'submit'")
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for(state="detached")


def test_page_says_that_its_server_has_ended_and_goes_on_with_the_next(
    open_page: OpenPage, orch: Orch
) -> None:
    """The browser keeps the cookie, but the next server has another: the page says which address to open."""
    start(orch, "talks")
    server = orch.start("ui", "--port", "0")
    server.until_out("/?token=")
    page = open_page(server.out.split()[0], errors_are_expected=True)
    beside = page.context.new_page()  # the list of runs
    beside.goto(page.url)
    page.get_by_role("link", name="talks").click()
    page.locator(".task-row", has_text="worker:1").wait_for()
    server.process.terminate()
    server.finish()
    for each in (page, beside):
        each.locator(".problem-bar", has_text="does not answer").wait_for()
    port = server.out.partition("/?")[0].rpartition(":")[2]
    second = orch.start("ui", "--port", port)
    second.until_out("/?token=")
    for each in (page, beside):
        each.locator(".problem-bar", has_text="opened for another server").wait_for()
    page.goto(second.out.split()[0])
    page.get_by_role("link", name="talks").click()
    page.locator(".task-row", has_text="worker:1").wait_for()
    until(lambda: orch.status()["run"]["state"] == "running")
