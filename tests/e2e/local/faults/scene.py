"""`Scene`, one run of staged tasks: starts it, waits for the moment of a fault, and inspects it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

import psutil
from waiting import child_with, lives, until

from orchestrator import Cluster, Run
from orchestrator.client import api
from orchestrator.core.state.events import AttemptPlanned, Event, parse_event
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunPhase
from orchestrator.links import control
from orchestrator.links.control import StopOrder
from orchestrator.store.runs import catalog
from orchestrator.store.runs.reader import RunView

HERE = Path(__file__).parent
ORCH = Path(sys.executable).with_name("orch")
# A grace period so long that a test which waits for it fails.
LONG = "10m"


class Moment(StrEnum):
    """How far the run is when the fault is injected."""

    BEFORE_SPAWN = "before spawn"  # the ports are held, and the tasks wait for the preloader
    IMPORTING = "importing"  # the tasks run and do not listen yet
    RENDEZVOUS = "rendezvous"  # all listen but the victim
    TRAINING = "training"  # all are ready and have reported steps
    CHECKPOINTING = "checkpointing"  # the chief has written half a checkpoint
    FINISHING = "finishing"  # all have exited but the victim
    STOPPING = "stopping"  # asked to stop, the tasks take their time
    BACKOFF = "backoff"  # between two attempts


class Who(StrEnum):
    """The processes that a fault may hit."""

    VICTIM = "victim"
    PEERS = "peers"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    CLIENT = "client"
    PRELOADER = "preloader"


class Scene:
    """A run in `directory`; `as_command`: started by an `orch up` in the foreground instead of this process."""

    def __init__(
        self,
        directory: Path,
        moment: Moment,
        breaks: str,
        victim: int = 1,
        workers: int = 2,
        times: int = 1,
        as_command: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.moment = moment
        self.breaks = breaks
        self.victim = victim
        self.workers = workers
        self.times = times
        self._as_command = as_command
        self.options = dict(options or {})
        self._run: Run | None = None
        self.client: subprocess.Popen[bytes] | None = None
        self.seen: set[int] = set()
        self.seen_addresses: set[str] = set()

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def victim_name(self) -> str:
        return f"worker:{self.victim}"

    # -- start and end

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the run; at the end stop it if it is still live."""
        try:
            if self._as_command:
                self._run = self._start_command()
                yield
            else:
                with Cluster(
                    workers=self.workers, command=self.command(), directory=self.directory, **self.flags()
                ) as run:
                    self._run = run
                    yield
        finally:
            self._end()

    def flags(self) -> dict[str, object]:
        """The options of `up`."""
        started = {"start": "auto", "preload": "held_import", "env": self._preload_env()}
        common = started if self._is_preloaded() else {"start": "spawn"}
        return {"grace": LONG, **common, **self.options}

    def _preload_env(self) -> dict[str, str]:
        """Pack the preloaded module into an archive: a file in a directory would count as the script's source."""
        archive = self.directory / "held_import.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.write(HERE / "archived" / "held_import.py", "held_import.py")
        env = {"PYTHONPATH": str(archive), "HELD_IMPORT_HERE": str(self.directory)}
        return env | ({"HELD_IMPORT": "fails"} if self.breaks == "fails to import" else {})

    def command(self) -> list[str]:
        """The words after `--`."""
        scripts = ("preloaded_task.py", "staged_task.py") if self._is_preloaded() else ("staged_task.py",)
        moment = Moment.TRAINING if self.moment is Moment.BACKOFF else self.moment
        breaks = "nothing" if self.breaks == "fails to import" else self.breaks
        words = [moment, breaks, str(self.victim), str(self.times)]
        return [*(str(HERE / script) for script in scripts), *words]

    def _is_preloaded(self) -> bool:
        return self.moment is Moment.BEFORE_SPAWN

    def _start_command(self) -> Run:
        words = [str(ORCH), "up", "--workers", str(self.workers)]
        for name, value in self.flags().items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, dict):
                words += [word for key, text in value.items() for word in (option, f"{key}={text}")]
            else:
                words += [option, str(value)]
        with (self.directory / "client.out").open("wb") as out:
            self.client = subprocess.Popen(
                [*words, "--", *self.command()],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return Run(until(self._find_run))

    def _find_run(self) -> RunView | None:
        runs = catalog.all_runs()
        assert runs or (self.client and self.client.poll() is None), self.client_output()
        return runs[0] if runs else None

    def client_output(self) -> str:
        return (self.directory / "client.out").read_text(errors="replace")

    def _end(self) -> None:
        """Stop everything that is still running, after any error."""
        for pid in (self.client and self.client.pid, self._run and self.pid_of(Who.SUPERVISOR)):
            if pid and lives(pid):
                with suppress(ProcessLookupError):  # it has just exited
                    os.kill(pid, signal.SIGCONT)
        if self._run is not None and self._run.view.is_live:
            self._run.down(force=True)
        if self.client is not None:
            self.client.kill()
            self.client.wait()

    # -- progress

    def reach_the_moment(self) -> None:
        """Wait until the run is at its moment and orch knows it; then let the victim break."""
        match self.moment:
            case Moment.BEFORE_SPAWN:
                self.wait_for("at-preloading")
                until(lambda: self.run.status().tasks)
            case Moment.FINISHING:
                self.wait_for(f"at-{self.moment}-{self.victim}-1")
                until(
                    lambda: all(
                        t.state == "succeeded" for t in self.run.status().tasks if self.is_peer(t.task)
                    )
                )
            case Moment.STOPPING:
                self.wait_for(*(f"up-{index}" for index in range(self.workers)))
                until(lambda: self.run.status().run.state == RunPhase.RUNNING)
                self.note_pids()
                self.order_stop()
                self.wait_for(*self._marks())
            case Moment.BACKOFF:
                self.touch("break")
                until(self._is_before_the_last_attempt)
            case _:
                self.wait_for(*self._marks())
                is_ready = self.moment in (Moment.TRAINING, Moment.CHECKPOINTING)
                wanted = RunPhase.RUNNING if is_ready else RunPhase.STARTING
                until(lambda: self.run.status().run.state == wanted or self.has_ended())
        if self.moment is Moment.RENDEZVOUS:
            until(lambda: all(t.state == "running" for t in self.run.status().tasks if self.is_peer(t.task)))
        self.note_pids()
        self.touch("break")

    def _is_before_the_last_attempt(self) -> bool:
        """Later attempts have longer delays: enough time for a fault."""
        self.run.view.refresh()
        state = self.run.view.state
        return (state.restart_due_mono is not None and len(state.history) == self.times) or self.has_ended()

    def _marks(self) -> tuple[str, ...]:
        ignores_stop = self.moment is Moment.STOPPING and self.breaks in (
            "ignores SIGTERM",
            "all ignore SIGTERM",
        )
        return () if ignores_stop else tuple(f"at-{self.moment}-{index}-1" for index in range(self.workers))

    def is_peer(self, task: str) -> bool:
        return task != self.victim_name

    def wait_for(self, *names: str) -> None:
        def is_there() -> bool:
            return all((self.directory / name).exists() for name in names)

        until(lambda: is_there() or self.has_ended())
        assert is_there(), f"ended before {names}: {self.run.view.result()}"

    def touch(self, name: str) -> None:
        (self.directory / name).touch()

    def order_stop(self, force: bool = False) -> None:
        """Send a stop order without waiting for its effect."""
        order = StopOrder(force=force)
        until(lambda: control.request(self.run.view.paths.control, order) or self.has_ended())

    def has_ended(self) -> bool:
        return not self.run.view.is_live

    def result(self) -> RunResult:
        """Wait for the end of the run and return its result."""
        until(self.has_ended)
        return api.result_of(self.run.view)

    def events(self) -> list[Event]:
        """All complete events so far, without the first line, which identifies the run."""
        lines = self.run.view.paths.events.read_bytes().rpartition(b"\n")[0].splitlines()
        return [parse_event(line) for line in lines if b'"type":"run_created"' not in line]

    def addresses(self) -> list[str]:
        """The addresses of all tasks in all attempts."""
        planned = (event for event in self.events() if isinstance(event, AttemptPlanned))
        return [task.address for event in planned for task in event.tasks if task.address is not None]

    # -- processes

    def pid_of(self, who: Who) -> int | None:
        """The pid of one process; None if it does not exist."""
        match who:
            case Who.SUPERVISOR:
                return self.run.view.record.supervisor_pid
            case Who.AGENT:
                return child_with(self.run.view.record.supervisor_pid, "worker.agent.agent")
            case Who.PRELOADER:
                agent = self.pid_of(Who.AGENT)
                return child_with(agent, "preloader") if agent else None
            case Who.CLIENT:
                return self.client.pid if self.client else None
            case _:
                raise ValueError(who)

    def task_pids(self, who: Who) -> list[int]:
        """The pids of the victim, or of its peers."""
        tasks = self.run.status().tasks
        wanted = [task.pid for task in tasks if self.is_peer(task.task) == (who is Who.PEERS)]
        return [pid for pid in wanted if pid is not None]

    def note_pids(self) -> None:
        """Remember the current processes of the run and the addresses of its tasks."""
        if self.run.view.paths.events.exists():
            self.seen_addresses |= set(self.addresses())
        supervisor = self.pid_of(Who.SUPERVISOR)
        try:
            below = psutil.Process(supervisor).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        self.seen |= {pid for pid in (supervisor,) if pid} | {process.pid for process in below}
        self.seen |= {int(path.read_text()) for path in self.directory.glob("grandchild-?")}
