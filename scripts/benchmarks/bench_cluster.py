"""Starts the same training script by `orch up` and by hand, and measures its steps and its memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import portpicker
import psutil
from bench_pairs import ORCH, Bench
from waiting import until

SCRIPTS = Path(__file__).parent / "scripts"
SMALL, LARGE = "64,106,10", "784,1312,1312,10"
WARM_STEPS = 10
_PATIENCE_S = 600.0
# A shell loop that starts workers by hand.
_SHELL_LOOP = """
for i in $(seq 0 $((WORKERS - 1))); do
  task="{\\"type\\": \\"worker\\", \\"index\\": $i}"
  TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$ADDRESSES]}, \\"task\\": $task}" "$@" > "$OUT/$i.log" 2>&1 &
done
wait
"""


@dataclass(frozen=True)
class Script:
    """A training script and its arguments; `env` is added to the environment of this process."""

    name: str
    workers: int
    steps: int
    widths: str = SMALL
    env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, out: Path) -> list[str]:
        return [sys.executable, str(SCRIPTS / self.name), str(out), str(self.steps), self.widths]

    def up(self, option: str, argv: list[str]) -> list[str]:
        return [str(ORCH), "up", option, "--workers", str(self.workers), "--", *argv]


@dataclass(frozen=True)
class Cluster:
    """The processes of a script that was started at `began` (CLOCK_MONOTONIC), with its files in `out`."""

    process: subprocess.Popen[bytes]
    script: Script
    out: Path
    began: float

    def until_written(self, kind: str) -> list[Path]:
        """Wait for the files of all workers (`first` or `json`)."""
        files = [self.out / f"{rank}.{kind}" for rank in range(self.script.workers)]
        until(lambda: self.process.poll() is not None or all(file.exists() for file in files), _PATIENCE_S)
        if not all(file.exists() for file in files):
            logs = [(log.name, log.read_text(errors="replace")[-1500:]) for log in self.out.glob("*.log")]
            raise SystemExit("\n".join([f"{self.process.args} failed", *(":\n".join(log) for log in logs)]))
        return files

    def steps(self) -> Steps:
        return Steps([json.loads(file.read_text()) for file in self.until_written("json")])

    def finish(self) -> Steps:
        """Wait for the end."""
        self.process.wait(_PATIENCE_S)
        return self.steps()

    def below(self) -> list[psutil.Process]:
        """All processes, once each worker has taken a step."""
        self.until_written("first")
        return psutil.Process(self.process.pid).children(recursive=True)


@dataclass(frozen=True)
class Steps:
    """The workers have recorded these values; those of the chief come first."""

    workers: list[dict[str, Any]]

    @property
    def first(self) -> float:
        """When the slowest worker had taken its first step (CLOCK_MONOTONIC): then all have."""
        return float(max(worker["ended"][0] for worker in self.workers))

    @property
    def steady_ms(self) -> float:
        """The median of the chief's steps after the first ones."""
        steps = [after - before for before, after in pairwise(self.workers[0]["ended"])]
        return statistics.median(steps[WARM_STEPS:]) * 1000

    @property
    def fit_returned_after(self) -> float:
        """Seconds from the last step until `fit` had returned."""
        return float(max(worker["returned"] - worker["ended"][-1] for worker in self.workers))


class Clusters:
    """Starts clusters of a measurement, each in a new folder."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def start(self, script: Script, by_orch: bool) -> AbstractContextManager[Cluster]:
        self.bench.clear()
        out = self.bench.folder()
        if by_orch:
            return self._started(script, script.up("-v", script.argv(out)), out)
        ports = [portpicker.pick_unused_port() for _ in range(script.workers)]
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        env = {"WORKERS": str(script.workers), "ADDRESSES": addresses, "OUT": str(out)}
        return self._started(script, ["bash", "-c", _SHELL_LOOP, "-", *script.argv(out)], out, env)

    def trained(self, script: Script, by_orch: bool) -> Steps:
        with self.start(script, by_orch) as cluster:
            return cluster.finish()

    def first_step(self, script: Script, by_orch: bool) -> float:
        """Seconds from the start of the command to the first step of all workers."""
        with self.start(script, by_orch) as cluster:
            return cluster.finish().first - cluster.began

    def megabytes(self, script: Script, by_orch: bool) -> float:
        """PSS after the first step: the tasks, and with orch also its agent and preloader."""
        with self.start(script, by_orch) as cluster:
            below = cluster.below()
            if by_orch:  # the supervisor does not train
                below.remove(next(child for child in below if child.ppid() == cluster.process.pid))
            memory = pss_mb(below)
            cluster.finish()
        return memory

    def second_of_session(self, script: Script, kept: str) -> float:
        """Seconds from the request for the second cluster of a session to its first step. `kept`: its script."""
        first, out = self.bench.folder(), self.bench.folder()
        argv = [sys.executable, str(SCRIPTS / kept), str(script.workers), str(out / "began")]
        words = [json.dumps(script.argv(folder)) for folder in (first, out)]
        with self._started(script, [*argv, *words], out) as cluster:
            return cluster.finish().first - float((out / "began").read_text())

    def warm(self, script: Script) -> float:
        """Seconds from a second `orch up --warm` on another terminal to its first step."""
        for _ in range(2):
            out, terminal = self.bench.folder(), os.openpty()
            up = script.up("--warm", script.argv(out))
            # The working directory is the same, the directory of the run's files is another one.
            with self._started(script, up, out, stdin=terminal[1], cwd=self.bench.directory) as cluster:
                seconds = cluster.finish().first - cluster.began
            for end in terminal:
                os.close(end)
        self.bench.orch("warm", "stop")
        return seconds

    def saved(self, script: Script) -> float:
        """Seconds from the save of a script under `orch up --watch` to its first step."""
        out = self.bench.folder()
        own = Path(shutil.copy(SCRIPTS / script.name, out))
        python, _, *words = script.argv(out)
        with self._started(script, script.up("--watch", [python, str(own), *words]), out) as cluster:
            written = cluster.until_written("json")
            until(lambda: "waiting until one of" in (out / "output.log").read_text(), _PATIENCE_S)
            for file in written:
                file.unlink()
            began = time.monotonic()
            own.write_text(own.read_text() + "\n# saved\n")
            seconds = cluster.steps().first - began
        self.bench.orch("warm", "stop")
        return seconds

    @contextmanager
    def _started(
        self, script: Script, argv: list[str], out: Path, env: Mapping[str, str] | None = None, **where: Any
    ) -> Iterator[Cluster]:
        environ = self.bench.env | script.env | (env or {})
        where = {"cwd": out, "env": environ, "start_new_session": True, **where}
        began = time.monotonic()
        with (out / "output.log").open("wb") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=output, **where)
        try:
            yield Cluster(process, script, out, began)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(_PATIENCE_S)


def pss_mb(processes: list[psutil.Process]) -> float:
    """The sum of the memory (PSS) of those that have not exited."""
    memory = 0
    for process in processes:
        with suppress(psutil.Error):
            memory += process.memory_full_info().pss
    return memory / 1e6
