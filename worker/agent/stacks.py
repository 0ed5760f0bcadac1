"""Open requests for the stacks of tasks. Helpers of the agent answer them: a crash there ends no run."""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from worker.agent.helper import Helper
from worker.agent.processes import DEAD
from worker.agent.stack_sources import take_all
from worker.agent.tasks import TaskProcess
from worker.wire.messages import Stacked, decode_report
from worker.wire.stream import LineSplitter

_READ_BYTES = 1 << 16


@dataclass
class _Request:
    """The tasks that a helper was forked for. `waiting`: those without an answer."""

    helper: Helper
    native: bool
    waiting: set[str]
    lines: LineSplitter = field(default_factory=LineSplitter)


class StackTaking:
    """Open requests for stacks. `answer` is called once for each task of a request."""

    def __init__(self, poller: select.epoll, answer: Callable[[Stacked], None]) -> None:
        self._poller = poller
        self._answer = answer
        self._requests: dict[int, _Request] = {}
        # Number of requests for a task, with native frames or without, that wait for its answer.
        self._askers: Counter[tuple[str, bool]] = Counter()

    @property
    def pids(self) -> set[int]:
        """The pids of the helpers, which only this object may reap."""
        return {request.helper.pid for request in self._requests.values()}

    def ask(
        self, names: Iterable[str], tasks: Mapping[str, TaskProcess], native: bool, *, ending: bool
    ) -> None:
        """Take the stacks of these tasks (without names: of all). While `ending`, a teardown would kill py-spy."""
        asked = {}
        for name in list(names) or list(tasks):
            if name not in tasks:
                note = "it has not started, or it has exited"
                self._answer(Stacked(name, native, "none", note=note))
            else:
                if not self._askers[name, native]:
                    asked[name] = tasks[name]
                self._askers[name, native] += 1
        if not asked:
            return
        work = partial(take_all, asked.values(), native, not ending)
        try:
            helper = Helper.fork("orch-stacks", work, [task.pidfd for task in asked.values()])
        except OSError as error:
            for name in asked:
                self._give(Stacked(name, native, "none", note=f"no process can be started: {error}"))
            return
        self._requests[helper.stream.fileno()] = _Request(helper, native, set(asked))
        self._poller.register(helper.stream, select.EPOLLIN)

    def serves(self, fd: int) -> bool:
        """Whether this descriptor belongs to it."""
        return fd in self._requests

    def serve(self, fd: int) -> None:
        """Read answers of a helper."""
        request = self._requests[fd]
        try:
            data = request.helper.stream.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for line in request.lines.feed(data):
            answer = decode_report(line)
            if answer.task in request.waiting:
                request.waiting.remove(answer.task)
                self._give(answer)
        if not data or not request.waiting:
            self._end(request, "the process that reads stacks has crashed")

    def forget(self, task: TaskProcess) -> None:
        """Answer the requests for a task that has exited."""
        for request in [*self._requests.values()]:
            if task.name in request.waiting:
                request.waiting.remove(task.name)
                note = "it exited before it answered"
                self._give(Stacked(task.name, request.native, "none", DEAD, note=note))
                if not request.waiting:
                    self._end(request)

    def cancel(self) -> None:
        """Answer all requests, because a teardown starts."""
        for request in [*self._requests.values()]:
            self._end(request, "the run is being torn down")

    def _end(self, request: _Request, reason: str = "") -> None:
        del self._requests[request.helper.stream.fileno()]
        self._poller.unregister(request.helper.stream)
        request.helper.end()
        for name in request.waiting:
            self._give(Stacked(name, request.native, "none", note=reason))

    def _give(self, answer: Stacked) -> None:
        for _ in range(self._askers.pop((answer.task, answer.native), 0)):
            self._answer(answer)
