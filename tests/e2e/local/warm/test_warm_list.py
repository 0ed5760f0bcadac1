"""`orch warm` and its limits: how many holders there are, and what makes them leave."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import pytest
from waiting import lives, until, until_gone
from warm_command import WarmOrch

from orchestrator.links.control import listen_in
from orchestrator.links.warm import take_over
from orchestrator.store.runs.locks import Lock
from orchestrator.store.runs.paths import make_warm, warm_name
from orchestrator.supervisor.holder import memory_pressure

ROOT = Path(__file__).parents[4]
ECHO = ("--", "sh", "-c", "echo said")


def warm_rows(warm: WarmOrch, *words: str) -> list[dict[str, object]]:
    document = warm.orch.within("warm", *words, "--json").document
    return list(document["stopped" if words else "warm"])


def test_list_and_stop(warm: WarmOrch) -> None:
    assert "no processes are kept warm" in warm.orch.within("warm").err
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    (row,) = warm_rows(warm)
    assert (row["directory"], row["pid"], row["runs"]) == (str(warm.orch.directory), holder.pid, 1)
    assert row["processes"] == 2 and row["memory_bytes"] > 1 << 20  # type: ignore[operator]
    shown = warm.orch.within("warm").lines
    assert shown[0].split() == ["DIRECTORY", "STATE", "RUNS", "MEMORY", "PID"]
    assert shown[1].split()[:2] == [str(warm.orch.directory), "waits"]
    stopped = warm.orch.within("warm", "stop")
    assert (stopped.code, stopped.lines) == (0, [f"{warm.orch.directory}: ended 2 processes"])
    until_gone(holder.pid)
    assert warm_rows(warm) == [] == warm_rows(warm, "stop")


def test_stop_during_a_run_ends_them_after_it(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    going = warm.start("up", "--warm", "--", "sh", "-c", "sleep 600")

    assert going.process.stdout is not None
    try:
        until(lambda: [row["until"] for row in warm_rows(warm)] == [None])
        assert warm.orch.within("warm", "stop").lines == [
            f"{warm.orch.directory}: has a run, and ends after it"
        ]
        assert lives(holder.pid)
    finally:
        going.process.terminate()
        going.finish()
        going.close()
    until_gone(holder.pid)


@pytest.mark.slow
def test_suspended_holder_is_killed(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    processes = [holder.pid, *(child.pid for child in holder.children())]
    holder.suspend()
    assert warm.orch.within("warm", "stop").code == 0
    until_gone(*processes)


def test_fourth_directory_ends_the_oldest(warm: WarmOrch) -> None:
    holders = {}
    first = warm.orch.directory
    for name in ("first", "second", "third", "first", "fourth"):
        warm.orch.directory = first / name
        warm.orch.directory.mkdir(exist_ok=True)
        warm("up", "--warm", *ECHO)
        holders[name] = warm.until_waiting().pid
    until_gone(holders.pop("second"))
    assert {row["pid"] for row in warm_rows(warm)} == set(holders.values())


@pytest.mark.slow
def test_removed_directory_ends_them(warm: WarmOrch) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    warm.orch.directory.rename(warm.orch.directory.with_name("moved"))
    until_gone(holder.pid)


def test_last_logout_ends_them(warm: WarmOrch, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    warm("up", "--warm=1h", *ECHO, env={"XDG_RUNTIME_DIR": str(runtime)})
    holder = warm.until_waiting()
    runtime.rmdir()
    until_gone(holder.pid)


def test_signal_ends_them(warm: WarmOrch) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    processes = [holder.pid, *(child.pid for child in holder.children())]
    holder.terminate()
    until_gone(*processes)
    assert warm.places == []


def test_stopped_agent_ends_them(warm: WarmOrch) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    (agent,) = holder.children()
    agent.suspend()
    until_gone(holder.pid, agent.pid)


def test_changed_orch_ends_them(warm: WarmOrch, tmp_path: Path) -> None:
    for package in ("orchestrator", "worker"):
        shutil.copytree(ROOT / package, tmp_path / "copy" / package)
    env: dict[str, str | None] = {"PYTHONPATH": str(tmp_path / "copy")}
    assert warm("up", "--warm=1h", *ECHO, env=env, before=(sys.executable,)).code == 0
    holder = warm.until_waiting()
    (tmp_path / "copy" / "worker" / "new.py").touch()
    until_gone(holder.pid)


def test_memory_pressure(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text(
        "some avg10=99.00 avg60=1.00 avg300=0.26 total=1\nfull avg10=12.34 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert memory_pressure(file) == 12.34
    for text in ("", "full avg10=x", "some avg10=12.34 total=1"):
        file.write_text(text)
        assert memory_pressure(file) == 0
    assert memory_pressure(tmp_path / "missing") == 0


def test_holder_of_another_version_is_dismissed(state_dir: Path, tmp_path: Path) -> None:
    with make_warm() as every, every.make(warm_name(str(tmp_path))) as place:
        lock = Lock.acquire_in(place, "lock")
        place.write_atomically("holder.json", "{}")
        with listen_in(place, "socket") as listener:
            listener.setblocking(True)

            def greet() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b'{"schema_version": 99}\n')

            greeting = threading.Thread(target=greet)
            greeting.start()
            assert take_over(str(tmp_path)) is None
            greeting.join()
        assert not place.exists("holder.json")
        assert lock is not None
        lock.release()
