"""The clusters that a test starts: keeps their runs in its directory and stops those that still run at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

import pytest

from orchestrator.client.api import Run
from orchestrator.client.launch import Cluster
from orchestrator.client.session import Session
from orchestrator.client.view.report import cause_text
from orchestrator.core.errors import OrchError
from orchestrator.core.text.clean import safe, safe_lines
from orchestrator.pytest_plugin.run_report import report_of
from orchestrator.request.settings.keywords import Directory, UpOptions, Words

_STATE_HOME = "XDG_STATE_HOME"
_CURRENT_TEST = "PYTEST_CURRENT_TEST"
_Start = Callable[..., AbstractContextManager[Run]]


class ClustersOfTest:
    """The clusters of one test. Call it to start a cluster; close() stops those that still run.

    While it has clusters, XDG_STATE_HOME is `state_home`: the user's own state directory does not show these runs, but
    `orch ls` and `orch logs` in the test do. All tests of a process share it, because a session drops its preloaded
    modules when the environment changes.
    """

    def __init__(self, directory: Callable[[], Path], state_home: Path, timeout: str) -> None:
        """`directory` creates the directory of the runs on first use; `timeout` is the default for runs."""
        self._directory = directory
        self._state_home = state_home
        self._timeout = timeout
        self._log_dir: Path | None = None
        self._runs: list[Run] = []
        self._live = ExitStack()
        self._environment: pytest.MonkeyPatch | None = None

    def __repr__(self) -> str:
        return f"<clusters of this test: {', '.join(map(repr, self._runs)) or 'none yet'}>"

    def __call__(
        self,
        workers: int | str | None = None,
        command: Words = (),
        *,
        wait: bool = True,
        directory: Directory | None = None,
        **options: Unpack[UpOptions],
    ) -> Run:
        """Return a finished run, whether or not it succeeded; with `wait=False` one that has just been started.

        The other arguments are those of orchestrator.Cluster: `directory` is the one in which `orch up` would be called
        (default: the current one), `options` are its options in snake case. Raises UsageError or EngineError if the run
        cannot start.
        """
        arguments = {"workers": workers, "command": command, "directory": directory, **options}
        return self.start(Cluster, wait, arguments)

    def run(
        self,
        function: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        workers: int | None = None,
        *,
        directory: Directory | None = None,
        **options: Unpack[UpOptions],
    ) -> list[Any]:
        """Call a function, such as one in the test, in every task; return what each returned. As orchestrator.run."""
        with Session() as session:
            return self.call(session, function, args, kwargs, workers, directory, options)

    def call(
        self,
        session: Session,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        workers: int | None,
        directory: Directory | None,
        options: Mapping[str, object],
    ) -> list[Any]:
        """The same as a run of this session."""
        from orchestrator.client.functions import FunctionCall

        self._set_environment()
        given = {"timeout": self._timeout, "log_dir": self._runs_dir(), **options}
        with ExitStack() as stack:
            call = stack.enter_context(FunctionCall(function, args, kwargs, workers, directory, given))
            with _without_test_name():
                run = stack.enter_context(session.calling(call))
            self._runs.append(run)
            return call.values(run)

    def start(self, start: _Start, wait: bool, arguments: Mapping[str, object]) -> Run:
        """The same with `start`, which is Cluster or creates a cluster of a session."""
        self._set_environment()
        cluster = start(**{"timeout": self._timeout, "log_dir": self._runs_dir(), **arguments})
        if not wait:
            run = self._live.enter_context(cluster)
            self._runs.append(run)
            return run
        with cluster as run:
            self._runs.append(run)
            run.wait(check=False)
        return run

    def report_sections(self) -> list[tuple[str, str]]:
        """Title and text about each run, for the report of a failed test."""
        return [(safe(f"orch run {run.id}"), safe_lines(self._report(run))) for run in self._runs]

    def causes(self) -> list[str]:
        """The last line of the report of each run that has ended and did not succeed."""
        ended = [run.view.result() for run in self._runs if not run.view.is_live]
        return [safe(text) for result in ended if result is not None and (text := cause_text(result))]

    def close(self) -> None:
        """Stop live runs and wait until they have ended. Idempotent. Raises EngineError if one does not end."""
        try:
            self._live.close()
        finally:
            if self._environment is not None:
                self._environment.undo()
                self._environment = None

    def _report(self, run: Run) -> str:
        try:
            report = report_of(run)
        except (OrchError, OSError, ValueError) as error:
            report = f"{run.dir}: its state cannot be read: {error}"
        return f"{report}\nall its lines: {_STATE_HOME}={self._state_home} orch logs {run.id}"

    def _set_environment(self) -> None:
        if self._environment is None:
            self._state_home.mkdir(mode=0o700, exist_ok=True)
            self._environment = pytest.MonkeyPatch()
            self._environment.setenv(_STATE_HOME, str(self._state_home))

    def _runs_dir(self) -> Path:
        if self._log_dir is None:
            self._log_dir = self._directory() / "orch"
        return self._log_dir


class PreloadedClusters:
    """Clusters of one Session that is shared by tests; each cluster is stopped at the end of its test."""

    def __init__(self, clusters_of_this_test: Callable[[], ClustersOfTest]) -> None:
        self._clusters_of_this_test = clusters_of_this_test
        self._session = Session()

    def __enter__(self) -> PreloadedClusters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def __call__(
        self,
        workers: int | str | None = None,
        command: Words = (),
        *,
        wait: bool = True,
        directory: Directory | None = None,
        **options: Unpack[UpOptions],
    ) -> Run:
        """As ClustersOfTest; also raises UsageError while another cluster of the session is live."""
        arguments = {"workers": workers, "command": command, "directory": directory, **options}
        return self._clusters_of_this_test().start(self._up, wait, arguments)

    def run(
        self,
        function: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        workers: int | None = None,
        *,
        directory: Directory | None = None,
        **options: Unpack[UpOptions],
    ) -> list[Any]:
        """As ClustersOfTest.run."""
        clusters = self._clusters_of_this_test()
        return clusters.call(self._session, function, args, kwargs, workers, directory, options)

    @contextmanager
    def _up(self, **arguments: Any) -> Iterator[Run]:
        with ExitStack() as stack:
            with _without_test_name():
                run = stack.enter_context(self._session.up(**arguments))
            yield run


@contextmanager
def _without_test_name() -> Iterator[None]:
    """Remove the variable that differs in every test: a changed environment would end the preloader."""
    name = os.environ.pop(_CURRENT_TEST, None)
    try:
        yield
    finally:
        if name is not None:
            os.environ[_CURRENT_TEST] = name
