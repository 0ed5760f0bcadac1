"""Forks tasks from the preloader: requests wait until it is ready, and a task that cannot be forked is spawned."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable

from worker.agent.preload_link import ForkRequest, Preloader
from worker.agent.run_logs import RunFile
from worker.agent.task_start import StartFailed, TaskStart
from worker.agent.tasks import TaskProcess
from worker.wire.messages import NotPreloaded, Preloaded, PreloadOrder

# Open requests: enough to keep the preloader busy, too few to fill its stream.
_MAX_REQUESTS = 8


class Forks:
    """Owns the preloader and the open requests to it.

    `send` gets the messages for the supervisor, `add` each task that was forked, `spawn` each that must be spawned."""

    def __init__(
        self,
        poller: select.epoll,
        send: Callable[[Preloaded | NotPreloaded], None],
        add: Callable[[TaskProcess], None],
        spawn: Callable[[TaskStart], None],
    ) -> None:
        self._poller = poller
        self._send, self._add, self._spawn = send, add, spawn
        self._preloader: Preloader | None = None
        self._reason = "nothing has been preloaded"
        self._reported: set[str] = set()
        self._waiting: deque[TaskStart] = deque()
        self._requests: dict[int, ForkRequest] = {}

    @property
    def pid(self) -> int | None:
        """The preloader's pid."""
        return None if self._preloader is None else self._preloader.process.pid

    def begin_run(self) -> None:
        """Report again, for the new run, the reasons why tasks are not forked."""
        self._reported.clear()

    def preload(self, order: PreloadOrder, log: RunFile) -> None:
        """Start a preloader for `order`, or keep the present one if it fits."""
        if self._preloader is not None:
            reason = self._preloader.why_unfit(order)
            if reason is None:
                if self._preloader.is_ready:
                    self._send(Preloaded(self._preloader.modules, 0.0))
                return
            self._send(NotPreloaded(reason, again=True))
        self._end_preloader()
        try:
            self._preloader = Preloader(order, log)
        except (StartFailed, OSError) as error:
            self._refuse(str(error))
        else:
            self._poller.register(self._preloader.stream, select.EPOLLIN)

    def fork(self, start: TaskStart) -> None:
        """Request the task now, or when the preloader is ready."""
        self._waiting.append(start)
        self._request()

    def serves(self, fd: int) -> bool:
        """Whether this descriptor belongs to it."""
        return fd in self._requests or (self._preloader is not None and fd == self._preloader.stream.fileno())

    def serve(self, fd: int) -> None:
        """Read one of its descriptors and act on it."""
        if fd in self._requests:
            self._adopt(self._requests[fd])
        elif self._preloader is not None:
            message = self._preloader.read()
            if isinstance(message, NotPreloaded):
                self._end_preloader()
                self._refuse(message.reason)
            elif message is not None:
                self._send(message)
        self._request()

    def cancel(self) -> None:
        """Cancel all requests whose task has not started."""
        self._waiting.clear()
        for request in [*self._requests.values()]:
            self._close(request)

    def reap(self, pid: int) -> bool:
        """Read the preloader's exit status, if this ended child is the preloader."""
        if self._preloader is None or pid != self.pid:
            return False
        self._preloader.process.wait()
        return True

    def kill_preloader(self) -> None:
        """Kill the preloader now, so that it exits while the tasks do."""
        if self._preloader is not None:
            self._preloader.process.kill()

    def close(self) -> None:
        self.cancel()
        self._end_preloader()

    def _request(self) -> None:
        while self._waiting and len(self._requests) < _MAX_REQUESTS:
            if self._preloader is None:
                self._spawn_instead(self._waiting.popleft(), self._reason)
                continue
            if not self._preloader.is_ready:
                return
            start = self._waiting.popleft()
            try:
                request = self._preloader.fork(start)
            except OSError as error:
                self._spawn_instead(start, str(error))
                continue
            self._requests[request.stream.fileno()] = request
            self._poller.register(request.stream, select.EPOLLIN)

    def _adopt(self, request: ForkRequest) -> None:
        outcome = request.adopt()
        if outcome is None:
            return
        self._close(request)
        if isinstance(outcome, str):
            self._spawn_instead(request.start, outcome)
        else:
            self._add(outcome)

    def _spawn_instead(self, start: TaskStart, reason: str) -> None:
        self._report(reason)
        self._spawn(start)

    def _refuse(self, reason: str) -> None:
        self._reason = reason
        self._report(reason)

    def _report(self, reason: str) -> None:
        """Report each reason once: it is usually the same for all tasks."""
        if reason not in self._reported:
            self._reported.add(reason)
            self._send(NotPreloaded(reason))

    def _close(self, request: ForkRequest) -> None:
        del self._requests[request.stream.fileno()]
        self._poller.unregister(request.stream)
        request.stream.close()
        request.pipes.close()

    def _end_preloader(self) -> None:
        """Kill the preloader and wait for its exit. It holds no data."""
        if self._preloader is not None:
            self._poller.unregister(self._preloader.stream)
            self._preloader.stream.close()
            self._preloader.process.kill()
            self._preloader.process.wait()
            self._preloader = None
