"""`orch ui` as a process: what it shows of any run, its orders, its end, and what others get of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from acting_as import as_user, needs_root
from damage import DAMAGES
from orch_command import ORCH, Orch, Started
from page_client import PageBrowser
from pages import STARTED_AT, WrittenRun, embedded, strings_of, write_run
from users import ORDINARY
from waiting import PATIENCE_S, until, until_gone

from orchestrator.core.state.events import Noticed
from orchestrator.ui.peers import address_of, may_connect

LASTS = "import time; print('on', flush=True); time.sleep(600)"
LINES = 1_000_000
AT_ONCE = 100


def browser_of(server: Started) -> PageBrowser:
    server.until_out("/?token=")
    return PageBrowser(server.out.split()[0])


@pytest.fixture(scope="module")
def server(shared_orch: Orch) -> Started:
    """The server of most tests. It shows the runs of all of them."""
    return shared_orch.start("ui", "--port", "0")


@pytest.fixture(scope="module")
def page(server: Started) -> PageBrowser:
    return browser_of(server)


@pytest.fixture
def runs(shared_orch: Orch, page: PageBrowser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the server's runs. Runs that are written by hand are there, and are removed afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(shared_orch.state))
    directory = shared_orch.state / "orch/runs"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def start_run(orch: Orch, *words: str) -> str:
    done = orch("up", "-d", *words, "--", orch.script("lasts.py", LASTS))
    assert done.code == 0, done.err
    return done.out.strip()


def listed(page: PageBrowser, *runs: Path) -> dict[str, Any]:
    """Return the list of runs once it has these. The server keeps it for half a second."""

    def document() -> Any:
        found = page.read("/api/runs")
        return found if {row["id"] for row in found["runs"]} == {run.name for run in runs} else None

    return until(document)


def until_line(events: Iterator[tuple[str, dict[str, Any]]], text: str) -> list[str]:
    """Return the lines that arrive, up to the one that contains `text`."""
    texts: list[str] = []
    for kind, data in events:
        texts += data["rows"]["text"] if kind == "opened" else data["text"] if kind == "lines" else []
        if any(text in line for line in texts):
            return texts
    raise AssertionError(f"not received: {text}")


# -- what arrives


def test_fifty_browsers_get_every_line_and_the_end(runs: Path, page: PageBrowser, server: Started) -> None:
    with WrittenRun(1) as run:
        run.start()
        run.log(STARTED_AT + 2, "worker:0", b"first\n")
        readers = [page.events(run.store.paths.run_id) for _ in range(50)]
        for reader in readers:
            assert until_line(reader, "first") == ["first"]
        run.log(STARTED_AT + 3, "worker:0", b"second <script>alert(1)</script> \x1b[31mred\n")
        for reader in readers:
            assert until_line(reader, "second") == ["second <script>alert(1)</script> red"]
        run.end(4)
        states = (data["run"]["state"] for kind, data in readers[0] if kind == "change" and "run" in data)
        assert "succeeded" in states
    # A run that has ended shows the same lines, once.
    last = page.read(f"/api/runs/{run.store.paths.run_id}/lines?tail=100")
    assert last["rows"]["text"] == ["first", "second <script>alert(1)</script> red"]
    assert last["cursor"].endswith("e")
    for reader in readers:
        reader.close()
    # The server keeps nothing of those who have left.
    process = psutil.Process(server.process.pid)
    until(
        lambda: not [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    )


def test_removed_run_is_reported_to_those_who_look(runs: Path, page: PageBrowser) -> None:
    """A directory that is put in its place is not taken for it."""
    for is_replaced in (True, False):
        with WrittenRun(1) as run:
            run.start()
            name, place = run.store.paths.run_id, run.store.paths.root
            events = page.events(name)
            next(events)
            place.rename(place.with_name("elsewhere"))
            if is_replaced:
                shutil.copytree(place.with_name("elsewhere"), place)
            assert "removed" in dict(events)["problem"]["problem"]
        shutil.rmtree(runs)
        runs.mkdir(0o700)
    until(lambda: page.get(f"/api/runs/{name}").status == 404)
    listed(page)


def test_run_that_is_lost_while_somebody_looks_is_shown_as_lost(runs: Path, page: PageBrowser) -> None:
    with WrittenRun(1) as run:
        run.start()
        events = page.events(run.store.paths.run_id)
        assert next(events)[1]["document"]["run"]["live"]
    states = (data["run"] for kind, data in events if kind == "change" and "run" in data)
    assert not next(state for state in states if state["state"] == "lost")["live"]
    events.close()
    until(lambda: listed(page, run.store.paths.root)["runs"][0]["state"] == "lost")
    assert page.order(run.store.paths.run_id, "stop").status == 404


def test_run_of_more_tasks_than_the_limit_on_open_files_allows(orch: Orch) -> None:
    server = orch.start("ui", "--port", "0", before=("sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh"))
    page = browser_of(server)
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


# -- orders


def test_orders_do_what_the_verbs_do(runs: Path, shared_orch: Orch, page: PageBrowser) -> None:
    run = start_run(shared_orch, "-n", "2")
    shared_orch.pids()
    assert page.order(run, "kill", task="worker:1", signal="STOP").document["ok"]
    until(lambda: [task["paused"] for task in shared_orch.status()["tasks"]] == [False, True])
    assert page.order(run, "kill", task="worker:1", signal="CONT").document["ok"]
    for wrong in (
        {"task": "worker:7"},
        {"task": "worker:1", "signal": "NOSUCH"},
        {"task": "worker:1", "more": 1},
    ):
        assert page.order(run, "kill", **wrong).status == 409, wrong
    assert page.order(run, "nothing").status == 409
    assert page.order(run, "stacks").document["ok"]
    taken = until(lambda: page.read(f"/api/runs/{run}")["stacks"])
    assert taken[0]["why"] == "on request" and "lasts.py" in taken[0]["tasks"]["worker:1"]["text"]
    # An order without its header changes nothing.
    path = f"/api/runs/{run}/orders/stop"
    json_only, header_only = {"content-type": "application/json"}, {"X-Orch": "1"}
    assert page.request("POST", path, json_only, b"{}").status == 403
    assert page.request("POST", path, header_only, b"{}").status == 415
    assert page.request("POST", path, json_only | header_only, b" " * 100_000).status == 413
    assert page.order(run, "restart").document["ok"]
    until(lambda: shared_orch.status()["run"]["attempt"] == 2)
    assert page.order(run, "stop").document["ok"]
    assert shared_orch.result()["outcome"] == "stopped"
    ended = page.order(run, "restart")
    assert ended.status == 404
    assert "has ended" in ended.document["error"]


# -- any run


def test_any_run_has_a_page(runs: Path, page: PageBrowser) -> None:
    found = {name: write_run(f"damaged-{number}") for number, name in enumerate(DAMAGES)}
    for name, damage in DAMAGES.items():
        (found[name] / "control").touch()
        damage(found[name])
    found |= {"whole": write_run("whole"), "lost": write_run("lost", is_lost=True)}
    found["copy"] = shutil.copytree(found["whole"], runs / "copy")
    for name in ("pruned", "no logs"):
        found[name] = write_run(name.replace(" ", "-"))
        shutil.rmtree(found[name] / "logs")
    for file in ("events.jsonl", "samples.jsonl"):
        (found["pruned"] / file).unlink()
    found["without end"] = write_run("without-end")
    for file in ("events.jsonl", "result.json"):
        (found["without end"] / file).unlink()
    states = {row["id"]: row["state"] for row in listed(page, *found.values())["runs"]}
    lost = {found["lost"].name, found["without end"].name}
    assert states == {run.name: "lost" if run.name in lost else "succeeded" for run in found.values()}
    wrong = []
    for name, run in found.items():
        path, beside = f"/api/runs/{run.name}", found["lost" if name == "whole" else "whole"]
        last = page.read(f"{path}/lines?tail=10")
        older = page.get(f"{path}/lines?before={last['before'] or 10**9}")
        shown = last["rows"]["text"] + [
            text for part in older.body.splitlines() for text in json.loads(part)["text"]
        ]
        compared = page.read(f"/api/compare?run={run.name}&run={beside.name}")["runs"]
        facts = (page.read(path)["run"]["id"], older.status, compared[0]["id"])
        has_line = "a line of worker:1" in shown or name in ("pruned", "no logs")
        if facts != (run.name, 200, run.name) or not has_line:
            wrong.append((name, facts, shown))
    assert not wrong, wrong
    remarks = {name: page.read(f"/api/runs/{run.name}")["run"]["remarks"] for name, run in found.items()}
    assert "run.json is damaged" in remarks["run.json: missing"][0]
    assert "events.jsonl is missing or damaged" in remarks["without end"][0]
    assert "this is a copy" in remarks["copy"][0]


def test_runs_of_another_version_or_mode_do_not_hide_the_others(runs: Path, page: PageBrowser) -> None:
    run, newer = write_run(), write_run("newer")
    document = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**document, "schema_version": 99}))
    other = runs / "other-20260101T000000Z-0000"
    other.mkdir()
    other.chmod(0o777)
    document = listed(page, run, newer)
    rows = {row["id"]: row for row in document["runs"]}
    assert "other-2026" in document["skipped"][0]
    assert rows[newer.name]["state"] == "unknown" and "newer orch" in rows[newer.name]["problem"]
    answer = page.get(f"/api/runs/{newer.name}")
    assert answer.status != 200 and "newer orch" in answer.document["error"]


@needs_root
def test_run_of_another_user_is_not_shown(runs: Path, page: PageBrowser) -> None:
    foreign = write_run("foreign")
    os.chown(foreign, ORDINARY, ORDINARY)
    assert foreign.name in listed(page)["skipped"][0]
    for rest in ("", "/lines?tail=10", "/feed?state=1.1.0"):
        assert page.get(f"/api/runs/{foreign.name}{rest}").status == 404


HOSTILE = (
    b"</script><script>alert(1)</script> javascript:alert(1)",
    b"\x1b[31mred\x1b]0;title\x07 \x1b[2J\x9b2J",
    "safe \u202e txt.exe \u2066 end\u2028".encode(),
    b"\xff\xfe\xed\xa0\x80",
)


def test_texts_of_tasks_arrive_as_bounded_text_without_control_characters(
    runs: Path, page: PageBrowser
) -> None:
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
        (skipped,) = until_line(events, "MB")
        events.close()
        path = f"/api/runs/{run.store.paths.run_id}"
        addresses = (path, f"{path}/lines?tail=10", f"{path}/lines?before={1 << 40}")
        answers = [page.get(address) for address in addresses]
        documents = [[json.loads(part) for part in answer.body.splitlines()] for answer in answers]
        shown = [text for rows in reversed(documents[2]) for text in rows["text"]]
        assert answers[1].document["rows"]["text"] == shown
    assert followed == shown[:4] and shown[0] == HOSTILE[0].decode()
    assert shown[4].startswith("x" * 4096 + " … ") and skipped.startswith("10.0 MB of lines skipped")
    for answer in answers:
        assert answer.headers["content-type"] in ("application/json", "application/x-ndjson")
        assert answer.headers["x-content-type-options"] == "nosniff"
    for text in strings_of(documents):
        assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\u2028") and len(text) < 5_000


def test_secrets_stay_masked(runs: Path, shared_orch: Orch, page: PageBrowser) -> None:
    """On the page and in reports."""
    words = ("-e", "API_TOKEN=abc-secret", "--", "sh", "-c", "exit 3", "--password=abc-secret")
    assert shared_orch("up", "-q", "-n", "1", *words).code == 3
    run = shared_orch.run_dir().name
    paths = ("/api/runs", f"/api/runs/{run}", f"/api/runs/{run}/lines", f"/api/compare?run={run}")
    listed(page, shared_orch.run_dir())
    bodies = [page.get(path).text for path in paths]
    html = shared_orch("report", "-o", "-").out
    bodies += [shared_orch("report", "--markdown").out, json.dumps(embedded(html.encode()))]
    assert not any("abc-secret" in body for body in bodies)
    assert "--password" in bodies[0] and "API_TOKEN" in bodies[1] and "API_TOKEN" in bodies[-1]


@pytest.mark.slow
def test_server_stays_small_when_a_browser_reads_a_million_lines(orch: Orch) -> None:
    server = orch.start("ui", "--port", "0")
    page = browser_of(server)
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
        older = page.get(f"{path}/lines?before={last['before']}").body.splitlines()
        sizes = [len(json.loads(part)["text"]) for part in older]
        assert sum(sizes) + len(last["rows"]["text"]) == LINES
        # About 3 MB; twice that if each thread keeps a heap, and keeps what is free.
        assert process.memory_info().rss - before < 4_000_000
        events.close()


# -- who is served


def test_id_of_a_run_is_never_a_path(page: PageBrowser) -> None:
    for run in ("..%2f..%2fetc", "%2e%2e", "x%00y", "%3Cscript%3E", "a" * 3000):
        got = page.get(f"/api/runs/{run}")
        assert (got.status, got.headers["content-type"]) == (404, "application/json"), run


def listening(pid: int) -> set[str]:
    """Return the addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections("inet")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


