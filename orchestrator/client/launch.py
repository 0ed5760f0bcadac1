"""Starts runs from Python: `Cluster`, and the steps of `orch up` that need no terminal.

with orchestrator.Cluster(workers=2, command=["train.py"]) as run:
    result = run.wait()
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack

from orchestrator.client.api import Run, tidy
from orchestrator.core.errors import EngineError, NameTaken, UsageError
from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.roles import counted_of
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.text.clean import safe
from orchestrator.host.checks import refuse_problems, warnings_of_up
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Level
from orchestrator.links.client_link import Descriptor, Request, Warm, pack_environ
from orchestrator.links.supervisor_link import SupervisorLink, start_supervisor
from orchestrator.request.settings import settings
from orchestrator.request.settings.declaration import Where
from orchestrator.request.settings.keywords import Directory, UpOptions, Words
from orchestrator.request.settings.options import SETTINGS
from orchestrator.request.settings.request import UpRequest
from orchestrator.store.ownership import accepted_owner
from orchestrator.store.runs import catalog
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

# A start that stops no other run does not wait for the import of client.stop.
if TYPE_CHECKING:
    from orchestrator.client.stop import Ended
    from orchestrator.preflight import Preflight

# Replacements in Python for some options of `orch up`.
_INSTEAD = {
    "detach": "the run continues while the `with` block does",
    "wait": "call run.wait_ready() or run.wait()",
    "junit": "pytest writes such a file: --junit-xml",
}


class Cluster:
    """A run for the duration of a `with` block. Leaving the block stops the run if it is still live.

    The keywords are the options of `orch up` in snake case; values are typed or text (`timeout="5m"`). `command` is the
    words after `--`, or text as in orch.toml; without it an example of orch runs. The file of
    settings and ORCH_* apply as they do on the command line. `stream`: show the lines of all tasks in sys.stdout while
    the run is live, such as below the cell of a notebook.
    A process forked inside the block may leave it without effect: the run belongs to its parent and continues.
    """

    def __init__(
        self,
        workers: int | str | None = None,
        command: Words = (),
        directory: Directory | None = None,
        *,
        stream: bool = False,
        **options: Unpack[UpOptions],
    ) -> None:
        self._stream = stream
        self._request = load_request(workers, command, directory, options)
        self._supervisor: SupervisorLink | None = None
        self._run: Run | None = None
        self._owner_pid = 0
        # Closes the supervisor's stream.
        self._kept = ExitStack()

    def __repr__(self) -> str:
        spec = self._request.spec
        roles = ", ".join(counted_of(role, count) for role, count in spec.roles.items())
        state = "not started" if self._run is None else self._run.id
        return safe(f"<Cluster {spec.name}: {roles}, {spec.masked().command}; {state}>")

    def __enter__(self) -> Run:
        self._owner_pid = os.getpid()
        warn(self._request)
        with ExitStack() as stack:
            if needs_job(self._request):
                self._run = submit_job(self._request)
                if self._stream:
                    stream_lines(self._run)
                return self._run
            request = on_nodes(self._request)
            self._supervisor = start_supervisor()
            stack.callback(self._supervisor.close)
            room = make_room(request, self._supervisor)
            for text in room.host_warnings:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            self._run = create_run(self._supervisor, request)
            if self._stream:
                stream_lines(self._run)
            self._kept = stack.pop_all()
        return self._run

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._owner_pid:
            return
        from orchestrator.client.stop import STOP_MARGIN_S

        with self._kept:
            try:
                if self._run is not None:
                    self._run.down()
            finally:
                if self._supervisor is not None:
                    self._supervisor.wait(STOP_MARGIN_S)


def stream_lines(run: Run) -> None:
    """Show the run's lines in sys.stdout until its end."""
    from orchestrator.client.stream import show_lines

    show_lines(run)


def load_request(
    workers: int | str | None, command: Words, directory: Directory | None, options: Mapping[str, object]
) -> UpRequest:
    """Return the checked request for the arguments of Cluster. UsageError if one is wrong."""
    for name, option in SETTINGS.items():
        if name in options and Where.KEYWORD not in option.where:
            raise UsageError(f"{name} has an effect in `orch up` only; {_INSTEAD.get(name, 'leave it out')}")
    # Text is split into words, as the command of orch.toml is.
    flags = {"workers": workers, "command": command or None, **options}
    return settings.load(flags, os.environ, Path(directory or Path.cwd()))


def warn(up: UpRequest) -> None:
    """Issue what `orch up` shows before it starts, such as a --log-dir that others may write to, as warnings."""
    for text in warnings_of_up(up.spec):
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass(frozen=True)
class Room:
    """The result of preparing the machine for a run.

    swept: what tidy() returns
    skipped: why entries of the state directory were skipped
    replaced: the runs that --replace stopped
    others: the other live runs of this directory
    hosts: the answers of the job's hosts, None without any
    """

    swept: list[tuple[str, int]]
    skipped: tuple[str, ...]
    replaced: tuple[Ended, ...]
    others: tuple[RunView, ...]
    hosts: Preflight | None = None

    @property
    def host_warnings(self) -> tuple[str, ...]:
        findings = () if self.hosts is None else self.hosts.findings
        return tuple(finding.message for finding in findings if finding.level is Level.WARNING)


