"""The running tasks by name and by descriptor, and the state of the others when one fails."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping
from typing import Self

from worker.agent.processes import all_processes, tree_states
from worker.agent.task_process import TaskProcess

_MOST_EXITS_AT_ONCE = 1024


class LiveTasks:
    """The running tasks in the order of their starts. `poller` wakes for their progress pipes and their exits."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        # Exits have their own epoll, so that they can be read before other ready descriptors.
        self._exits = select.epoll()
        poller.register(self._exits, select.EPOLLIN)
        self._by_name: dict[str, TaskProcess] = {}
        self._by_fd: dict[int, TaskProcess] = {}
        self._started: set[str] = set()
        self._has_failed = False

    def __iter__(self) -> Iterator[TaskProcess]:
        return iter([*self._by_name.values()])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def by_name(self) -> Mapping[str, TaskProcess]:
        return self._by_name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def owner(self, fd: int) -> TaskProcess | None:
        """The task that this descriptor belongs to."""
        return self._by_fd.get(fd)

    def exited(self) -> list[TaskProcess]:
        """Return the tasks that have exited and were not removed yet. Never waits."""
        # epoll returns descriptors in the order in which they became ready: this is the true order of exits.
        return [self._by_fd[fd] for fd, _ in self._exits.poll(0, _MOST_EXITS_AT_ONCE)]

    def begin_attempt(self) -> None:
        """Forget which tasks have started and failed in the previous attempt."""
        self._started.clear()
        self._has_failed = False

    def add(self, task: TaskProcess) -> None:
        if task.name in self._started:
            self._has_failed = False  # the task was restarted: the next failure is a first one again
        self._started.add(task.name)
        self._by_name[task.name] = task
        for poller, fd in ((self._exits, task.pidfd), (self._poller, task.progress_fd)):
            self._by_fd[fd] = task
            poller.register(fd, select.EPOLLIN)

    def drop_fd(self, fd: int) -> None:
        """Forget a progress pipe that is closed."""
        del self._by_fd[fd]

    def remove(self, task: TaskProcess) -> None:
        """Forget an exited task and close its descriptors."""
        self._exits.unregister(task.pidfd)
        if task.progress_fd >= 0:
            self._poller.unregister(task.progress_fd)
        task.close()
        # Its progress pipe may be closed already.
        self._by_fd = {fd: owner for fd, owner in self._by_fd.items() if owner is not task}
        del self._by_name[task.name]

    def peer_states(self, failed: TaskProcess) -> dict[str, str]:
        """Return {task: state letter (man 5 proc)} of the other tasks at the first failure since the
        attempt began or a task was restarted; else {}. Reading them for each of hundreds of failures takes too long."""
        if self._has_failed:
            return {}
        self._has_failed = True
        peers = [peer for peer in self if peer is not failed and not peer.order.is_helper]
        states = tree_states((peer.pid for peer in peers), all_processes())
        return {peer.name: states[peer.pid] for peer in peers}
