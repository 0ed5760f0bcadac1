"""Takes the stacks of tasks: from their own dump on a signal, else from py-spy, else what /proc shows."""

from __future__ import annotations

import os
import select
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.agent import stack_sources
from worker.agent.processes import DEAD, ProcessStat, all_processes, descendants, tree_states
from worker.agent.stack_sources import CHECK_S, PySpy, Source
from worker.agent.task_process import StartFailed, TaskProcess
from worker.wire.facts import StacksSource
from worker.wire.messages import Stacked

# py-spy processes at a time. For native frames one reads whole libraries while its task is paused.
_SPIES_AT_ONCE, _NATIVE_SPIES_AT_ONCE = 2, 1
_INSTALL = 'pip install "tf-orch[stacks]" installs py-spy, which needs no answer'


@dataclass
class _Question:
    """A request for the stacks of one task. `problems` says why the sources tried so far failed."""

    task: TaskProcess
    native: bool
    state: str
    target: int | None
    askers: int = 1
    due: float = 0.0
    problems: list[str] = field(default_factory=list)
    spy: PySpy | None = None

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")


_Way = tuple[StacksSource, Callable[[_Question], Source]]


class StackTaking:
    """Open requests for stacks. `answer` is called once for each task of a request."""

    def __init__(self, poller: select.epoll, answer: Callable[[Stacked], None]) -> None:
        self._poller = poller
        self._answer = answer
        self._questions: dict[tuple[str, bool], tuple[_Question, Generator[float, None, None]]] = {}
        self._spies: dict[int, tuple[PySpy, _Question]] = {}
        self._dumping: set[str] = set()
        self._may_spy = True

    @property
    def due(self) -> float:
        """The time of the next advance() (monotonic seconds)."""
        return min((question.due for question, _ in self._questions.values()), default=float("inf"))

    def allow_tracing(self, bootstrap: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """Return the bootstrap's options; under Yama the task itself must allow py-spy to trace it."""
        if (
            bootstrap is None
            or not stack_sources.is_tracing_restricted()
            or stack_sources.find_py_spy() is None
        ):
            return bootstrap
        return {**bootstrap, "tracer": os.getpid()}

    def ask(
        self, names: Iterable[str], tasks: Mapping[str, TaskProcess], native: bool, *, ending: bool
    ) -> None:
        """Take the stacks of these tasks (without names: of all). While `ending`, a teardown would kill py-spy too."""
        self._may_spy = not ending
        processes = all_processes()
        states = tree_states((task.pid for task in tasks.values()), processes)
        for name in list(names) or list(tasks):
            task = tasks.get(name)
            if task is None:
                note = "it has not started, or it has exited"
                self._answer(Stacked(name, native, "none", note=note))
                continue
            known = self._questions.get((name, native))
            if known is not None:
                known[0].askers += 1
                continue
            question = _Question(task, native, states[task.pid], _python_process(task.pid, processes))
            self._questions[name, native] = question, self._asking(question)

    def advance(self, now: float) -> None:
        """Do what is due."""
        for key, (question, steps) in list(self._questions.items()):
            if question.due > now:
                continue
            try:
                question.due = next(steps)
            except StopIteration:
                self._questions.pop(key, None)

    def serves(self, fd: int) -> bool:
        """Whether this descriptor belongs to it."""
        return fd in self._spies

    def serve(self, fd: int) -> None:
        """Read the output of a py-spy process."""
        spy, question = self._spies[fd]
        spy.read()
        if spy.fileno() < 0:
            del self._spies[fd]
        question.due = 0.0

    def reap(self, pid: int) -> bool:
        """Read the exit status of this ended child, if it belongs to it."""
        for question, _ in self._questions.values():
            if question.spy is not None and question.spy.pid == pid:
                question.spy.reap()
                question.due = 0.0
                return True
        return False

    def forget(self, task: TaskProcess) -> None:
        """Answer the requests for a task that has exited."""
        for key, (question, steps) in list(self._questions.items()):
            if question.task is task:
                steps.close()
                del self._questions[key]
                question.state = DEAD
                question.problems = ["it exited before it answered"]
                self._give(question, "none", "", {})

    def cancel(self) -> None:
        """Cancel what needs py-spy, because a teardown starts."""
        for key, (question, steps) in list(self._questions.items()):
            if question.spy is not None:
                steps.close()
                del self._questions[key]
                question.problems.append("the run is being torn down")
                self._give(question, "none", "", {})
        self._may_spy = False

    # -- one question

    def _asking(self, question: _Question) -> Generator[float, None, None]:
        by_signal: _Way = ("signal", self._by_signal)
        by_spy: _Way = ("py-spy", self._by_spy)
        sources = [by_signal, by_spy]
        if question.is_stopped:
            sources = [by_spy]
        elif question.native:
            sources = [by_spy, by_signal]
        for how, source in sources:
            try:
                found = yield from source(question)
            except Exception as error:
                # For example a file on a failing disk. It must not end the agent, and with it the run.
                traceback.print_exc()
                question.problems.append(f"{how}: {error}")
                continue
            if found is not None:
                self._give(question, how, *found)
                return
        self._give(question, "none", "", {})

    def _give(self, question: _Question, how: StacksSource, text: str, where: Mapping[str, Any]) -> None:
        notes = list(question.problems)
        if how == "none":
            stopped = "it is stopped and answers no signal" if question.is_stopped else ""
            notes = [note for note in (stopped, *notes, _kernel_view(question.task.pid)) if note]
        note = "; ".join(notes)
        for _ in range(question.askers):
            self._answer(
                Stacked(
                    question.task.name,
                    question.native,
                    how,
                    state=question.state,
                    text=text,
                    note=note or None,
                    **where,
                )
            )

    def _by_signal(self, question: _Question) -> Source:
        task = question.task
        if task.stacks_signal is None or task.start.stacks_file is None:
            question.problems.append(
                "it runs without orch's bootstrap"
                if task.start.stacks_file is None
                else "it does not handle the signal that asks for stacks"
            )
            return None
        # Two dumps at a time would mix in the file.
        while task.name in self._dumping:
            yield time.monotonic() + CHECK_S
        self._dumping.add(task.name)
        try:
            return (
                yield from stack_sources.own_dump(
                    task, task.stacks_signal, task.start.stacks_file, question.problems
                )
            )
        finally:
            self._dumping.discard(task.name)

    def _by_spy(self, question: _Question) -> Source:
        program = stack_sources.find_py_spy()
        native = question.native and not question.is_stopped
        if question.target is None:
            question.problems.append("it is not a Python program")
            return None
        if program is None:
            question.problems.append(_INSTALL)
            return None
        at_once = _NATIVE_SPIES_AT_ONCE if native else _SPIES_AT_ONCE
        while len(self._spies) >= at_once and self._may_spy:
            yield time.monotonic() + CHECK_S
        if not self._may_spy:
            question.problems.append("the run is being torn down")
            return None
        if question.native and question.is_stopped:
            question.problems.append("native frames cannot be read of a stopped process")
        now = time.monotonic()
        try:
            spy = PySpy(
                program,
                question.target,
                native=native,
                is_stopped=question.is_stopped,
                now=now,
                poller=self._poller,
            )
        except (OSError, StartFailed) as error:
            question.problems.append(f"py-spy could not be started: {error}")
            return None
        question.spy = spy
        self._spies[spy.fileno()] = spy, question
        try:
            while not spy.is_done:
                yield spy.deadline
                if time.monotonic() >= spy.deadline and not spy.is_done:
                    spy.time_out()
                    spy.deadline = float("inf")
        finally:
            # The generator was closed: a teardown has started, or the task has exited.
            if not spy.is_done:
                self._spies.pop(spy.fileno(), None)
                spy.kill()
            question.spy = None
        if spy.problem is not None:
            question.problems.append(spy.problem)
            return None
        return spy.text, {}


def _python_process(leader: int, processes: dict[int, ProcessStat]) -> int | None:
    """Return the leader, or the first Python process below it, as in a command that runs in a shell."""
    below = [found.pid for found in descendants(leader, processes)]
    return next((pid for pid in (leader, *below) if _is_python(pid)), None)


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def _kernel_view(pid: int) -> str:
    """Return what /proc shows: `waits in the kernel in futex_wait_queue, 14 threads`."""
    parts = []
    try:
        place = Path(f"/proc/{pid}/wchan").read_text().strip()
        if place not in ("", "0"):
            parts.append(f"waits in the kernel in {place}")
        threads = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 (only how many)
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    except OSError:
        pass
    return ", ".join(parts)
