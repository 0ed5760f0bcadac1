"""`orch` on a terminal, with warm starts; finds the processes that wait between two runs."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from orch_command import ORCH, Finished, Orch
from waiting import PATIENCE_S, lives, until

ECHO = ("--", "sh", "-c", "echo said")


class WarmOrch:
    """Runs `orch` with a terminal as its standard input: within this process, or with words before it as a new one."""

    def __init__(self, orch: Orch) -> None:
        self.orch = orch

    def __call__(
        self, *words: str, env: dict[str, str | None] | None = None, before: tuple[str, ...] = ()
    ) -> Finished:
        if before:
            with closing(self.start(*words, env=env, before=before)) as started:
                return started.finish()
        # This process gets a terminal for the call. A new process would have to import everything.
        master, slave = os.openpty()
        kept = os.dup(0)
        os.dup2(slave, 0)
        try:
            return self.orch.within(*words, env=self.orch.environ(env))  # type: ignore[arg-type]
        finally:
            os.dup2(kept, 0)
            for fd in (kept, master, slave):
                os.close(fd)

    def start(
        self, *words: str, env: dict[str, str | None] | None = None, before: tuple[str, ...] = ()
    ) -> OnTerminal:
        return OnTerminal([*before, str(ORCH), *words], self.orch.directory, self.orch.environ(env))

    def supervisor(self) -> int:
        """The pid of the last run's supervisor, which has ended its run."""
        run = self.orch.run_dirs()[-1]
        self.orch.result(run)
        pid: int = self.orch.record(run)["supervisor_pid"]
        return pid

    @property
    def places(self) -> list[Path]:
        """The places of holders, of those that have left also."""
        directory = self.orch.state / "orch" / "warm"
        return sorted(directory.iterdir()) if directory.exists() else []

    def holding(self) -> dict[str, Any] | None:
        """The description of the directory's holder."""
        wanted = str(self.orch.directory)
        for place in self.places:
            try:
                found = json.loads((place / "holder.json").read_text())
            except FileNotFoundError:
                continue
            if found["directory"] == wanted:
                assert isinstance(found, dict)
                return found
        return None

    def until_waiting(self) -> psutil.Process:
        """Wait until the holder waits for a run, and return its process."""

        def waits() -> psutil.Process | None:
            holding = self.holding()
            if holding is None or holding["until"] is None or not lives(holding["pid"]):
                return None
            return psutil.Process(holding["pid"])

        return until(waits)

    def dismiss(self) -> None:
        """End all holders."""
        holders = [process for process in psutil.process_iter() if self._is_holder(process)]
        for process in holders:
            process.kill()
        psutil.wait_procs(holders, timeout=PATIENCE_S)

    def _is_holder(self, process: psutil.Process) -> bool:
        try:
            environ = process.environ()
            return environ.get("XDG_STATE_HOME") == str(self.orch.state) and any(
                "orchestrator.supervisor" in word for word in process.cmdline()
            )
        except psutil.Error:
            return False


class OnTerminal:
    """A command whose standard input is a terminal, with pipes for its output."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str]) -> None:
        self._master, slave = os.openpty()
        try:
            self.process = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        finally:
            os.close(slave)

    def finish(self) -> Finished:
        out, err = self.process.communicate(timeout=5 * PATIENCE_S)  # TensorFlow on a busy machine
        return Finished(self.process.returncode, out, err)

    def close(self) -> None:
        os.close(self._master)
