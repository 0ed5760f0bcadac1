"""Measures how soon a fault is noticed, named and cleaned up.

    scripts/bench faults [--rounds 50] [--limits 5] [--workers 4] [--json FILE]

Tasks without TensorFlow, real processes, the default --failure-grace. The measured times:

- SIGKILL: from the kill until orch notices it, and until nothing is left, with peers that handle SIGTERM and with peers
  that ignore it;
- SIGSTOP under --stall-timeout 5, and a worker that never listens under --start-timeout 5: until the cause is known.

Each is compared with a bare process that waits for the same exit: it needs the kernel's time only, which includes
freeing the killed process's memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_pairs import Bench, bench, say

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(_TESTS / "e2e/local/faults"), str(_TESTS / "support")]

from cells import Cell, Moment, Who  # noqa: E402
from scene import Scene  # noqa: E402
from waiting import lives  # noqa: E402

from orchestrator.core.state.events import TaskExited, TaskReady, TaskStarted, TeardownBegan  # noqa: E402
from orchestrator.core.state.result import RunResult  # noqa: E402

KNOWN_AIM_S, GONE_AIM_S = 0.05, 1.0
LIMIT_S = 5.0
STALL_AIM_S, START_AIM_S = 7.0, 6.0
_LOOK_S = 0.001
# Prints a line when it starts to wait, and then the time when the process with this id ends (monotonic seconds).
_BARE_WATCHER = """
import os, select, sys, time
poller = select.epoll()
poller.register(os.pidfd_open(int(sys.argv[1])), select.EPOLLIN)
print("waits", flush=True)
poller.poll()
print(time.monotonic())
"""


@dataclass(frozen=True)
class Killed:
    """Seconds from the SIGKILL of a worker to each of its effects."""

    bare_s: float
    known_s: float
    gone_s: float


class Faults:
    """Breaks one run for each figure."""

    def __init__(self, measured: Bench) -> None:
        self._bench = measured

    def killed(self, breaks: str) -> Killed:
        """Kill a worker: the times until a bare process notices it, until orch does, and until no task is left."""
        with self._run(Moment.TRAINING, breaks) as scene:
            (victim,) = scene.task_pids(Who.VICTIM)
            pids = [victim, *scene.task_pids(Who.PEERS)]
            with _bare_watcher(victim) as next_line:
                began = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                while any(lives(pid) for pid in pids):
                    time.sleep(_LOOK_S)
                gone = time.monotonic()
                bare = float(next_line())
            _require(scene.result(), 137, scene.victim_name)
            (known, *_) = [event.mono for event in scene.events() if isinstance(event, TaskExited)]
        return Killed(bare - began, known - began, gone - began)

    def stopped(self) -> float:
        """Seconds from the SIGSTOP of a worker until it is named as the cause."""
        with self._run(Moment.TRAINING, "nothing", stall_timeout=f"{LIMIT_S}s") as scene:
            began = time.monotonic()
            os.kill(scene.task_pids(Who.VICTIM)[0], signal.SIGSTOP)
            _require(scene.result(), 124, scene.victim_name)
            return _teardown_mono(scene) - began

    def missing(self) -> float:
        """Seconds from the time when the first worker is ready until the missing one is named."""
        with self._run(Moment.RENDEZVOUS, "nothing", start_timeout=f"{LIMIT_S}s") as scene:
            _require(scene.result(), 124, scene.victim_name)
            ready = [event.mono for event in scene.events() if isinstance(event, TaskReady)]
            return _teardown_mono(scene) - min(ready)

    def restarted(self) -> float:
        """Seconds from the SIGKILL of a worker to the last start of the next attempt, including the delay of 1 s."""
        with self._run(Moment.TRAINING, "nothing", on_failure="restart") as scene:
            began = time.monotonic()
            os.kill(scene.task_pids(Who.VICTIM)[0], signal.SIGKILL)
            _require(scene.result(), 0, None)
            return max(event.mono for event in scene.events() if isinstance(event, TaskStarted)) - began

    @contextmanager
    def _run(self, moment: Moment, breaks: str, **flags: object) -> Iterator[Scene]:
        workers = self._bench.given.workers
        cell = Cell("measured", moment, None, breaks=breaks, workers=workers, options=flags)
        scene = Scene(cell, self._bench.folder())
        with scene.started():
            scene.reach_the_moment()
            yield scene


@contextmanager
def _bare_watcher(pid: int) -> Iterator[Callable[[], str]]:
    """Start a process that waits for the end of process `pid`. Yield a function that reads its next line."""
    argv = [sys.executable, "-I", "-S", "-c", _BARE_WATCHER, str(pid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        yield watcher.stdout.readline


def _teardown_mono(scene: Scene) -> float:
    (began, *_) = [event.mono for event in scene.events() if isinstance(event, TeardownBegan)]
    return began


def _require(result: RunResult, code: int, task: str | None) -> None:
    named = None if result.cause is None else result.cause.task
    if (result.exit_code, named) != (code, task):
        raise SystemExit(f"{result.run_id} ended with {result.exit_code}, cause {result.cause}")


def main() -> None:
    with bench("faults", __doc__, rounds=50, limits=5, workers=4) as measured:
        line = measured.line
        known = line("SIGKILL of a worker until orch notices it", "s", KNOWN_AIM_S)
        worst = line("the worst of them", "s", KNOWN_AIM_S)
        bare = line("the same, until a bare process notices it", "s")
        own = line("orch later than the bare process", "s", KNOWN_AIM_S)
        gone = line("SIGKILL of a worker until no task is left", "s", GONE_AIM_S)
        ignoring = line("the same, the peers ignore SIGTERM", "s", GONE_AIM_S)
        stall = line(f"SIGSTOP until it is named, --stall-timeout {LIMIT_S:g}", "s", STALL_AIM_S)
        start = line(f"first ready until the other is named, --start-timeout {LIMIT_S:g}", "s", START_AIM_S)
        again = line("SIGKILL of a worker until the next attempt has started", "s")
        os.environ["XDG_STATE_HOME"] = str(measured.state)
        faults = Faults(measured)
        for round_ in measured.rounds:
            killed = faults.killed("nothing")
            known.orch.append(killed.known_s)
            bare.orch.append(killed.bare_s)
            own.orch.append(killed.known_s - killed.bare_s)
            gone.orch.append(killed.gone_s)
            ignoring.orch.append(faults.killed("all ignore SIGTERM").gone_s)
            if round_ < measured.given.limits:
                stall.orch.append(faults.stopped())
                start.orch.append(faults.missing())
                again.orch.append(faults.restarted())
            say(f"round {round_ + 1}: known {killed.known_s:.3f} s, gone {killed.gone_s:.3f} s")
        worst.orch.append(max(known.orch))


if __name__ == "__main__":
    main()
