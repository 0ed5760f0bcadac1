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
from collections.abc import Iterator
from contextlib import contextmanager

from bench_pairs import Bench, bench, say
from cells import Cell, Moment, Who
from scene import Scene
from waiting import lives

from orchestrator.core.state.events import TaskExited, TaskReady, TaskStarted, TeardownBegan

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


class Faults:
    """Breaks one run for each figure."""

    def __init__(self, measured: Bench) -> None:
        self._bench = measured

    def killed(self, breaks: str) -> tuple[float, float, float]:
        """Kill a worker: seconds until a bare process notices it, until orch does, and until no task is left."""
        with self._run(Moment.TRAINING, breaks) as scene:
            (victim,) = scene.task_pids(Who.VICTIM)
            pids = [victim, *scene.task_pids(Who.PEERS)]
            argv = [sys.executable, "-I", "-S", "-c", _BARE_WATCHER, str(victim)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watcher:
                assert watcher.stdout is not None
                watcher.stdout.readline()
                began = _signal(victim, signal.SIGKILL)
                while any(lives(pid) for pid in pids):
                    time.sleep(_LOOK_S)
                gone = time.monotonic()
                bare = float(watcher.stdout.readline())
            known = _times(scene, TaskExited, 137)[0]
        return bare - began, known - began, gone - began

    def stopped(self) -> float:
        """Seconds from the SIGSTOP of a worker until it is named as the cause."""
        with self._run(Moment.TRAINING, stall_timeout=f"{LIMIT_S}s") as scene:
            began = _signal(scene.task_pids(Who.VICTIM)[0], signal.SIGSTOP)
            return _times(scene, TeardownBegan, 124)[0] - began

    def missing(self) -> float:
        """Seconds from the time when the first worker is ready until the missing one is named."""
        with self._run(Moment.RENDEZVOUS, start_timeout=f"{LIMIT_S}s") as scene:
            named = _times(scene, TeardownBegan, 124)[0]
            return named - min(_times(scene, TaskReady, 124))

    def restarted(self) -> float:
        """Seconds from the SIGKILL of a worker to the last start of the next attempt, including the delay of 1 s."""
        with self._run(Moment.TRAINING, on_failure="restart") as scene:
            began = _signal(scene.task_pids(Who.VICTIM)[0], signal.SIGKILL)
            return max(_times(scene, TaskStarted, 0)) - began

    @contextmanager
    def _run(self, moment: Moment, breaks: str = "nothing", **flags: object) -> Iterator[Scene]:
        workers = self._bench.given.workers
        cell = Cell("measured", moment, None, breaks=breaks, workers=workers, options=flags)
        scene = Scene(cell, self._bench.folder())
        with scene.started():
            scene.reach_the_moment()
            yield scene


def _signal(pid: int, number: int) -> float:
    began = time.monotonic()
    os.kill(pid, number)
    return began


def _times(scene: Scene, kind: type, code: int) -> list[float]:
    """Wait for the end of the run, and return the times of its events of a kind. A failure has to name the victim."""
    result = scene.result()
    named = None if result.cause is None else result.cause.task
    if (result.exit_code, named) != (code, scene.victim_name if code else None):
        raise SystemExit(f"{result.run_id} ended with {result.exit_code}, cause {result.cause}")
    return [event.mono for event in scene.events() if isinstance(event, kind)]


def main() -> None:
    with bench("faults", __doc__, rounds=50, limits=5, workers=4) as measured:
        os.environ["XDG_STATE_HOME"] = str(measured.state)
        faults, line = Faults(measured), measured.line
        known = line("SIGKILL of a worker until orch notices it", "s", KNOWN_AIM_S)
        worst = line("the worst of them", "s", KNOWN_AIM_S)
        bare = line("the same, until a bare process notices it", "s")
        own = line("orch later than the bare process", "s", KNOWN_AIM_S)
        gone = line("SIGKILL of a worker until no task is left", "s", GONE_AIM_S)
        ignoring = line("the same, the peers ignore SIGTERM", "s", GONE_AIM_S)
        stall = line(f"SIGSTOP until it is named, --stall-timeout {LIMIT_S:g}", "s", STALL_AIM_S)
        start = line(f"first ready until the other is named, --start-timeout {LIMIT_S:g}", "s", START_AIM_S)
        again = line("SIGKILL of a worker until the next attempt has started", "s")
        for round_ in measured.rounds:
            for samples, seconds in zip((bare, known, gone), faults.killed("nothing"), strict=True):
                samples.orch.append(seconds)
            own.orch.append(known.orch[-1] - bare.orch[-1])
            ignoring.orch.append(faults.killed("all ignore SIGTERM")[-1])
            if round_ < measured.given.limits:
                stall.orch.append(faults.stopped())
                start.orch.append(faults.missing())
                again.orch.append(faults.restarted())
            say(f"round {round_ + 1}: known {known.orch[-1]:.3f} s, gone {gone.orch[-1]:.3f} s")
        worst.orch.append(max(known.orch))


if __name__ == "__main__":
    main()
