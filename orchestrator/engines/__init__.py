"""The interface of an engine: it runs the agent's command on a host and returns the stream to it.

A new engine is a module here with `for_job(spec) -> Engine`, and the module's name in EngineName (core/job/choices.py).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.errors import EngineError
from orchestrator.host.isolation import isolated

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec

_BUFFER_BYTES = 1 << 20


def agent_words() -> list[str]:
    """The command of an agent on this machine. A message tells it which run it serves."""
    return isolated("worker.agent.agent")


class Connection:
    """A process whose stdin and stdout are the other end of `stream`. Owns both until the process is reaped."""

    def __init__(
        self, words: Sequence[str], errors: int | None, env: Mapping[str, str] | None = None
    ) -> None:
        """Start `words`, with `errors` (None: that of this process) as its stderr. EngineError if it cannot start."""
        self.stream, its = socket.socketpair()
        # Room for the messages of many tasks: neither side waits for the other in a burst.
        for end in (self.stream, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            self.process = subprocess.Popen(
                words, stdin=its.fileno(), stdout=its.fileno(), stderr=errors, env=env, start_new_session=True
            )
        except OSError as error:
            self.stream.close()
            raise EngineError(
                f"{words[0]} could not be started ({error.strerror}); install or correct it"
            ) from error
        finally:
            its.close()

    def close(self) -> None:
        """Close the stream. The process ends by itself, in the time that its engine allows."""
        self.stream.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has exited; False on a timeout."""
        if self.process.returncode is not None:
            return True
        # Popen.wait with a timeout polls; a pidfd becomes readable at once.
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # refused in this container: `orch up` reports that
            return self._has_exited_after(timeout_s)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            has_exited = bool(poller.poll(timeout_s * 1000))
        finally:
            os.close(pidfd)
        if has_exited:
            self.process.wait()
        return has_exited

    def _has_exited_after(self, timeout_s: float) -> bool:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def messages(self) -> str | None:
        """Return the messages of the process itself; None if they are on stderr, among the text of the host."""
        return None

    def kill(self) -> None:
        """Kill the process with its group: ssh starts another one for a ProxyJump, which would wait for its network.

        Call it after an exit, too: it removes the file of the messages."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Engine(Protocol):
    """Reaches hosts; decides nothing.

    leave_s: seconds that an agent may take to leave after its stream was closed
    unanswered_s: the same for a host that has not answered once, which may be dead
    is_remote: agents run on other machines, and their connections may break
    """

    leave_s: float
    unanswered_s: float
    is_remote: bool

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        """Run `words` on a host with stdin, stdout and stderr (`errors`, a descriptor) here. EngineError."""

    def explain(self, host: str, exit_code: int | None, errors: str, messages: str | None = None) -> str:
        """Return why a connection ended, in words for the user: from exit code, end of stderr, and messages()."""

    def explain_silence(self, host: str, waited_s: float, errors: str) -> str:
        """Return the message about a host that has not answered once in `waited_s` seconds, with what to do."""

    def why_gone(self, host: str) -> str | None:
        """Return why a lost host cannot come back to this run, in words for the user; None if it may come back."""


def engine_of(spec: JobSpec) -> Engine:
    """The engine that reaches the job's hosts. EngineError."""
    made: Engine = import_module(f"orchestrator.engines.{spec.engine.value}").for_job(spec)
    return made
