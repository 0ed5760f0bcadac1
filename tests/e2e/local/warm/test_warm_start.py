"""`orch up --warm`: which processes stay for the next run, who may use them, and what a run gets from them."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import psutil
import pytest
from waiting import lives, until, until_gone
from warm_command import WarmOrch

ECHO = ("--", "sh", "-c", "echo said $MINE")


def supervisors(warm: WarmOrch) -> list[int]:
    """The pid of each run's supervisor."""
    return [warm.orch.result(run) and warm.orch.record(run)["supervisor_pid"] for run in warm.orch.run_dirs()]


def test_next_run_takes_the_processes_over(warm: WarmOrch) -> None:
    first = warm("up", "--warm", *ECHO, env={"MINE": "1"})
    assert (first.code, first.lines) == (0, ["worker:0 | said 1"])
    holder = warm.until_waiting()
    (agent,) = holder.children()
    # Another terminal, and not even the option.
    second = warm("-v", "up", "-n", "2", *ECHO, env={"MINE": "2", "TERM": "vt100"})
    assert (second.code, second.lines) == (0, ["worker:0 | said 2", "worker:1 | said 2"])
    assert "orch: warm start" in second.err
    assert supervisors(warm) == [holder.pid, holder.pid]
    assert warm.until_waiting() == holder and holder.children() == [agent]
    assert holder.cwd() == "/" and Path(f"/proc/{holder.pid}/fd/1").readlink().name == "holder.log"
    run = warm.orch.run_dirs()[-1]
    assert {(run / name).read_text() for name in ("supervisor.log", "agent.log")} == {""}


def test_a_warm_run_counts_the_runs_around_itself(warm: WarmOrch) -> None:
    say = ("--", "sh", "-c", "echo $ORCH_DEPTH")
    assert warm("up", "--warm", *say).lines == ["worker:0 | 1"]
    warm.until_waiting()
    assert warm("up", *say, env={"ORCH_DEPTH": "2"}).lines == ["worker:0 | 3"]
    warm.until_waiting()
    assert warm("up", *say, env={"ORCH_DEPTH": "3"}).code == 2


def test_nothing_stays_unless_asked(warm: WarmOrch) -> None:
    assert warm("up", *ECHO).code == 0
    (pid,) = supervisors(warm)
    assert not lives(pid) and warm.places == []


def test_without_a_terminal_it_is_off(warm: WarmOrch) -> None:
    done = warm.orch("-v", "up", "--warm", *ECHO, env={})
    assert done.code == 0 and "--warm is off: there is no terminal" in done.err
    assert not lives(supervisors(warm)[0]) and warm.places == []
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    assert warm.orch("up", *ECHO, env={}).code == 0
    assert supervisors(warm)[-1] != holder.pid == warm.until_waiting().pid


