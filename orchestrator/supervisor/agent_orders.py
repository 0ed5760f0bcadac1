"""The agent of this host (`HostAgent`) and what it is asked to start for a run (`Attempts`)."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.plan.plan import (
    RunPlan,
    TaskPlan,
    build_plan,
    hold_mode,
    planned_tasks,
    preload_plan,
    takes_bootstrap,
)
from orchestrator.core.state import events
from orchestrator.core.state.events import Event
from orchestrator.engines import AgentOptions, Engine
from orchestrator.links.agent_link import AgentLink, PreloadOrder, StartOrder
from orchestrator.links.client_link import pack_environ
from orchestrator.store.runs.writer import RunStore
from orchestrator.supervisor import now
from orchestrator.supervisor.run_logs import RunLogs
from orchestrator.supervisor.tensorboard_task import TensorBoardTask

FIRST_ATTEMPT = 1
_HOST = "127.0.0.1"
_AGENT_EXITS_S = 2.0
_NO_BOOTSTRAP = (
    "Python's options -I, -E and -S keep orch's code out of the script's process: no fixes for Keras, no stacks, and"
    " the script itself decides how it handles a stop"
)


class HostAgent:
    """Owns the agent until end(), for one or several runs. `link` is None without an agent."""

    def __init__(self, engine: Engine, stream: socket.socket | None = None) -> None:
        """`stream`: to an agent that the engine has already started, before there was a run."""
        self.link = None if stream is None else AgentLink(stream, run_id="")
        self._engine = engine
        # The network of the runs so far. None: an agent without a run can still enter any network.
        self._network: NetworkOption | None = None

    def serve(self, spec: JobSpec, store: RunStore) -> AgentLink:
        """Return the link to an agent that serves this run from now on. EngineError if it cannot be started."""
        if self._network in (None, spec.network) and self.link is not None and _order(self.link, spec, store):
            self._network = spec.network
            return self.link
        self.end()
        run_id = store.paths.run_id
        (stream,) = self._engine.start_agents(AgentOptions(run_id, spec.failure_grace_s, None, spec.network))
        self.link, self._network = AgentLink(stream, run_id), spec.network
        _order(self.link, spec, store)
        return self.link

    def end(self) -> None:
        """Close the stream, on which the agent kills everything it started; wait for its exit, or kill it."""
        if self.link is not None:
            self.link.close()
            self.link = None
        if not self._engine.agents_gone(_AGENT_EXITS_S):
            self._engine.cancel()


def _order(agent: AgentLink, spec: JobSpec, store: RunStore) -> bool:
    """Order the agent to serve a run; False if it is gone."""
    return agent.serve(
        store.paths.run_id,
        spec.failure_grace_s,
        str(store.paths.agent_log),
        store.directory.identity,
        pack_environ(os.environ),
        spec.network,
    )


class Attempts:
    """Plans the attempts of one run and gives the orders to start them. Reports to the end of `queue`."""

    def __init__(
        self,
        spec: JobSpec,
        agent: HostAgent,
        store: RunStore,
        logs: RunLogs,
        tensorboard: TensorBoardTask,
        queue: deque[Event],
    ) -> None:
        self._spec = spec
        self._agent = agent
        self._store = store
        self._logs = logs
        self._tensorboard = tensorboard
        self._queue = queue
        self._plan: RunPlan | None = None

    def begin(self, link: AgentLink) -> None:
        """Order the preloading, which takes longest, and the ports of the first attempt."""
        commands = self._spec.commands
        if any(command.interpreter and not takes_bootstrap(command) for command in commands):
            self._queue.append(events.Noticed(**now(), text=_NO_BOOTSTRAP, verbose=True))
        self._preload(link)
        self.hold_ports(FIRST_ATTEMPT)

    def hold_ports(self, attempt: int) -> None:
        if self._agent.link is not None:
            self._agent.link.hold(attempt, len(self._spec.tasks), hold_mode(self._spec, os.environ))

    def _preload(self, link: AgentLink) -> None:
        preload = preload_plan(self._spec, self._store.paths, os.environ)
        if preload is None:
            self._queue.append(events.NotPreloaded(**now(), reason=self._spec.command.start.reason))
            return
        link.preload(
            PreloadOrder(
                argv=preload.argv,
                env=preload.env,
                cwd=str(preload.cwd),
                modules=preload.modules,
                script_env=preload.script_env,
                log=str(self._store.paths.preloader_log),
            )
        )
        self._queue.append(events.PreloadBegan(**now(), modules=preload.modules))

    def plan(self, attempt: int, ports: tuple[int, ...]) -> None:
        """Plan an attempt whose ports are held."""
        addresses = [f"{_HOST}:{port}" for port in ports]
        self._plan = build_plan(self._spec, addresses, self._store.paths, attempt, os.environ)
        tasks = planned_tasks(self._plan)
        self._queue.append(events.AttemptPlanned(**now(), attempt=attempt, tasks=tasks))

    def start_all(self) -> None:
        """Start every task of the planned attempt."""
        if self._agent.link is None or self._plan is None:
            return
        with self._storage_errors_reported():
            self._store.require_place()  # tasks find their directories by path
            for task in self._plan.tasks:
                with self._store.directory.make(task.scratch.parent.name) as scratch:
                    scratch.make(task.scratch.name).close()
                self._logs.add(str(task.task), self._plan.attempt, task.log)
                self._start(self._agent.link, task, task.env)
            self._tensorboard.start(self._agent.link)

    def start_again(self, name: str, restarts: int) -> None:
        """Start one task again with its port, while the other tasks continue. `restarts`: so far."""
        if self._agent.link is None or self._plan is None:
            return
        with self._storage_errors_reported():
            self._store.require_place()
            for task in self._plan.tasks:
                if str(task.task) == name:
                    self._start(self._agent.link, task, {**task.env, "ORCH_RESTARTS": str(restarts)})

    @contextmanager
    def _storage_errors_reported(self) -> Iterator[None]:
        """Report an OSError about a task's files as a failure of the storage."""
        try:
            yield
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            self._queue.append(events.StorageFailed(**now(), reason=reason))

    def _start(self, link: AgentLink, task: TaskPlan, env: Mapping[str, str]) -> None:
        name = str(task.task)
        # It may hold the exception of an earlier process of this task.
        self._store.forget_exception(name)
        self._logs.mark_process_start(name)
        link.start(
            StartOrder(
                task=name,
                argv=task.argv,
                env=env,
                cwd=str(task.cwd),
                log=str(task.log),
                port=int(task.address.rpartition(":")[2]) if task.address else None,
                serves=task.serves,
                bootstrap=task.bootstrap,
                fork=task.fork,
                memory_limit=self._spec.memory_limit_bytes,
            )
        )
