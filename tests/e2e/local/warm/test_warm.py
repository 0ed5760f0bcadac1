"""`orch up --warm`: which processes stay for the next run, what a run gets from them, and what ends them."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from waiting import lives, until, until_gone
from warm_command import ECHO, WarmOrch

from orchestrator.supervisor.kept import memory_pressure

_ROOT = Path(__file__).parents[4]


def warm_rows(warm: WarmOrch, *words: str) -> list[dict[str, object]]:
    document = warm.orch.within("warm", *words, "--json").document
    return list(document["stopped" if words else "warm"])


# -- what the next run gets


def test_next_run_uses_the_processes(shared: WarmOrch, holder: psutil.Process) -> None:
    """It may be in another terminal, without the option, and nested in another run."""
    (agent,) = holder.children()
    say = ("--", "sh", "-c", "echo said $MINE $ORCH_DEPTH")
    done = shared("-v", "up", "-n", "2", *say, env={"MINE": "2", "TERM": "vt100", "ORCH_DEPTH": "2"})
    assert (done.code, done.lines) == (0, ["worker:0 | said 2 3", "worker:1 | said 2 3"])
    assert "orch: warm start" in done.err
    assert shared.supervisor() == holder.pid
    run = shared.orch.run_dirs()[-1]
    assert {(run / name).read_text() for name in ("supervisor.log", "agent.log")} == {""}
    assert shared.until_waiting() == holder and holder.children() == [agent]
    assert holder.cwd() == "/" and Path(f"/proc/{holder.pid}/fd/1").readlink().name == "holder.log"
    assert shared("up", *ECHO, env={"ORCH_DEPTH": "3"}).code == 2


def test_runs_that_do_not_use_the_processes(shared: WarmOrch, holder: psutil.Process) -> None:
    """--warm=off, no terminal, and refused settings."""
    assert shared("up", "--warm=off", *ECHO).code == 0
    assert shared.supervisor() != holder.pid == shared.until_waiting().pid
    assert shared.orch.within("up", *ECHO).code == 0
    assert shared.supervisor() != holder.pid == shared.until_waiting().pid
    for wrong in ("--warm=soon", "--workers=many"):
        assert shared("up", wrong, *ECHO).code == 2
    assert shared.until_waiting() == holder


def test_second_run_at_the_same_moment_is_cold(shared: WarmOrch, holder: psutil.Process) -> None:
    before = len(shared.orch.run_dirs())
    sleeps = ("--", "sh", "-c", "touch started-$ORCH_RUN_ID; sleep 600")
    started = [shared.start("up", *sleeps) for _ in range(2)]
    until(lambda: len([*shared.orch.directory.glob("started-*")]) == 2)
    pids = {shared.orch.record(run)["supervisor_pid"] for run in shared.orch.run_dirs()[before:]}
    assert len(pids) == 2 and holder.pid in pids
    assert "has a run, and ends after it" in shared.orch.within("warm", "stop").out
    assert lives(holder.pid)
    for each in started:
        each.process.terminate()
        assert each.finish().code == 143
        each.close()
    until_gone(*pids)


def test_only_this_user_may_connect(shared: WarmOrch, holder: psutil.Process) -> None:
    (place,) = shared.places
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (place.parent, place, *place.iterdir())}
    assert set(modes.values()) == {0o700, 0o600}
    # The processes have no other listening socket.
    for process in (holder, *holder.children(recursive=True)):
        sockets = [each for each in process.net_connections("all") if each.laddr]
        assert [str(each.laddr).rpartition("/")[2] for each in sockets] == ["socket"] * (process == holder)


def test_changed_inheritance_starts_cold(warm: WarmOrch) -> None:
    """Each of these alone: test_warm_equals_cold."""
    tells = ("--", "sh", "-c", "umask; ulimit -n; grep SigIgn /proc/self/status; nice")
    changes = "umask 027; ulimit -n 1000; trap '' TERM"
    before = ("nice", "-n", "1", "sh", "-c", f'{changes}; exec "$@"', "sh")
    cold = warm("up", *tells, before=before)
    warm("up", "--warm", *tells)
    holder = warm.until_waiting()
    changed = warm("-v", "up", "--warm", *tells, before=before)
    assert changed.lines == cold.lines
    assert "orch: cold start: the" in changed.err
    assert "is not as in the processes that were kept" in changed.err
    until_gone(holder.pid)
    assert warm.until_waiting() != holder


@pytest.mark.parametrize("is_installed", [True, False])
def test_own_modules_are_imported_by_each_run(warm: WarmOrch, is_installed: bool) -> None:
    """Also those of --preload, unless a package manager has installed them."""
    beside = warm.orch.directory / "beside"
    beside.mkdir()
    (beside / "mine.py").write_text("import time; BEGAN = time.monotonic_ns()")
    if is_installed:
        (beside / "mine-1.0.dist-info").mkdir()
    script = warm.orch.script("look.py", "import mine; print(mine.BEGAN)")
    words = ("--preload", "decimal", "--preload", "mine", "--", sys.executable, script)
    found = set()
    for _ in range(2):
        done = warm("up", "--warm", "-n", "2", *words, env={"PYTHONPATH": str(beside)})
        assert done.code == 0, done.err
        found |= {line.partition(" | ")[2] for line in done.lines}
        run = warm.orch.run_dirs()[-1]
        assert warm.orch.methods(run) == {"fork"}
        kept = ["decimal", "mine"] if is_installed else ["decimal"]
        assert warm.orch.preloads(run)[0]["modules"] == kept
        warm.until_waiting()
    assert warm.orch.preloads(run)[0]["seconds"] == 0
    assert len(found) == (1 if is_installed else 4)
    if not is_installed:
        alone = warm("up", "--warm", *words[2:], env={"PYTHONPATH": str(beside)})
        assert "--preload has no effect: mine is not an installed package" in alone.err
        assert warm.orch.methods(warm.orch.run_dirs()[-1]) == {"spawn"}


# -- how long they stay


def test_without_a_terminal_or_the_option_nothing_stays(warm: WarmOrch) -> None:
    done = warm.orch.within("-v", "up", "--warm", *ECHO)
    assert done.code == 0 and "--warm is off: there is no terminal" in done.err
    assert warm("up", *ECHO).code == 0
    until_gone(*(warm.orch.record(run)["supervisor_pid"] for run in warm.orch.run_dirs()))
    assert warm.places == []


def test_each_run_with_a_time_restarts_it(warm: WarmOrch) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    assert warm("up", "-d", *ECHO).code == 0
    warm.orch.result(warm.orch.run_dirs()[-1])
    warm.until_waiting()
    holding = warm.holding()
    assert holding is not None and (holding["runs"], holding["idle_s"]) == (2, 3600)
    (warm.orch.directory / "orch.toml").write_text('warm = "100ms"\n')
    warm("up", *ECHO)
    until_gone(holder.pid)
    assert warm.places == []


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


def _move_directory(warm: WarmOrch, _: psutil.Process) -> None:
    warm.orch.directory.rename(warm.orch.directory.with_name("moved"))


def _log_out(warm: WarmOrch, _: psutil.Process) -> None:
    (warm.orch.directory / "runtime").rmdir()


def _change_orch(warm: WarmOrch, _: psutil.Process) -> None:
    (warm.orch.directory / "copy" / "worker" / "new.py").touch()


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(_move_directory, marks=pytest.mark.slow),
        _log_out,
        _change_orch,
        lambda _, holder: holder.terminate(),
        lambda _, holder: holder.children()[0].suspend(),
    ],
    ids=["removed directory", "last logout", "changed orch", "signal", "stopped agent"],
)
def test_events_that_end_the_processes(
    warm: WarmOrch, ends: Callable[[WarmOrch, psutil.Process], object]
) -> None:
    here = warm.orch.directory
    (here / "runtime").mkdir()
    env: dict[str, str | None] = {"XDG_RUNTIME_DIR": str(here / "runtime")}
    before: tuple[str, ...] = ()
    if ends is _change_orch:
        for package in ("orchestrator", "worker"):
            shutil.copytree(_ROOT / package, here / "copy" / package)
        before, env["PYTHONPATH"] = (sys.executable,), str(here / "copy")
    assert warm("up", "--warm=1h", *ECHO, env=env, before=before).code == 0
    holder = warm.until_waiting()
    processes = [holder.pid, *(child.pid for child in holder.children())]
    ends(warm, holder)
    until_gone(*processes)
    assert warm.places == []


def test_memory_pressure_is_read_from_the_kernels_file(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text(
        "some avg10=99.00 avg60=1.00 avg300=0.26 total=1\nfull avg10=12.34 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert memory_pressure(file) == 12.34
    for text in ("", "full avg10=x", "some avg10=12.34 total=1"):
        file.write_text(text)
        assert memory_pressure(file) == 0
    assert memory_pressure(tmp_path / "missing") == 0
