"""Engines by name, and the interface of an engine: it starts one agent on each host and returns the streams to them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import NetworkOption

# Each is imported when it is used. The supervisor uses only `local` and expects one host
# (supervisor/__main__.py, supervisor/agent_orders.py).
_ENGINES = {"local": "orchestrator.engines.local:LocalEngine"}


@dataclass(frozen=True)
class AgentOptions:
    """The command-line options of an agent. `log` receives its stderr (None: that of this process).

    An agent may be started before there is a run; `run_id` is empty then, and a message brings these values later.
    """

    run_id: str
    failure_grace_s: float
    log: Path | None
    network: NetworkOption = NetworkOption.HOST


class Engine(Protocol):
    """Starts agents and owns their processes; decides nothing."""

    def start_agents(self, options: AgentOptions) -> list[socket.socket]:
        """Start the agents and return one connected byte stream for each host. EngineError if one cannot start."""

    def agents_gone(self, timeout_s: float) -> bool:
        """Wait until the agents have exited after their streams were closed; False on a timeout."""

    def cancel(self) -> None:
        """Kill the agents."""


def engine(name: str) -> Engine:
    """A new engine; UsageError for an unknown name."""
    if name not in _ENGINES:
        raise UsageError(f"no engine {name!r}; there are: {', '.join(_ENGINES)}")
    module, _, attribute = _ENGINES[name].partition(":")
    made: Engine = getattr(import_module(module), attribute)()
    return made
