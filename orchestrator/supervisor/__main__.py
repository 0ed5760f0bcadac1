"""The supervisor's process: starts its agent, then imports its own modules, then serves the process that started it.

links/supervisor_link.py starts it as `python -m orchestrator.supervisor FD`, in a new session.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

from orchestrator.core.errors import EngineError
from orchestrator.engines import Connection, Engine, agent_words
from orchestrator.engines.local import LocalEngine


def main() -> int:
    gc.disable()  # until serve(): imports create no garbage, and a search for it takes 10 ms
    stream = socket.socket(fileno=int(sys.argv[1]))
    stream.set_inheritable(False)
    engine = LocalEngine()
    to_agent = _start_early(engine)
    from orchestrator.supervisor.here import LocalAgent
    from orchestrator.supervisor.kept import OwnerDoor
    from orchestrator.supervisor.serve import serve

    return serve(OwnerDoor(stream), LocalAgent(engine, to_agent))


def _start_early(engine: Engine) -> Connection | None:
    """Start the agent before the other imports: each takes as long as the agent's own start."""
    try:
        return engine.connect("", agent_words())
    except EngineError:
        return None  # reported when a run needs the agent


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # All files are written, and the client waits for this process to exit: skip the interpreter's clean-up.
    os._exit(code)