def test_off_starts_cold_and_leaves_the_others(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    assert warm("up", "--warm=off", *ECHO).code == 0
    assert supervisors(warm)[-1] != holder.pid == warm.until_waiting().pid


def test_time_is_limited(warm: WarmOrch) -> None:
    (warm.orch.directory / "orch.toml").write_text('warm = "100ms"\n')
    warm("up", *ECHO)
    until_gone(*supervisors(warm))
    assert warm.places == []


def test_each_run_with_a_time_starts_it_anew(warm: WarmOrch) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    warm("up", *ECHO)
    warm.until_waiting()
    holding = warm.holding()
    assert holding is not None and (holding["runs"], holding["idle_s"]) == (2, 3600)
    warm("up", "--warm=100ms", *ECHO)
    until_gone(holder.pid)


def test_second_run_at_the_same_moment_is_cold(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    started = [
        warm.start("up", "--warm", "--", "sh", "-c", "touch $ORCH_RUN_ID; sleep 600") for _ in range(2)
    ]
    until(lambda: len(warm.orch.run_dirs()) == 3)
    until(lambda: len([*warm.orch.directory.iterdir()]) == 2)
    pids = [warm.orch.record(run)["supervisor_pid"] for run in warm.orch.run_dirs()]
    assert len(set(pids)) == 2 and holder.pid in pids[1:]
    for each in started:
        each.process.terminate()
        assert each.finish().code == 143
        each.close()
    assert warm.until_waiting() == holder
    until_gone(*{*pids} - {holder.pid})


@pytest.mark.parametrize("change", ["umask 027", "ulimit -n 1000", "trap '' TERM", "nice -n 1 true"])
def test_changed_inheritance_starts_cold(warm: WarmOrch, change: str) -> None:
    tells = ("--", "sh", "-c", "umask; ulimit -n; grep SigIgn /proc/self/status; nice")
    before = ("sh", "-c", f'{change}; exec "$@"', "sh")
    if change.startswith("nice"):
        before = ("nice", "-n", "1")
    cold = warm("up", *tells, before=before)
    warm("up", "--warm", *tells)
    holder = warm.until_waiting()
    changed = warm("-v", "up", "--warm", *tells, before=before)
    assert changed.lines == cold.lines
    assert (
        "orch: cold start: the" in changed.err and "is not as in the processes that were kept" in changed.err
    )
    until_gone(holder.pid)
    assert warm.until_waiting() != holder


def test_replaced_directory_starts_cold(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    warm.orch.directory.rename(warm.orch.directory.with_name("moved"))
    warm.orch.directory.mkdir()
    done = warm("-v", "up", "--warm", "--", "sh", "-c", "touch here")
    assert done.code == 0 and (warm.orch.directory / "here").exists()
    until_gone(holder.pid)
    assert supervisors(warm)[-1] != holder.pid


@pytest.mark.parametrize("ends", ["exit 3", "kill -9 $$", "kill -9 $PPID", "setsid sleep 600 & exit 1"])
def test_failed_run_does_not_affect_the_next(warm: WarmOrch, ends: str) -> None:
    cold = warm("up", "--", "sh", "-c", ends)
    assert warm("up", "--warm", "--", "sh", "-c", ends).code == cold.code != 0
    assert warm("up", "--warm", *ECHO).code == 0
    assert warm("up", "--warm", "--", "sh", "-c", ends).code == cold.code
    assert warm("up", "--warm", *ECHO).code == 0


MINE = "import time; BEGAN = time.monotonic_ns()"


@pytest.mark.parametrize("is_installed", [True, False])
def test_own_modules_are_imported_by_each_run(warm: WarmOrch, is_installed: bool) -> None:
    """Also those of --preload, unless a package manager has installed them."""
    beside = warm.orch.directory / "beside"
    beside.mkdir()
    (beside / "mine.py").write_text(MINE)
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
        assert warm.orch.events("preloaded", run)[0]["modules"] == kept
        warm.until_waiting()
    assert warm.orch.events("preloaded", run)[0]["seconds"] == 0
    assert len(found) == (1 if is_installed else 4)


def test_preload_of_own_modules_alone_has_no_effect(warm: WarmOrch) -> None:
    (warm.orch.directory / "beside").mkdir()
    (warm.orch.directory / "beside" / "mine.py").write_text(MINE)
    script = warm.orch.script("look.py", "import mine")
    env: dict[str, str | None] = {"PYTHONPATH": str(warm.orch.directory / "beside")}
    done = warm("up", "--warm", "--preload", "mine", "--", sys.executable, script, env=env)
    assert done.code == 0 and "--preload has no effect: mine is not an installed package" in done.err
    assert warm.orch.methods() == {"spawn"}


def test_detached_run_leaves_them_also(warm: WarmOrch) -> None:
    assert warm("up", "--warm", "--wait", "done", *ECHO).code == 0
    holder = warm.until_waiting()
    assert warm("up", "-d", *ECHO).code == 0
    warm.orch.result(warm.orch.run_dirs()[-1])
    assert supervisors(warm) == [holder.pid, holder.pid]


def test_settings_are_refused_and_the_processes_stay(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    holder = warm.until_waiting()
    for wrong in ("--warm=soon", "--workers=many"):
        assert warm("up", wrong, *ECHO).code == 2
    assert warm.until_waiting() == holder


def test_only_this_user_may_connect(warm: WarmOrch) -> None:
    warm("up", "--warm", *ECHO)
    warm.until_waiting()
    (place,) = warm.places
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (place.parent, place, *place.iterdir())}
    assert set(modes.values()) == {0o700, 0o600}
    # The processes have no other listening socket.
    holder = psutil.Process(supervisors(warm)[0])
    for process in (holder, *holder.children(recursive=True)):
        sockets = [each for each in process.net_connections("all") if each.laddr]
        assert [str(each.laddr).rpartition("/")[2] for each in sockets] == ["socket"] * (process == holder)


def test_removed_state_ends_them(warm: WarmOrch, tmp_path: Path) -> None:
    warm("up", "--warm=1h", *ECHO)
    holder = warm.until_waiting()
    (warm.orch.state / "orch" / "warm").rename(tmp_path / "elsewhere")
    assert warm("up", "--warm", *ECHO).code == 0
    assert warm.until_waiting() != holder
