"""`Scene`, one run of staged tasks: starts it, waits for the moment of a fault, and inspects it afterwards."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from cells import Cell, Moment, Way, Who
from waiting import child_with, until

from orchestrator import Cluster, Run
from orchestrator.client import api
from orchestrator.core.state.events import AttemptPlanned, Event, parse_event
from orchestrator.core.state.result import RunResult
from orchestrator.core.state.state import RunPhase
from orchestrator.links import control
from orchestrator.links.orders import StopOrder
from orchestrator.store.runs import catalog
from orchestrator.store.runs.reader import RunView

HERE = Path(__file__).parent
ORCH = Path(sys.executable).with_name("orch")
# A grace period so long that a test which waits for it fails.
LONG = "10m"
_LOOK_S = 0.02


class Scene:
    """The run of a cell in `directory`."""

    def __init__(self, cell: Cell, directory: Path) -> None:
        self.cell = cell
        self.moment = cell.moment
        self.directory = directory
        self._run: Run | None = None
        self.client: subprocess.Popen[bytes] | None = None
        self.terminal: int | None = None
        self.seen: set[int] = set()
        self.seen_addresses: set[str] = set()

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def victim_name(self) -> str:
        return f"worker:{self.cell.victim}"

    # -- start and end

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the run; at the end stop it if it is still live."""
        try:
            if self.cell.as_command:
                self._run = self._start_command()
                yield
            else:
                with self.start() as self._run:
                    yield
        finally:
            self._end()

    def start(self) -> Cluster:
        options: dict[str, object] = {**self.flags(), **self.cell.options}
        return Cluster(workers=self.cell.workers, command=self.command(), directory=self.directory, **options)

    def flags(self) -> dict[str, object]:
        """The options of `up`, without those of the cell."""
        if self.moment is Moment.BEFORE_SPAWN:
            return {"grace": LONG, "start": "auto", "preload": "held_import", "env": self._preload_env()}
        if self.cell.way in (Way.FORKED, Way.KEPT):
            return {"grace": LONG, "start": "auto", "preload": "decimal"}
        return {"grace": LONG, "start": "spawn"}

    def _preload_env(self) -> dict[str, str]:
        """Pack the preloaded module into an archive: a file in a directory would count as the script's source."""
        archive = self.directory / "held_import.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.write(HERE / "archived" / "held_import.py", "held_import.py")
        fails = {"HELD_IMPORT": "fails"} if "cannot be imported" in self.cell.fault else {}
        return {"PYTHONPATH": str(archive), "HELD_IMPORT_HERE": str(self.directory), **fails}

    def command(self, moment: Moment | None = None) -> list[str]:
        """The words after `--`."""
        forked = {"held_import": ("preloaded_task.py",), "decimal": ("forked_task.py",)}
        scripts = (*forked.get(str(self.flags().get("preload")), ()), "staged_task.py")
        pauses_at = Moment.TRAINING if self.moment in (Moment.JUST_STARTED, Moment.BACKOFF) else self.moment
        words = [moment or pauses_at, self.cell.breaks, str(self.cell.victim), str(self.cell.times)]
        return [*(str(HERE / script) for script in scripts), *words]

    def _start_command(self) -> Run:
        before = {run.paths.root for run in catalog.all_runs()}
        words = [
            str(ORCH),
            "up",
            *(["--warm"] * (self.cell.way is Way.KEPT)),
            f"--workers={self.cell.workers}",
        ]
        for name, value in {**self.flags(), **self.cell.options}.items():
            values = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else [value]
            words += [f"--{name.replace('_', '-')}={each}" for each in values]
        words += ["--", *self.command()]
        if self.cell.way in (Way.TERMINAL, Way.KEPT):
            self._start_on_terminal(words)
        else:
            with (self.directory / "client.out").open("wb") as out:
                self.client = subprocess.Popen(
                    words, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )

        def new_run() -> RunView | None:
            runs = [run for run in catalog.all_runs() if run.paths.root not in before]
            assert runs or (self.client and self.client.poll() is None), self.client_output()
            return runs[0] if runs else None

        return Run(until(new_run))

    def _start_on_terminal(self, words: list[str]) -> None:
        self.terminal, slave = os.openpty()
        self.client = subprocess.Popen(
            words,
            cwd=self.directory,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read_terminal, args=(self.terminal,))
        self._reader.start()

    def _read_terminal(self, terminal: int) -> None:
        """Write what the terminal shows to a file, until close_terminal() or the end of the client."""
        with (self.directory / "client.out").open("wb", buffering=0) as out, suppress(OSError):
            while self.terminal is not None:
                if select.select([terminal], [], [], _LOOK_S)[0]:
                    out.write(os.read(terminal, 1 << 16))

    def close_terminal(self) -> None:
        if (terminal := self.terminal) is not None:
            self.terminal = None
            self._reader.join()
            os.close(terminal)

    def client_output(self) -> str:
        return (self.directory / "client.out").read_text(errors="replace")

    def _end(self) -> None:
        """Stop everything that is still running, after any error."""
        for pid in (self.client and self.client.pid, self._run and self.pid_of(Who.SUPERVISOR)):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGCONT)
        if self._run is not None and self._run.view.is_live:
            self._run.down(force=True)
        if self.client is not None:
            self.client.kill()
            self.client.wait()
        self.close_terminal()

    # -- progress

    def reach_the_moment(self) -> None:
        """Wait until the run is at its moment and orch knows it; then let the victim break."""
        match self.moment:
            case Moment.JUST_STARTED | Moment.BETWEEN:
                return
            case Moment.BEFORE_SPAWN:
                self.wait_for("at-preloading")
                until(lambda: self.run.status().tasks)
            case Moment.FINISHING:
                self.wait_for(f"at-{self.moment}-{self.cell.victim}-1")
                until(lambda: self._states_of_peers() == {"succeeded"})
            case Moment.STOPPING:
                self.wait_for(*(f"up-{index}" for index in range(self.cell.workers)))
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
            until(lambda: self._states_of_peers() == {"running"})
        self.note_pids()
        self.touch("break")

    def _states_of_peers(self) -> set[str]:
        return {task.state for task in self.run.status().tasks if task.task != self.victim_name}

    def _is_before_the_last_attempt(self) -> bool:
        """Later attempts have longer delays: enough time for a fault."""
        self.run.view.refresh()
        state = self.run.view.state
        is_due = state.restart_due_mono is not None and len(state.history) == self.cell.times
        return is_due or self.has_ended()

    def _marks(self) -> tuple[str, ...]:
        return tuple(f"at-{self.moment}-{index}-1" for index in range(self.cell.workers))

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
        until(lambda: control.ask(self.run.view.paths.control, order) or self.has_ended())

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
        wanted = [task.pid for task in tasks if (task.task != self.victim_name) == (who is Who.PEERS)]
        return [pid for pid in wanted if pid is not None]

    def note_pids(self) -> None:
        """Remember the current processes of the run and the addresses of its tasks."""
        if self.run.view.paths.events.exists():
            self.seen_addresses |= set(self.addresses())
        supervisor = self.run.view.record.supervisor_pid
        self.seen.add(supervisor)
        with suppress(psutil.NoSuchProcess):
            self.seen |= {each.pid for each in psutil.Process(supervisor).children(recursive=True)}
        self.seen |= {int(path.read_text()) for path in self.directory.glob("grandchild-?")}
