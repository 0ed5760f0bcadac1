"""The supervisor that a process keeps for its own runs: for those of a session, and of `orch up --watch`."""

from __future__ import annotations

from orchestrator.client.stop import STOP_MARGIN_S
from orchestrator.host.inheritance import inheritance
from orchestrator.links.supervisor_link import SupervisorLink, SupervisorProcess


class OwnSupervisor:
    """Serves the runs of this process, one after another. It ends with close(), or with this process.

    It is replaced when it has exited, or when what a process inherits from this one has changed."""

    def __init__(self) -> None:
        self._process: SupervisorProcess | None = None
        self._inheritance: dict[str, str] = {}

    @property
    def is_there(self) -> bool:
        return self._process is not None

    def connect(self) -> SupervisorLink:
        """Return a connection for a run. EngineError."""
        now = inheritance()
        if self._process is None or self._process.has_exited or now != self._inheritance:
            self.close()
            self._process, self._inheritance = SupervisorProcess(), now
        return SupervisorLink(self._process.connect(), replace=self._reconnect)

    def adopt(self, link: SupervisorLink) -> None:
        """Keep the supervisor that was started for this link."""
        self._process, self._inheritance = link.keep(self._reconnect), inheritance()

    def _reconnect(self) -> SupervisorLink:
        self.close()
        return self.connect()

    def close(self) -> None:
        """Let the supervisor exit, and wait for it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
            process.wait(STOP_MARGIN_S)
