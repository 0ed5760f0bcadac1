"""`orch ui` as a process: what it shows of real runs, its orders, its end, and what others get of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from acting_as import as_user, needs_root
from orch_command import ORCH, Orch, Started
from page_client import PageBrowser
from users import ORDINARY
from waiting import PATIENCE_S, until, until_gone

from orchestrator.ui.peers import address_of, may_connect

TALKS = """
import pathlib, time
print("first", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("second <script>alert(1)</script> \\x1b[31mred", flush=True)
time.sleep(600)
"""


def browser_of(server: Started) -> PageBrowser:
    server.until_out("/?token=")
    return PageBrowser(server.out.split()[0])


@pytest.fixture
def server(orch: Orch) -> Started:
    return orch.start("ui", "--port", "0")


@pytest.fixture
def page(server: Started) -> PageBrowser:
    return browser_of(server)


def start_run(orch: Orch, *words: str) -> str:
    orch.script("talks.py", TALKS)
    done = orch("up", "-d", *words, "--", "talks.py")
    assert done.code == 0, done.err
    return done.out.strip()


def test_new_line_and_the_end_of_a_run_arrive(orch: Orch, page: PageBrowser) -> None:
    run = start_run(orch)
    events = page.events(run)
    _, opened = next(events)
    assert opened["document"]["run"]["id"] == run
    assert [row["id"] for row in page.read("/api/runs")["runs"]] == [run]
    (orch.directory / "go").touch()
    texts = [*opened["rows"]["text"]]
    while not any("second" in text for text in texts):
        kind, data = next(events)
        texts += data["text"] if kind == "lines" else []
    assert texts == ["first", "second <script>alert(1)</script> red"]
    assert orch("down").code == 0
    state = ""
    while state != "stopped":
        kind, data = next(events)
        state = data["run"]["state"] if kind == "change" and "run" in data else state
    # A run that has ended shows the same lines, once.
    last = page.read(f"/api/runs/{run}/lines?tail=100")
    assert last["rows"]["text"] == texts
    assert last["cursor"].endswith("e")


def test_removed_run_is_reported_to_those_who_look(orch: Orch, page: PageBrowser) -> None:
    run = start_run(orch)
    events = page.events(run)
    next(events)
    assert orch("down").code == 0
    shutil.rmtree(orch.run_dir())
    kinds = dict(events)
    assert "removed" in kinds["problem"]["problem"]
    until(lambda: page.read("/api/runs")["runs"] == [])
    until(lambda: page.get(f"/api/runs/{run}").status == 404)


def test_orders_do_what_the_verbs_do(orch: Orch, page: PageBrowser) -> None:
    run = start_run(orch, "-n", "2")
    orch.pids()
    assert page.order(run, "kill", task="worker:1", signal="STOP").document["ok"]
    until(lambda: [task["paused"] for task in orch.status()["tasks"]] == [False, True])
    assert page.order(run, "kill", task="worker:1", signal="CONT").document["ok"]
    assert page.order(run, "kill", task="worker:7").status == 409
    assert page.order(run, "kill", task="worker:1", signal="NOSUCH").status == 409
    assert page.order(run, "kill", task="worker:1", more=1).status == 409
    assert page.order(run, "nothing").status == 409
    assert page.order(run, "stacks").document["ok"]
    taken = until(lambda: page.read(f"/api/runs/{run}")["stacks"])
    assert taken[0]["why"] == "on request" and "talks.py" in taken[0]["tasks"]["worker:1"]["text"]
    assert page.order(run, "restart").document["ok"]
    until(lambda: orch.status()["run"]["attempt"] == 2)
    assert page.order(run, "stop").document["ok"]
    assert orch.result()["outcome"] == "stopped"
    ended = page.order(run, "restart")
    assert ended.status == 404
    assert "has ended" in ended.document["error"]


def test_order_without_its_header_changes_nothing(orch: Orch, page: PageBrowser) -> None:
    run = start_run(orch)
    path = f"/api/runs/{run}/orders/stop"
    json_only, header_only = {"content-type": "application/json"}, {"X-Orch": "1"}
    assert page.request("POST", path, json_only, b"{}").status == 403
    assert page.request("POST", path, header_only, b"{}").status == 415
    assert page.request("POST", path, json_only | header_only, b" " * 100_000).status == 413
    assert orch.status()["run"]["state"] in ("starting", "running")


@pytest.mark.parametrize("run", ["..%2f..%2fetc", "%2e%2e", "x%00y", "%3Cscript%3E", "a" * 3000])
def test_id_of_a_run_is_never_a_path(page: PageBrowser, run: str) -> None:
    got = page.get(f"/api/runs/{run}")
    assert got.status == 404
    assert got.headers["content-type"] == "application/json"


def test_damaged_and_foreign_entries_do_not_hide_the_others(orch: Orch, page: PageBrowser) -> None:
    run = start_run(orch)
    assert orch("down").code == 0
    runs = orch.state / "orch/runs"
    other = runs / "other-20260101T000000Z-0000"
    other.mkdir()
    other.chmod(0o777)
    newer = runs / "newer-20260101T000000Z-0000"
    newer.mkdir(mode=0o700)
    (newer / "run.json").write_text('{"schema_version": 99}')
    (newer / "run.json").chmod(0o600)
    (runs / run / "events.jsonl").write_bytes(b"\xff damaged\n" * 10)
    listed = page.read("/api/runs")
    assert {row["id"] for row in listed["runs"]} == {run, newer.name}
    assert "other-2026" in listed["skipped"][0]
    assert page.read(f"/api/runs/{run}")["run"]["id"] == run
    assert "newer orch" in page.get(f"/api/runs/{newer.name}").document["error"]
    other.rmdir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_server_quietly_while_somebody_looks(
    orch: Orch, server: Started, page: PageBrowser, number: signal.Signals
) -> None:
    run = start_run(orch)
    events = page.events(run)
    next(events)
    server.signal(number)
    ended = server.finish()
    assert ended.code == 0
    assert ended.err.count("\n") == 1
    assert not (orch.state / "orch/ui/server.json").exists()
    assert orch.status()["run"]["state"] in ("starting", "running")
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


def test_token_is_in_no_command_line_and_no_log(orch: Orch, server: Started, page: PageBrowser) -> None:
    token = page.address.partition("token=")[2]
    page.get("/?token=wrong")
    page.get("/nothing")
    process = psutil.Process(server.process.pid)
    assert token not in " ".join(process.cmdline())
    assert "token" not in server.err
    holders = [path for path in orch.state.rglob("*") if path.is_file() and token in path.read_text()]
    assert [path.name for path in holders] == ["server.json"]
    assert holders[0].stat().st_mode & 0o777 == 0o600


def listening(pid: int) -> set[str]:
    """Return the addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections("inet")
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


def test_server_listens_on_the_loopback_address_only(server: Started, page: PageBrowser) -> None:
    assert listening(server.process.pid) == {"127.0.0.1"}


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


def test_port_in_use_is_refused(orch: Orch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = orch("ui", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "is in use" in done.err
    assert orch("ui", "--port", "70000").code == 2


def test_other_machines_are_served_only_on_purpose(orch: Orch) -> None:
    done = orch("ui", "--host", "0.0.0.0", "--port", "0")
    assert done.code == 2
    assert "--i-know" in done.err


def test_second_server_names_the_first(orch: Orch, page: PageBrowser) -> None:
    done = orch("ui", "--json")
    assert done.code == 0
    assert done.document["address"] == page.address
    assert orch("ui", "--port", "1").code == 2


def test_line_for_a_tunnel_is_printed_under_ssh(orch: Orch) -> None:
    server = orch.start(
        "ui", "--port", "0", env={"SSH_CONNECTION": "192.0.2.1 5000 192.0.2.2 2222", "USER": "ann"}
    )
    port = browser_of(server).port
    until(lambda: f"ssh -N -p 2222 -L {port}:127.0.0.1:{port} ann@192.0.2.2" in server.err)


def test_missing_extra_is_named_with_the_command_that_installs_it(orch: Orch) -> None:
    (orch.directory / "hide.py").write_text(
        "import sys\nsys.modules['uvicorn'] = None\nfrom orchestrator.cli import main\nsys.exit(main())"
    )
    for words in (["ui"], ["up", "--ui", "--", "true"]):
        got = subprocess.run(
            [sys.executable, "hide.py", *words],
            cwd=orch.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert got.returncode == 2
        assert "pip install 'tf-orch[ui]'" in got.stderr
    assert orch.run_dirs() == []


def test_page_of_up_ends_with_the_last_up(orch: Orch) -> None:
    """The second command uses the server of the first, which outlives the first."""
    orch.script("talks.py", TALKS)
    first = orch.start("up", "--ui", "--name", "a", "--", "talks.py")
    until(lambda: "page: http" in first.err)
    place = orch.state / "orch/ui/server.json"
    until(place.exists)
    server = json.loads(place.read_text())
    assert listening(server["pid"]) == {"127.0.0.1"}
    token = server["address"].partition("token=")[2]
    assert token and token not in " ".join(psutil.Process(server["pid"]).cmdline())
    second = orch.start("up", "--ui", "--name", "b", "--", "talks.py")
    until(lambda: "page: http" in second.err)
    assert server["address"] in first.err
    assert server["address"] in second.err
    first.signal(signal.SIGINT)
    assert first.finish().code == 130
    PageBrowser(server["address"])
    second.process.kill()
    second.finish()
    until_gone(server["pid"])


def test_detached_up_serves_no_page(orch: Orch) -> None:
    done = orch("up", "-d", "--ui", "--", "true")
    assert done.code == 2
    assert "orch ui" in done.err


def test_browser_that_is_missing_is_no_error(orch: Orch) -> None:
    changes: dict[str, str | None] = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    server = orch.start("ui", "--port", "0", "--open", env=changes)
    assert browser_of(server).read("/api/runs")["runs"] == []
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


def test_fifty_browsers_at_once_get_every_line(orch: Orch, page: PageBrowser, server: Started) -> None:
    run = start_run(orch)
    readers = [page.events(run) for _ in range(50)]
    shown = [next(reader)[1]["rows"]["text"] for reader in readers]
    (orch.directory / "go").touch()
    for reader, texts in zip(readers, shown, strict=True):
        while not any("second" in text for text in texts):
            kind, data = next(reader)
            texts += data["text"] if kind == "lines" else []
        assert texts == ["first", "second <script>alert(1)</script> red"]
    for reader in readers:
        reader.close()
    # The server keeps nothing of those who have left.
    process = psutil.Process(server.process.pid)
    until(
        lambda: not [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    )
    assert page.read(f"/api/runs/{run}")["run"]["live"]
