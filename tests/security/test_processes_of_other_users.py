"""Processes of a run that orch may not end, because they run under another user: a setuid helper, for example.

orch runs as root without the right to signal other users' processes, and its tasks change to another user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from acting_as import in_child
from orch_command import Finished, Orch
from users import ORDINARY, User
from waiting import lives, until, until_gone

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv for two users"
)
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-kill")
_CAP_KILL, _CAPABILITIES = 5, 0x20080522
AS_ANOTHER = f"setpriv --reuid={ORDINARY} --clear-groups sleep 600"
UP = ("up", "--workers", "1", "--grace", "0.2s", "--failure-grace", "0.2s")


@pytest.fixture
def orch(orch: Orch) -> Iterator[Orch]:
    yield orch
    for process in processes_of_another(orch):
        process.kill()


def processes_of_another(orch: Orch) -> list[psutil.Process]:
    """The processes of this test that have become another user's."""

    def is_found(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            is_sleep = process.uids().real == ORDINARY and process.name() == "sleep"
            return is_sleep and process.cwd() == str(orch.directory)
        return False

    return [process for process in psutil.process_iter() if is_found(process)]


def pid_of_another(orch: Orch) -> int:
    return until(lambda: next((each.pid for each in processes_of_another(orch)), None))


def down(orch: Orch) -> Finished:
    """`orch down` in a process that may not signal other users' processes."""

    def run() -> Finished:
        library, header, sets = (
            ctypes.CDLL(None),
            (ctypes.c_uint32 * 2)(_CAPABILITIES),
            (ctypes.c_uint32 * 6)(),
        )
        library.capget(header, sets)
        sets[0] &= ~(1 << _CAP_KILL)
        assert library.capset(header, sets) == 0
        return orch.within("down")

    return in_child(run)


def named(pid: int, user: int = ORDINARY) -> str:
    return f"orch may not end pid {pid} (user {user}: sleep 600)"


def test_down_names_the_process_and_fails_until_it_has_ended(orch: Orch) -> None:
    up = orch.start(*UP, "--", *AS_ANOTHER.split(), before=WITHOUT_RIGHTS)
    pid = pid_of_another(orch)
    # The second one finds a run that has ended.
    for _ in range(2):
        done = down(orch)
        remedy = f"End them as their user or as root: kill -KILL {pid}"
        assert (done.code, done.err) == (125, f"orch: {orch.run_dir().name}: {named(pid)}. {remedy}\n")
    assert lives(pid)
    result = orch.result()
    assert (result["outcome"], result["exit_code"], result["cause"]["text"]) == ("failed", 125, named(pid))
    assert result["tasks"][0]["end"] == "still running"
    assert [(each["pid"], each["user"]) for each in result["left"]] == [(pid, str(ORDINARY))]
    done = up.finish()
    assert done.code == 125 and named(pid) in done.err and f"kill -KILL {pid}" in done.err
    assert "agent" not in done.err and "all ended" not in done.err
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert orch("down").code == 0


def test_failure_is_reported_with_the_process_that_is_left(orch: Orch) -> None:
    script = f"{AS_ANOTHER} & until grep -q sleep /proc/$!/comm; do sleep 0.05; done; exit 3"
    done = orch.start(*UP, "--", "sh", "-c", script, before=WITHOUT_RIGHTS).finish()
    assert done.code == 3
    assert f"still running  {named(pid_of_another(orch))}" in done.err
    assert "worker:0 failed: exit 3" in done.err


def test_down_names_the_process_of_a_lost_run(orch: Orch) -> None:
    assert orch.start(*UP, "-d", "--", *AS_ANOTHER.split(), before=WITHOUT_RIGHTS).finish().code == 0
    pid = pid_of_another(orch)
    assert orch.pids() == [pid]
    pids = [found for found in (orch.supervisor(), orch.agent()) if found]
    for each in pids:
        os.kill(each, signal.SIGKILL)
    until_gone(*pids)
    for _ in range(2):
        done = down(orch)
        assert (done.code, named(pid) in done.err) == (125, True)
    assert lives(pid)


def test_setuid_program_of_an_ordinary_user_is_named(state_dir: Path) -> None:
    other = ORDINARY + 1
    with User(ORDINARY, state_dir) as user:
        helper = user.home / "helper"
        shutil.copy(str(shutil.which("setpriv")), helper)
        os.chown(helper, other, other)
        helper.chmod(0o4755)
        run = user.detached(*UP[1:], "--", str(helper), f"--reuid={other}", "sleep", "600")
        pid = user.pid_of_first_task(run)
        until(lambda: psutil.Process(pid).name() == "sleep")
        done = user("down", run.name)
        lived = lives(pid)
        os.kill(pid, signal.SIGKILL)
        assert (done.returncode, lived) == (125, True)
        assert named(pid, other) in done.stderr