def make_room(up: UpRequest, supervisor: SupervisorLink | None = None) -> Room:
    """Prepare the machine for a run: the checks, tidy(), --replace. `supervisor` checks the hosts of the job."""
    refuse_problems(Context(up.spec, os.environ))
    adopted = None if up.adopt is None else up.adopt.name
    hosts = None if supervisor is None else check_hosts(up.spec, supervisor, adopted)
    # The run itself, and the one that it continues, are neither lost nor other runs.
    runs = catalog.survey(frozenset(run.name for run in (up.adopt, up.continues) if run is not None))
    swept = tidy(runs)
    replaced: list[Ended] = []
    if up.display.replace:
        from orchestrator.client.stop import stop_runs

        # A default name comes from the directory: it does not replace runs of another directory.
        found = [
            run
            for run in catalog.live_runs(up.spec.name)
            if up.spec.name_is_explicit or run.record.directory == str(up.spec.directory)
        ]
        for ended in stop_runs(found, force=False):
            if isinstance(ended, EngineError):
                raise ended
            replaced.append(ended)
    return Room(swept, runs.skipped, tuple(replaced), tuple(catalog.live_in(up.spec.directory, runs)), hosts)


def check_hosts(spec: JobSpec, supervisor: SupervisorLink, run_id: str | None = None) -> Preflight | None:
    """Check the job's hosts, after --sync if it was asked for; None without hosts. UsageError names all problems.

    The agents that answer preload meanwhile, and then serve the run. `run_id`: see prepare().
    """
    if not spec.hosts:
        return None
    if spec.sync:
        from orchestrator.preflight.sync import copy_directory

        copy_directory(spec, spec.hosts)
    supervisor.prepare(spec, run_id)
    # Imported while the supervisor connects to the hosts, and not for a run on this machine.
    from orchestrator.preflight import inspect_hosts

    found = inspect_hosts(supervisor, spec, os.environ)
    if problems := [finding.message for finding in found.findings if finding.level is Level.PROBLEM]:
        raise UsageError("\n".join(problems))
    return found


def needs_job(up: UpRequest) -> bool:
    """Whether the run needs a new job of Slurm: this process is on a login node."""
    return up.spec.engine is EngineName.SLURM and "SLURM_JOB_ID" not in os.environ


def on_nodes(up: UpRequest) -> UpRequest:
    """Return the request with the nodes of this process's allocation. Without --engine slurm: the request as it is."""
    if up.spec.engine is not EngineName.SLURM:
        return up
    from orchestrator.preflight.allocation import on_nodes

    return replace(up, spec=on_nodes(up.spec, os.environ))


def submit_job(up: UpRequest, descriptors: Mapping[Descriptor, int] = MappingProxyType({})) -> Run:
    """Submit a run that ends when this process closes it, and warn if it is queued. UsageError."""
    from orchestrator.client.submit import submit

    if descriptors:
        raise UsageError("an open file of this process cannot be passed to a node of Slurm")
    make_room(up)
    run = submit(up, may_requeue=False)
    run.view.refresh()
    if run.view.state.queued is not None:
        warnings.warn(str(run.view.state.queued), RuntimeWarning, stacklevel=3)
    return run


def create_run(
    supervisor: SupervisorLink,
    up: UpRequest,
    descriptors: Mapping[Descriptor, int] = MappingProxyType({}),
    warm: Warm | None = None,
    *,
    is_detached: bool = False,
) -> Run:
    """Send a checked request and return the new run; raise the supervisor's error if it refuses.

    `descriptors`: what the tasks get, on this machine only. The caller keeps them. `warm`, `is_detached`: see
    Request."""
    if descriptors and up.spec.hosts:
        names = ", ".join(host.name for host in up.spec.hosts)
        raise UsageError(
            f"an open file or terminal of this process cannot be passed to another host ({names})"
        )
    request = Request(
        spec=up.spec,
        environ=pack_environ(os.environ),
        is_detached=is_detached,
        state_owner=accepted_owner(),
        existing=up.existing,
        adopt=up.adopt,
        continues=up.continues,
        warm=warm,
        descriptors=tuple(descriptors),
    )
    try:
        root = supervisor.create(request, tuple(descriptors.values()))
    except NameTaken as error:
        if not up.display.replace:
            raise
        name = up.spec.name
        raise NameTaken(
            f"another run took the name {name!r} while --replace stopped the earlier one: `orch status {name}` shows"
            " it; give the command again to replace it"
        ) from error
    view = RunView.open(RunPaths(root))
    if view is None:
        raise UsageError(f"{root}: the run's directory was removed while the run was starting")
    return Run(view)
