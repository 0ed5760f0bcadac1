"""The Python API to existing runs: find them, look at them, give them orders.

Errors are those of orchestrator.core.errors: UsageError before anything starts; TaskFailed, RunTimedOut, RunStopped or
RunLost from wait(), each with the run's result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from orchestrator.client.run_thread import finish_showing
from orchestrator.core.errors import (
    EngineError,
    NoSuchRun,
    OrchError,
    RunEnded,
    RunLost,
    RunStopped,
    RunTimedOut,
    TaskFailed,
    UsageError,
)
from orchestrator.core.progress.activity import late_start
from orchestrator.core.progress.history_rows import History
from orchestrator.core.state.result import CauseKind, RunResult, TaskStack, exit_text
from orchestrator.core.state.state import RunPhase
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.store.runs import catalog, lost_runs
from orchestrator.store.runs.liveness import Liveness
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

# `orch up`, `orch status` and `orch ls` must start quickly: methods import what only they need.
if TYPE_CHECKING:
    from orchestrator.client.stop import Ended
    from orchestrator.client.view.status_document import Status
    from orchestrator.links.orders import ControlOrder

_POLL_S = 0.02
# Clouds give at least so many seconds, and --in of `orch notice` is as long.
DEFAULT_LEFT_S = 30.0
_ORDER_TIMEOUT_S = 5.0
# Tasks answer within about 2 s; for native stacks py-spy reads all of TensorFlow's symbols first.
_STACKS_TIMEOUT_S, _NATIVE_STACKS_TIMEOUT_S = 15.0, 90.0


class Run:
    """A run, live or ended. Attributes: `id`, `name`, `dir` (its directory), `checkpoint_dir`."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.id = view.record.id
        self.name = view.record.name
        self.dir = view.paths.root
        self.checkpoint_dir = Path(view.record.checkpoint_dir)

    def __repr__(self) -> str:
        try:
            self._view.refresh()
            state = f"{self._view.state.phase}, attempt {self._view.state.attempt}"
        except (OrchError, OSError, ValueError) as error:
            state = f"its state cannot be read ({error})"
        return safe(f"<Run {self.id}: {state}; {self.dir}>")

    def _repr_html_(self) -> str:
        from orchestrator.client.notebook import picture

        return picture(self.dir, self.id)

    def _ipython_display_(self) -> None:
        """Show a live run that is updated until its end. NotImplementedError makes IPython use the other methods."""
        from orchestrator.client.notebook import show_live

        if not show_live(self.dir, self.id):
            raise NotImplementedError

    @property
    def view(self) -> RunView:
        """The reader of the run's directory, for code that displays the run."""
        return self._view

    def status(self) -> Status:
        """The current state of the run and each of its tasks."""
        return status_of(self._view)

    def log(self, task: str) -> Path:
        """The file with exactly the bytes that a task ("worker:0") wrote."""
        return self._view.paths.task_log(task)

    def history(self) -> History:
        """Progress, CPU and memory of all tasks over time, as columns: `pandas.DataFrame(run.history())`.

        A row is a task at a time: `time` is seconds since the start of the run. A value that is not known is None. Each
        metric has a column. The rows are at least a second apart, and thinned as the run grows: at most 4,000 a task.
        """
        return self._view.history()

    def wait(self, timeout_s: float | None = None, check: bool = True) -> RunResult:
        """Wait for the run's end and return its result. With `check`, raises RunEnded unless the run succeeded.

        Raises TimeoutError after `timeout_s` seconds, EngineError if it is not known whether the run is live. A lost
        run has no process left on this machine when RunLost is raised.
        """
        from orchestrator.client.stop import end_processes_of_lost, unknown_liveness

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._view.keep_open():
            while (liveness := self._view.liveness) is not Liveness.DEAD:
                if liveness is Liveness.UNKNOWN:
                    raise unknown_liveness(self._view)
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(safe(f"{self.id} still runs after {timeout_s:g} s"))
                time.sleep(_POLL_S)
            end_processes_of_lost(self._view)
            result = result_of(self._view)
        finish_showing(self.dir)
        if check:
            raise_for(result)
        return result

    def wait_ready(
        self, timeout_s: float | None = None, on_notice: Callable[[str], object] | None = None
    ) -> None:
        """Wait until every TensorFlow task listens on its port. Raises RunEnded if the run fails before, TimeoutError.

        `on_notice` is called with each notice of orch meanwhile, such as which task the others wait for.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        reported = 0
        self._view.refresh()
        while not self._view.state.is_ready:
            notices = self._view.state.notices
            if on_notice is not None:
                for notice in notices[reported:]:
                    on_notice(safe_lines(notice))
            reported = len(notices)
            if self._view.state.phase.is_end or not self._view.is_live:
                finish_showing(self.dir)
                raise_for(result_of(self._view))
                return
            if deadline is not None and time.monotonic() >= deadline:
                late = late_start(self._view.state, self._view.now_mono())
                why = f": {late}" if late else ""
                raise TimeoutError(safe(f"{self.id} is not ready after {timeout_s:g} s{why}"))
            time.sleep(_POLL_S)
            self._view.refresh()

    def kill(self, task: str, signal: int = SIGKILL) -> int:
        """Send `signal` to the process group of a live task ("worker:1"). Return the pid of the group's leader.

        Raises UsageError if the task does not exist or is not live, NoSuchRun if the run has ended.
        """
        from orchestrator.links.orders import KillOrder

        return int(self.order(KillOrder(task=task, signal=signal))["pid"])

    def restart(self) -> None:
        """Restart all tasks as another attempt with new ports.

        Raises UsageError while the run is being stopped, NoSuchRun if it has ended.
        """
        from orchestrator.links.orders import RestartOrder

        self.order(RestartOrder())

    def notice(self, left_s: float = DEFAULT_LEFT_S) -> None:
        """Say that the machines of the run go in `left_s` seconds: its tasks save their state and end before that.

        The run ends as stopped, with exit code 42. Raises UsageError while it is being stopped, NoSuchRun if it has
        ended.
        """
        from orchestrator.links.orders import NoticeOrder

        self.order(NoticeOrder(left_s=left_s))

    def stacks(self, *tasks: str, native: bool = False) -> dict[str, TaskStack]:
        """Return the current stacks of these tasks (default: all live ones); this may take some seconds.

        `native`: include C and C++ frames, by py-spy. Raises UsageError, NoSuchRun.
        """
        from orchestrator.links.orders import StacksOrder

        timeout_s = _NATIVE_STACKS_TIMEOUT_S if native else _STACKS_TIMEOUT_S
        answer = self.order(StacksOrder(tasks=tasks, native=native), timeout_s)
        return {task: TaskStack.model_validate(stack) for task, stack in answer["stacks"].items()}

    def order(self, order: ControlOrder, timeout_s: float = _ORDER_TIMEOUT_S) -> dict[str, Any]:
        """Send an order to the supervisor of the live run and return its answer.

        Raises UsageError with the reason if the supervisor refuses, NoSuchRun if the run has ended, EngineError if the
        supervisor does not answer.
        """
        from orchestrator.client.orders import ask_run

        answer = ask_run(self._view, order, timeout_s) if self._view.is_live else None
        if answer is None:
            # After its last event the supervisor writes the result, and then holds the lock for another moment.
            self._view.refresh()
            has_ended = self._view.state.phase.is_end or self._view.result() is not None
            if has_ended or not self._view.is_live:
                raise NoSuchRun(f"{self.id} has ended; `orch up` starts another run")
            if self._view.state.phase is RunPhase.QUEUED:
                raise UsageError(
                    f"{self.id} is queued, and no task has started; `orch status` shows why it waits"
                )
            raise EngineError(
                f"{self.id}: the supervisor (pid {self._view.record.supervisor_pid}) does not answer; is it suspended?"
                f" See {self.dir}/supervisor.log"
            )
        if not answer.get("ok"):
            raise UsageError(f"{self.id}: {answer.get('error', 'the supervisor refused')}")
        return answer

    def down(self, force: bool = False) -> Ended:
        """Stop the run and wait until none of its processes is left. Idempotent."""
        from orchestrator.client.stop import stop_run

        try:
            return stop_run(self._view, force)
        finally:
            finish_showing(self.dir)


def tidy(there: catalog.Survey | None = None) -> list[tuple[str, int]]:
    """End the processes of lost runs and record their ends. Return (run id, number of processes) for each.

    `there`: all runs, if they have just been listed.
    """
    runs = there or catalog.survey()
    swept = lost_runs.sweep_lost_runs(runs)
    lost_runs.close_lost_runs(runs)
    lost_runs.remove_unpublished_runs(runs)
    return swept


def find(
    run: str | None = None, directory: str | Path | None = None, there: catalog.Survey | None = None
) -> Run:
    """Return the run with this id, beginning of an id, or name; by default the newest of `directory`, live first.

    `there`: all runs, if they have just been listed. Raises NoSuchRun.
    """
    return Run(catalog.find_run(run, Path(directory or Path.cwd()).absolute(), there))


def status(run: str | None = None) -> Status:
    return find(run).status()


def history(run: str | None = None) -> History:
    """Return Run.history() of the run that find() returns, such as that of a result: `history(result.run_id)`."""
    return find(run).history()


def down(run: str | None = None, force: bool = False) -> Ended:
    return find(run).down(force)


def ls(directory: str | Path | None = None) -> Iterator[Run]:
    """Yield all runs, oldest first, or only those started in `directory`."""
    wanted = None if directory is None else str(Path(directory).absolute())
    for view in catalog.all_runs():
        if wanted in (None, view.record.directory):
            yield Run(view)


def status_of(view: RunView) -> Status:
    from orchestrator.client.run_rows import read_status

    view.refresh()
    return read_status(view)


class ResultOfRun(RunResult):
    """A result with the directory of its run. It is equal to a RunResult with the same values."""

    _dir: Path = PrivateAttr()

    @classmethod
    def of(cls, result: RunResult, run_dir: Path) -> ResultOfRun:
        made = cls.model_construct(result.model_fields_set, **dict(result))
        made._dir = run_dir
        return made

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, RunResult) else NotImplemented

    def _repr_html_(self) -> str:
        from orchestrator.client.notebook import picture

        return picture(self._dir, self.run_id)

    def history(self) -> History:
        """The same as Run.history()."""
        view = RunView.open(RunPaths(self._dir))
        if view is None:
            raise NoSuchRun(f"{self.run_id}: its directory {self._dir} was removed")
        return view.history()


def result_of(view: RunView) -> RunResult:
    """The result of an ended run; without a result file it is derived from the events."""
    view.refresh()
    return ResultOfRun.of(lost_runs.result_of(view), view.paths.root)


def raise_for(result: RunResult) -> None:
    """Raise the error for a result other than success."""
    if not result.succeeded:
        raise error_of(result)


def error_of(result: RunResult) -> RunEnded:
    """The error for a result other than success."""
    first = result.first_failure
    is_of_host = result.cause is not None and result.cause.kind is CauseKind.HOST
    if result.outcome == "failed" and first is not None and not is_of_host:
        from orchestrator.client.view.report import cause_text

        said = cause_text(result) or f"{first.task}: {exit_text(first.exit_code, first.signal)}"
        message = f"{said}; see {first.log}"
        return TaskFailed(safe(message), result, first.task, first.exit_code, Path(first.log))
    why = f": {result.cause.text}" if result.cause and (first is None or is_of_host) else ""
    kinds: Mapping[str, type[RunEnded]] = {"timed_out": RunTimedOut, "stopped": RunStopped, "lost": RunLost}
    return kinds.get(result.outcome, RunEnded)(
        safe(f"{result.run_id} {result.outcome.replace('_', ' ')}{why}"), result
    )
