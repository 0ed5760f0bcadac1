"""Runs the same small training cases in one process and on several workers, and collects the results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from forks import ForkedProcess, ForkServer, start_python

ROOT = Path(__file__).resolve().parents[2]
CASE_PROGRAM = Path(__file__).with_name("case_program.py")
# The machine may be busy: a test that reaches this limit hangs.
LONGEST_RUN_S = 600.0

Values = dict[str, Any]
Process = subprocess.Popen[bytes] | ForkedProcess


@dataclass
class Outcome:
    """The results by case, one dict of arrays for each worker, and the output and exit code of each worker."""

    values: dict[str, list[Values]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def of(self, case: str) -> list[Values]:
        assert case in self.values, "\n".join([f"{case} has no result: {self.codes}", *self.outputs])
        return self.values[case]


def run_cases(
    directory: Path,
    workers: int,
    modules: Path | Sequence[Path],
    cases: Sequence[str],
    *,
    fixed: bool = True,
    environment: Mapping[str, str] | None = None,
    forks: ForkServer | None = None,
) -> Outcome:
    """Run functions of the file or files `modules` one after the other in one cluster.

    Each takes a `case_program.Place` and returns a dict of arrays. With `fixed` the Keras fixes are armed as in a task.
    `forks` starts the workers without the import of TensorFlow.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = os.pathsep.join(map(str, [modules] if isinstance(modules, Path) else modules))
    arguments = [str(CASE_PROGRAM), files, str(directory), *cases]
    logs = [directory / f"worker-{rank}.log" for rank in range(workers)]
    with held_ports(workers) as ports, contextlib.ExitStack() as stack:
        started: list[Process] = []
        for rank, log in enumerate(logs):
            env = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CASE_WORKERS": str(workers),
                "CASE_FIXED": str(int(fixed)),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **(environment or {}),
            }
            if workers > 1:
                env["TF_CONFIG"] = _tf_config(ports, rank)
            start = forks.start if forks else start_python
            process = start(arguments, log, env, directory)
            stack.callback(_end, process)
            started.append(process)
        codes = _wait(started)
    outcome = Outcome(codes=codes, outputs=[log.read_text(errors="replace") for log in logs])
    for case in cases:
        saved = [directory / f"{case}-{rank}.npz" for rank in range(workers)]
        if all(file.exists() for file in saved):
            outcome.values[case] = [dict(np.load(file)) for file in saved]
    return outcome


def _wait(processes: Sequence[Process]) -> list[int]:
    """Return the exit codes. After a failure the other processes wait in vain, and are killed."""
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(LONGEST_RUN_S))
        except subprocess.TimeoutExpired:
            _end(process)
            codes.append(process.wait())
    return codes


def _tf_config(ports: Sequence[int], rank: int) -> str:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Free ports that only TensorFlow's server can take: bound with SO_REUSEADDR on all interfaces, not listening."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
        yield [holder.getsockname()[1] for holder in holders]


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(LONGEST_RUN_S)
