"""Starts the same training script by `orch up` and by hand, and measures its steps and its memory."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import portpicker
import psutil
from bench_pairs import ORCH, Bench, waiting_at_most

SCRIPTS = Path(__file__).parent / "scripts"
SMALL, LARGE = "64,106,10", "784,1312,1312,10"
PATIENCE_S = 600.0
WARM_STEPS = 10
# A shell loop that starts workers by hand.
SHELL_LOOP = """
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
    env: tuple[tuple[str, str], ...] = ()

    def argv(self, out: Path) -> list[str]:
        return [sys.executable, str(SCRIPTS / self.name), str(out), str(self.steps), self.widths]


@dataclass(frozen=True)
class Steps:
    """The times that the workers recorded, in CLOCK_MONOTONIC seconds; `began` is the start of the command."""

    began: float
    first: float
    per_step: list[float]
    fit_returned_after: float | None
    parameters: int

    @property
    def steady_ms(self) -> float:
        """The median of the steps after the first ones."""
        return statistics.median(self.per_step[WARM_STEPS:]) * 1000


class Clusters:
    """Starts clusters of a measurement, each in a new folder."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @contextlib.contextmanager
    def orch(self, script: Script, out: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        up = [str(ORCH), "up", "-v", "--workers", str(script.workers), *options, "--", *script.argv(out)]
        with self._started(up, script, out) as process:
            yield process

    @contextlib.contextmanager
    def by_hand(self, script: Script, out: Path) -> Iterator[subprocess.Popen[bytes]]:
        ports = [portpicker.pick_unused_port() for _ in range(script.workers)]
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        env = {"WORKERS": str(script.workers), "ADDRESSES": addresses, "OUT": str(out)}
        with self._started(["bash", "-c", SHELL_LOOP, "-", *script.argv(out)], script, out, env) as process:
            yield process

    def trained(self, script: Script, *, by_orch: bool, options: tuple[str, ...] = ()) -> Steps:
        """Train to the end."""
        out = self.bench.folder()
        began = time.monotonic()
        with self.orch(script, out, *options) if by_orch else self.by_hand(script, out) as process:
            process.wait(PATIENCE_S)
            steps = read_steps(out, script.workers, began)
        self.bench.clear()
        return steps

    def second_of_session(self, script: Script, kept: str = "kept.py") -> float:
        """Seconds from the request for the second cluster of a session to its first step. `kept`: its script."""
        folders = [self.bench.folder(), self.bench.folder()]
        began = self.bench.folder() / "began"
        argv = [sys.executable, str(SCRIPTS / kept), str(script.workers), str(began)]
        words = [json.dumps(script.argv(folder)) for folder in folders]
        with self._started([*argv, *words], script, folders[0]) as process:
            process.wait(PATIENCE_S)
            steps = read_steps(folders[1], script.workers, float(began.read_text()))
        self.bench.clear()
        return steps.first

    def warm(self, script: Script) -> float:
        """Seconds from a second `orch up --warm` on another terminal to its first step."""
        steps = [self._trained_warm(script) for _ in range(2)][-1]
        self._end_warm()
        return steps.first

    def _trained_warm(self, script: Script) -> Steps:
        out = self.bench.folder()
        up = [str(ORCH), "up", "--warm", "--workers", str(script.workers), "--", *script.argv(out)]
        master, terminal = os.openpty()
        try:
            began = time.monotonic()
            # The working directory is the same, the directory of the run's files is another one.
            with self._started(up, script, out, stdin=terminal, cwd=self.bench.directory) as process:
                process.wait(PATIENCE_S)
                return read_steps(out, script.workers, began)
        finally:
            os.close(master)
            os.close(terminal)

    def saved(self, script: Script) -> float:
        """Seconds from the save of a script under `orch up --watch` to its first step."""
        out = self.bench.folder()
        own = Path(shutil.copy(SCRIPTS / script.name, out))
        python, _, *words = script.argv(out)
        up = [str(ORCH), "up", "--watch", "--workers", str(script.workers), "--", python, str(own), *words]
        with self._started(up, script, out) as process, waiting_at_most(PATIENCE_S, "the first run") as pause:
            while "waiting until one of" not in (out / "output").read_text(errors="replace"):
                if process.poll() is not None:
                    raise SystemExit(failure(up, out))
                pause()
            for rank in range(script.workers):
                (out / f"{rank}.json").unlink()
                (out / f"{rank}.first").unlink()
            began = time.monotonic()
            own.write_text(own.read_text() + "\n# saved\n")
            while not all((out / f"{rank}.json").exists() for rank in range(script.workers)):
                pause()
            steps = read_steps(out, script.workers, began)
        self._end_warm()
        return steps.first

    def _end_warm(self) -> None:
        self.bench.orch("warm", "stop")
        self.bench.clear()

    def first_step(self, script: Script, by_orch: bool) -> float:
        """Seconds from the start of the command to the first step of all workers."""
        return self.trained(script, by_orch=by_orch).first

    def megabytes(self, script: Script, by_orch: bool) -> float:
        """PSS after the first step: the tasks, and with orch also its agent and preloader."""
        out = self.bench.folder()
        began = time.monotonic()
        with self.orch(script, out) if by_orch else self.by_hand(script, out) as process:
            wait_for_first_steps(process, out, script.workers)
            below = psutil.Process(process.pid).children(recursive=True)
            if by_orch:  # the supervisor does not train
                below.remove(next(child for child in below if child.ppid() == process.pid))
            memory = sum(pss(child) for child in below)
            process.wait(PATIENCE_S)
            read_steps(out, script.workers, began)
        self.bench.clear()
        return memory / 1e6

    @contextlib.contextmanager
    def _started(
        self,
        argv: list[str],
        script: Script,
        out: Path,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
        cwd: Path | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        with (out / "output").open("wb") as output:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=output,
                stderr=output,
                env=self.bench.env | dict(script.env) | (env or {}),
                cwd=cwd or out,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def wait_for_first_steps(process: subprocess.Popen[bytes], out: Path, workers: int) -> None:
    with waiting_at_most(PATIENCE_S, "the first step") as pause:
        while not all((out / f"{rank}.first").exists() for rank in range(workers)):
            if process.poll() is not None:
                raise SystemExit(failure(process.args, out))
            pause()


def read_steps(out: Path, workers: int, began: float) -> Steps:
    """Return the chief's times, with the first step of the slowest worker: then all have done it."""
    files = [out / f"{rank}.json" for rank in range(workers)]
    if not all(file.exists() for file in files):
        raise SystemExit(failure("the training", out))
    written = [json.loads(file.read_text()) for file in files]
    ended = written[0]["ended"]
    returned = [one["returned"] - one["ended"][-1] for one in written if "returned" in one]
    return Steps(
        began=began,
        first=max(one["ended"][0] for one in written) - began,
        per_step=[after - before for before, after in pairwise(ended)],
        fit_returned_after=max(returned, default=None),
        parameters=written[0]["parameters"],
    )


def pss(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_full_info().pss)
    return 0.0


def failure(what: object, out: Path) -> str:
    logs = [*sorted(out.glob("*.log")), out / "output"]
    tails = [f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs if log.exists()]
    command = shlex.join(what) if isinstance(what, list) else str(what)
    return f"{command} failed\n" + "\n".join(tails)