def test_token_is_in_no_command_line_and_no_log(
    shared_orch: Orch, server: Started, page: PageBrowser
) -> None:
    token = page.address.partition("token=")[2]
    page.get("/?token=wrong")
    page.get("/nothing")
    assert token not in " ".join(psutil.Process(server.process.pid).cmdline())
    assert "token" not in server.err and listening(server.process.pid) == {"127.0.0.1"}
    holders = [path for path in shared_orch.state.rglob("*") if path.is_file() and token in path.read_text()]
    assert [path.name for path in holders] == ["server.json"]
    assert holders[0].stat().st_mode & 0o777 == 0o600


@needs_root
def test_another_user_gets_nothing_even_with_the_token(page: PageBrowser) -> None:
    def attempt() -> bytes:
        with socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(
                    f"GET /{page.address.rpartition('/')[2]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                )
                return connection.recv(100)
            except ConnectionError:
                return b""

    assert attempt().startswith(b"HTTP/1.1 303")
    assert as_user(ORDINARY + 20, attempt) == b""


def test_client_that_has_left_is_not_taken_for_the_user() -> None:
    """The kernel lists a closed socket without its user, as if it was root's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = address_of(listener.getsockname())
        with socket.create_connection(server) as connection, listener.accept()[0]:
            client = address_of(connection.getsockname())
            assert may_connect(server, client)
            connection.close()
            assert not may_connect(server, client)
    assert not may_connect(server, ("127.0.0.2", client[1]))
    assert may_connect(("192.0.2.1", 7117), ("192.0.2.2", 40_000))


# -- start and end of the server


def test_signal_ends_the_server_quietly_while_somebody_looks(orch: Orch) -> None:
    with WrittenRun(1) as run:
        run.start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            server = orch.start("ui", "--port", "0")
            events = browser_of(server).events(run.store.paths.run_id)
            next(events)
            server.signal(number)
            ended = server.finish()
            assert (ended.code, ended.err.count("\n")) == (0, 1), number
            assert not (orch.state / "orch/ui/server.json").exists()
            events.close()


def test_server_in_the_background_of_a_script_ends_by_sigterm(orch: Orch) -> None:
    """A shell without job control starts `orch ui &` with SIGINT ignored: Ctrl-C is meant for another process."""
    address, pid = orch.directory / "address", orch.directory / "pid"
    script = f"{ORCH} ui --port 0 > {address} & echo $! > {pid}; wait $!; exit $?"
    shell = subprocess.Popen(
        ["sh", "-c", script], cwd=orch.directory, env=orch.environ(), stderr=subprocess.DEVNULL
    )
    until(lambda: address.exists() and "token" in address.read_text())
    page = PageBrowser(address.read_text().split()[0])
    number = int(pid.read_text())
    try:
        os.kill(number, signal.SIGINT)
        assert page.read("/api/runs")["runs"] == []
    finally:
        os.kill(number, signal.SIGTERM)
    assert shell.wait(PATIENCE_S) == 0


def test_second_server_names_the_first(shared_orch: Orch, page: PageBrowser) -> None:
    done = shared_orch.within("ui", "--json")
    assert done.code == 0
    assert done.document["address"] == page.address
    assert shared_orch.within("ui", "--port", "1").code == 2


def test_other_machines_are_served_only_on_purpose(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in use, an impossible port, `--ui` of a detached run and a missing extra are refused, too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, said in (
            (("ui", "--host", "0.0.0.0", "--port", "0"), "--i-know"),
            (("ui", "--port", "70000"), "70000"),
            (("up", "-d", "--ui", "--", "true"), "orch ui"),
            (("ui", "--port", str(taken.getsockname()[1])), "is in use"),
        ):
            done = orch(*words)
            assert (done.code, said in done.err) == (2, True), done
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for words in (("ui",), ("up", "--ui", "--", "true")):
        done = orch.within(*words)
        assert (done.code, "pip install 'tf-orch[ui]'" in done.err) == (2, True), done
    assert orch.run_dirs() == []


def test_page_of_up_ends_with_the_last_up(orch: Orch) -> None:
    """The second command uses the server of the first, which outlives the first."""
    script = orch.script("lasts.py", LASTS)
    first = orch.start("up", "--ui", "--name", "a", "--", script)
    until(lambda: "page: http" in first.err)
    place = orch.state / "orch/ui/server.json"
    until(place.exists)
    server = json.loads(place.read_text())
    assert listening(server["pid"]) == {"127.0.0.1"}
    token = server["address"].partition("token=")[2]
    assert token and token not in " ".join(psutil.Process(server["pid"]).cmdline())
    second = orch.start("up", "--ui", "--name", "b", "--", script)
    until(lambda: "page: http" in second.err)
    assert server["address"] in first.err
    assert server["address"] in second.err
    first.signal(signal.SIGINT)
    assert first.finish().code == 130
    PageBrowser(server["address"])
    second.process.kill()
    second.finish()
    until_gone(server["pid"])


def test_tunnel_and_missing_browser_are_reported(orch: Orch) -> None:
    """--open without a browser is not an error."""
    session = {"SSH_CONNECTION": "192.0.2.1 5000 192.0.2.2 2222", "USER": "ann"}
    without = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    server = orch.start("ui", "--port", "0", "--open", env={**without, **session})
    page = browser_of(server)
    until(lambda: f"ssh -N -p 2222 -L {page.port}:127.0.0.1:{page.port} ann@192.0.2.2" in server.err)
    until(lambda: "no browser" in server.err)


def test_command_line_of_the_browser_has_no_token(orch: Orch, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o755)
    server = orch.start("ui", "--port", "0", "--open", env={"BROWSER": f"{browser} %s"})
    page = browser_of(server)
    until(opened.exists)
    address = opened.read_text().strip()
    assert page.address.partition("token=")[2] not in address
    assert page.get(address).status == 303
    assert page.get(address).status == 403
