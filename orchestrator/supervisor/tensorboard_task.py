"""A run's TensorBoard: a process of the agent beside the tasks, whose exit does not affect the run."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.tensorboard import TASK, TensorBoard, url
from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.core.state.result import exit_text
from orchestrator.links.agent_link import AgentLink, AgentMessage
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now
from worker.wire.messages import Exited, Listening, TaskOrder

# Below Linux's range for ephemeral ports: TensorBoard binds its port seconds after it was chosen.
_PORTS = range(16_000, 32_768)
_TRIES = 100


class TensorBoardTask:
    """Started and stopped with each attempt; its address is reported once. `asked` None: no TensorBoard."""

    def __init__(
        self, asked: TensorBoard | None, network: NetworkOption, store: RunStore, queue: deque[Event]
    ) -> None:
        self._asked = asked if asked is not None and asked.serves(network) else None
        self._run = store.directory
        self._paths = store.paths
        self._queue = queue
        self._port = 0
        self._is_reported = False

    def start(self, agent: AgentLink) -> None:
        """Start it; OSError if its directory cannot be made."""
        if self._asked is None:
            return
        self._run.make(self._paths.tensorboard.name).close()
        # The same port in each attempt, because its page may be open in a browser.
        self._port = self._port or _free_port()
        agent.send(
            TaskOrder(
                task=TASK,
                argv=self._asked.argv(str(self._paths.tensorboard), self._port),
                env={"ORCH_RUN_ID": self._paths.run_id, "ORCH_RUN_DIR": str(self._paths.root)},
                cwd=str(self._paths.root),
                log=str(self._paths.tensorboard_log),
                port=self._port,
                serves=True,
                is_helper=True,
            )
        )

    def take(self, message: AgentMessage, is_ending: bool) -> None:
        """Handle a message about TensorBoard."""
        match message:
            case Listening():
                self._report_address(url(self._port))
            case Exited() if message.exit.start_error is not None:
                self._report_exit(f"could not be started ({message.exit.start_error})")
            case Exited() if not is_ending:
                self._report_exit(f"ended ({exit_text(message.exit.exit_code, message.exit.signal)})")
            case _:
                return

    def _report_address(self, address: str) -> None:
        self._queue.append(events.TensorBoardServes(**now(), url=address))
        if not self._is_reported:
            self._is_reported = True
            self._queue.append(events.Noticed(**now(), text=f"TensorBoard: {address}"))

    def _report_exit(self, how: str) -> None:
        self._queue.append(events.TensorBoardServes(**now(), url=None))
        text = f"TensorBoard {how}; the training continues; see {self._paths.tensorboard_log}"
        self._queue.append(events.Noticed(**now(), text=text))


def _free_port() -> int:
    # Not held as the tasks' ports are: TensorBoard does not take a port that another socket is bound to.
    for wanted in (*random.sample(_PORTS, _TRIES), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", wanted))
            port: int = probe.getsockname()[1]
            return port
    raise OSError("no port is free for TensorBoard")
