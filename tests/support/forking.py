"""A real agent with a preloader, and the same commands run by a plain Python beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_driving import Driver

from orchestrator.links.agent_link import Exited, NotPreloaded, Preloaded, PreloadOrder, Started

PYTHON = os.environ.get("ORCH_TEST_PYTHON", sys.executable)
LIGHT = ("json", "decimal", "logging", "multiprocessing")


@dataclass(frozen=True)
class Ending:
    """How a command ended and all it wrote, stdout and stderr in one."""

    exit_code: int | None
    signal: int | None
    text: str


class Forking(Driver):
    """An agent that is told to preload, and starts tasks by the method that is asked for."""

    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = {}

    def preload(self, *modules: str, flags: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self.flags, self.env = tuple(flags), env or {}
        log = str(self.directory / "preloader.log")
        order = PreloadOrder((PYTHON, *flags), self.env, str(self.directory), modules or LIGHT, {}, log)
        self.link.preload(order)

    def run_task(
        self,
        name: str,
        words: Sequence[str],
        fork: bool,
        env: Mapping[str, str] | None = None,
        **changes: object,
    ) -> None:
        """Start `PYTHON FLAGS WORDS` with the bootstrap that the orchestrator would ask for."""
        self.start(
            name,
            [PYTHON, *self.flags, *words],
            {**self.env, **(env or {})},
            bootstrap={
                "task": name,
                "exception_file": str(self.directory / f"{name}.exception"),
                "stacks_file": str(self.directory / f"{name}.stacks"),
                "fixes": False,
                "hooks": True,
            },
            fork=fork,
            **changes,
        )

    def ending(self, name: str) -> Ending:
        exited = self.wait_for(Exited, name)
        return Ending(exited.exit_code, exited.signal, without_addresses(self.text(name)))

    def method_of(self, name: str) -> str:
        return self.wait_for(Started, name).method

    def wait_until_preloaded(self) -> Preloaded:
        return self.wait_for(Preloaded)

    def refusals(self) -> list[str]:
        return [message.reason for message in self.messages if isinstance(message, NotPreloaded)]


def run_plain(directory: Path, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ending:
    """The same without orch: its own session, stdin empty, output appended to a file."""
    log = directory / "plain.log"
    with log.open("ab") as output:
        done = subprocess.run(
            [PYTHON, *words],
            cwd=directory,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            timeout=100,
        )
    text = without_addresses(log.read_text())
    log.unlink()
    if done.returncode < 0:
        return Ending(None, -done.returncode, text)
    return Ending(done.returncode, None, text)


def without_addresses(text: str) -> str:
    """Where things lie in memory differs from process to process."""
    return re.sub("0x[0-9a-f]+", "0x", text)
