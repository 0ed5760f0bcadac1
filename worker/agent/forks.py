"""Forks tasks from the preloader: requests wait until it is ready, and give a task or the reason why not."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from worker.agent.preload_link import ForkRequest, Preloader
from worker.agent.run_logs import RunFile
from worker.agent.task_process import StartFailed, TaskProcess, TaskStart
from worker.wire.messages import NotPreloaded, Preloaded, PreloadOrder

# Open requests: enough to keep the preloader busy, too few to fill its stream.
_MAX_REQUESTS = 8


@dataclass(frozen=True)
class Forked:
    """A task has started."""

    task: TaskProcess


@dataclass(frozen=True)
class NotForked:
    """The task has to be spawned."""

    start: TaskStart
    reason: str


# The agent sends the first two to the supervisor.
Outcome = Preloaded | NotPreloaded | Forked | NotForked


class Forks:
    """Owns the preloader and the open requests to it. Returns outcomes, which the agent acts on."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._preloader: Preloader | None = None
        self._waiting: deque[TaskStart] = deque()
        self._asked: dict[int, ForkRequest] = {}
        self._reason = "nothing has been preloaded"

    @property
    def pid(self) -> int | None:
        """The preloader's pid."""
        return None if self._preloader is None else self._preloader.pid

    def preload(self, order: PreloadOrder, log: RunFile) -> Iterator[Outcome]:
        """Start a preloader for `order`, or keep the present one if it fits."""
        if self._preloader is not None:
            reason = self._preloader.why_unfit(order)
            if reason is None:
                if self._preloader.is_ready:
                    yield Preloaded(self._preloader.modules, 0.0)
                return
            yield NotPreloaded(reason, again=True)
        self._end_preloader()
        try:
            self._preloader = Preloader(order, log)
        except (StartFailed, OSError) as error:
            self._reason = str(error)
            yield NotPreloaded(self._reason)
        else:
            self._poller.register(self._preloader, select.EPOLLIN)

    def fork(self, start: TaskStart) -> Iterator[Outcome]:
        """Request the task now, or when the preloader is ready."""
        self._waiting.append(start)
        yield from self._ask()

    def serves(self, fd: int) -> bool:
        """Whether this descriptor belongs to it."""
        return fd in self._asked or (self._preloader is not None and fd == self._preloader.fileno())

    def serve(self, fd: int) -> Iterator[Outcome]:
        """Read one of its descriptors and act on it."""
        if fd in self._asked:
            yield from self._adopt(fd)
        elif self._preloader is not None:
            was_ready = self._preloader.is_ready
            self._preloader.read()
            if self._preloader.reason is not None:
                self._reason = self._preloader.reason
                self._end_preloader()
                yield NotPreloaded(self._reason)
            elif self._preloader.is_ready and not was_ready:
                yield Preloaded(self._preloader.modules, self._preloader.seconds)
        yield from self._ask()

    def cancel(self) -> None:
        """Cancel all requests whose task has not started."""
        self._waiting.clear()
        for fd in list(self._asked):
            self._forget(fd).close()

    def reap(self, pid: int) -> bool:
        """Read the preloader's exit status, if this ended child is the preloader."""
        if self._preloader is None or pid != self._preloader.pid:
            return False
        self._preloader.reap()
        return True

    def kill_preloader(self) -> None:
        """Kill the preloader now, so that it exits while the tasks do."""
        if self._preloader is not None:
            self._preloader.kill()

    def close(self) -> None:
        self.cancel()
        self._end_preloader()

    def _ask(self) -> Iterator[Outcome]:
        while self._waiting and len(self._asked) < _MAX_REQUESTS:
            if self._preloader is None:
                yield NotForked(self._waiting.popleft(), self._reason)
                continue
            if not self._preloader.is_ready:
                return
            start = self._waiting.popleft()
            try:
                request = self._preloader.fork(start)
            except OSError as error:
                yield NotForked(start, str(error))
                continue
            self._asked[request.fileno()] = request
            self._poller.register(request, select.EPOLLIN)

    def _adopt(self, fd: int) -> Iterator[Outcome]:
        request = self._asked[fd]
        outcome = request.adopt()
        if outcome is None:
            return
        self._forget(fd).close()
        yield NotForked(request.start, outcome) if isinstance(outcome, str) else Forked(outcome)

    def _forget(self, fd: int) -> ForkRequest:
        self._poller.unregister(fd)
        return self._asked.pop(fd)

    def _end_preloader(self) -> None:
        if self._preloader is not None:
            self._poller.unregister(self._preloader)
            self._preloader.close()
            self._preloader = None
