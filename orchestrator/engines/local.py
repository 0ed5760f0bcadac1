"""The local engine: one agent on this machine, a child of the supervisor, over a socket pair."""

from __future__ import annotations

import os
import select
import socket
import subprocess

from orchestrator.core.errors import EngineError
from orchestrator.core.job.choices import NetworkOption
from orchestrator.engines import AgentOptions
from orchestrator.host.isolation import isolated
from orchestrator.store.files import open_private

_BUFFER_BYTES = 1 << 20


class LocalEngine:
    """Owns the agent's process until it is reaped."""

    def __init__(self) -> None:
        self._agent: subprocess.Popen[bytes] | None = None

    def start_agents(self, options: AgentOptions) -> list[socket.socket]:
        ours, its = socket.socketpair()
        # Room for the messages of many tasks: neither side waits for the other in a burst.
        for end in (ours, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        arguments = ["--run-id", options.run_id, "--failure-grace", str(options.failure_grace_s)]
        if options.network is not NetworkOption.HOST:
            arguments += ["--network", options.network.value]
        argv = isolated("worker.agent.agent", *arguments)
        log = None if options.log is None else open_private(options.log, os.O_WRONLY | os.O_APPEND)
        try:
            self._agent = subprocess.Popen(
                argv, stdin=its.fileno(), stdout=its.fileno(), stderr=log, start_new_session=True
            )
        except OSError as error:
            ours.close()
            raise EngineError(f"the agent could not be started: {error}") from error
        finally:
            if log is not None:
                os.close(log)
            its.close()
        return [ours]

    def agents_gone(self, timeout_s: float) -> bool:
        if self._agent is None or self._agent.returncode is not None:
            return True
        # Popen.wait with a timeout polls; a pidfd becomes readable at once.
        try:
            pidfd = os.pidfd_open(self._agent.pid)
        except OSError:  # refused in this container: `orch up` reports that
            return self._is_gone_after(self._agent, timeout_s)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            gone = bool(poller.poll(timeout_s * 1000))
        finally:
            os.close(pidfd)
        if gone:
            self._agent.wait()
        return gone

    @staticmethod
    def _is_gone_after(agent: subprocess.Popen[bytes], timeout_s: float) -> bool:
        try:
            agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def cancel(self) -> None:
        if self._agent is not None and self._agent.poll() is None:
            self._agent.kill()
            self._agent.wait()
