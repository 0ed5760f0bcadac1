"""The installed `orch` as a process with arguments, an environment and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import pytest
from forks import ForkedProcess
from kept import Kept, is_kept_run
from orch_within import run_within, variables
from waiting import PATIENCE_S, child_with, until

from orchestrator.client import api
from orchestrator.store.runs import locks

# Verbs that run in this process: starting a process and importing orch would take most of their time.
_WITHIN = {
    *("status", "ps", "ls", "logs", "config", "wait", "down", "kill", "restart", "notice", "stacks", "prune"),
    *("up", "history", "report", "warm"),
}
ORCH = Path(sys.executable).with_name("orch")
# An activated environment's Python runs scripts, and need not have TensorFlow.
_NOT_OURS = frozenset(
    {"TF_CONFIG", "TF_GRPC_REUSE_PORT", "PORTSERVER_ADDRESS", "VIRTUAL_ENV", "CONDA_PREFIX", "GITHUB_ACTIONS"}
)


def remove_variables(patch: pytest.MonkeyPatch) -> None:
    """Remove the variables that change what orch does."""
    for name in list(os.environ):
        if name.startswith("ORCH_") or name in _NOT_OURS:
            patch.delenv(name)


@dataclass(frozen=True)
class Finished:
    """The exit code, stdout and stderr of a finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Done(Finished):
    """A finished `orch up`, with the files of its run."""

    run: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """The result.json."""
        return read_document(self.run / "result.json")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return read_events(self.run, kind)

    def log(self, task: str) -> str:
        """The stdout and stderr of a task (`worker-0`) of the first attempt."""
        return (self.run / "logs" / f"{task}.log").read_text(errors="replace")


def read_document(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def read_events(run: Path, kind: str) -> list[dict[str, Any]]:
    # The last line of a live run may be incomplete.
    *lines, _ = (run / "events.jsonl").read_bytes().split(b"\n")
    return [event for event in map(json.loads, lines) if event["type"] == kind]


# Where the stdout and stderr of a command go: a descriptor or a file.
Streams = Mapping[str, int | Path]
NO_STREAMS: Streams = {}


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], int]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pipe:
        yield pipe, writer


def _opened(place: int | Path) -> IO[bytes]:
    return open(place, "wb", buffering=0, closefd=not isinstance(place, int))


class Started:
    """A running command. Its output goes to files, so that it never blocks."""

    process: subprocess.Popen[bytes] | ForkedProcess

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        env: dict[str, str],
        traces: Path,
        kept: Kept | None,
        streams: Streams = NO_STREAMS,
    ) -> None:
        """`kept` starts `orch WORDS`. Without it, WORDS are a command line."""
        self._out_path, self._err_path = traces.with_suffix(".out"), traces.with_suffix(".err")
        self._out_path.touch()
        self._err_path.touch()
        with (
            _opened(streams.get("stdout", self._out_path)) as out,
            _opened(streams.get("stderr", self._err_path)) as err,
        ):
            if kept is not None:
                self.process = kept.start(words, out, err, env, cwd)
                return
            none = subprocess.DEVNULL
            self.process = subprocess.Popen(
                words, cwd=cwd, env=env, stdin=none, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def out(self) -> str:
        return self._out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err_path.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def until_out(self, text: str, count: int = 1) -> None:
        """Wait until stdout holds `text` `count` times. Fails if the command ends before."""
        until(lambda: self.out.count(text) >= count or self.ended)
        assert self.out.count(text) >= count, f"ended without {text!r}: {self.out!r} {self.err!r}"

    def finish(self, timeout_s: float = PATIENCE_S) -> Finished:
        code = self.process.wait(timeout_s)
        return Finished(code, self.out, self.err)


class Orch:
    """`orch` in one directory. Call it with its arguments; `env` adds variables, None removes one.

    Most verbs run in this process. Tests that `start` them, give them an `env` or pipe them use the installed command.
    `kept`: processes that a run uses if no other run uses them.
    """

    def __init__(self, directory: Path, state: Path, kept: Kept | None = None) -> None:
        self.directory = directory
        self.state = state
        self.kept = kept
        # Set for all commands.
        self.variables: dict[str, str | None] = {}
        self._started: list[Started] = []

    def __call__(
        self,
        *words: str,
        env: dict[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Finished:
        verb = next((word for word in words if not word.startswith("-")), None)
        if verb in _WITHIN and env is None:
            return self._lent(*words, cwd=cwd)
        done = subprocess.run(
            [str(ORCH), *words],
            cwd=cwd or self.directory,
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        return Finished(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def run(
        self,
        *words: str,
        script: str | Path,
        then: tuple[str, ...] = (),
        env: dict[str, str | None] | None = None,
    ) -> Done:
        """Run `orch up WORDS -- train.py THEN` in this process. `script` is the text of train.py, or another script."""
        before = self.run_dirs()
        path = str(script) if isinstance(script, Path) else self.script("train.py", script)
        done = self._lent("up", *words, "--", path, *then, env=env)
        new = [run for run in self.run_dirs() if run not in before]
        assert len(new) == 1, f"{len(new)} new runs: {done}"
        return Done(done.code, done.out, done.err, new[0])

    def _lent(
        self, *words: str, env: dict[str, str | None] | None = None, cwd: Path | None = None
    ) -> Finished:
        """Run a command in this process, with the kept processes if it can use them."""
        with self.kept.lend() if self.kept is not None and is_kept_run(words) else contextlib.nullcontext():
            return self.within(*words, env=env, cwd=cwd)

    def within(
        self, *words: str, env: dict[str, str | None] | None = None, cwd: Path | None = None
    ) -> Finished:
        """Run a command in this process."""
        traces = self.state.parent / "command-within"
        code = run_within(words, cwd or self.directory, self.environ(env), traces)
        return Finished(
            code, *(traces.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        )

    def start(
        self,
        *words: str,
        before: tuple[str, ...] = (),
        env: dict[str, str | None] | None = None,
        cold: bool = False,
        streams: Streams = NO_STREAMS,
    ) -> Started:
        """Start the command and do not wait; `before`: words in front of it (nohup). `cold`: as `cold_orch` does.

        `streams`: where "stdout" and "stderr" go, instead of a file."""
        # Python reads these variables when it starts, so a fork would ignore them.
        is_new = cold or before or any(name.startswith("PYTHON") for name in env or {})
        kept = None if is_new else self.kept
        argv = words if kept is not None else [*before, str(ORCH), *words]
        traces = self.state.parent / f"command-{len(self._started)}"
        self._started.append(Started(argv, self.directory, self.environ(env), traces, kept, streams))
        return self._started[-1]

    @contextlib.contextmanager
    def piped(self, *words: str, **options: Any) -> Iterator[tuple[Started, IO[bytes]]]:
        """Start the command as start() does, with its stdout in a pipe."""
        with _pipe() as (pipe, writer):
            started = self.start(*words, **options, streams={"stdout": writer})
            os.close(writer)
            yield started, pipe

    def pipe(self, *words: str, env: dict[str, str | None]) -> Finished:
        """Run the command as a process, with its stdout and stderr in pipes that it cannot fill."""
        with _pipe() as (out, out_writer), _pipe() as (err, err_writer):
            started = self.start(*words, env=env, streams={"stdout": out_writer, "stderr": err_writer})
            os.close(out_writer)
            os.close(err_writer)
            texts = [each.read().decode(errors="replace") for each in (out, err)]
            return Finished(started.finish().code, *texts)

    def environ(self, changes: dict[str, str | None] | None = None) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.state), "PYTHONUNBUFFERED": "1"}
        env: dict[str, str | None] = {**os.environ, **own, **self.variables, **(changes or {})}
        return {name: value for name, value in env.items() if value is not None}

    def script(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return name

    def run_dirs(self) -> list[Path]:
        """The directories of all runs, oldest first: by change time, as ids differ at random within a second."""
        runs = self.state / "orch" / "runs"
        found = [entry for entry in runs.iterdir() if not entry.name.startswith(".")] if runs.exists() else []
        return sorted(found, key=lambda path: (path / "run.json").stat().st_mtime_ns)

    def run_dir(self) -> Path:
        """The directory of the only run."""
        (run,) = self.run_dirs()
        return run

    def result(self, run: Path | None = None) -> dict[str, Any]:
        """Wait for the result.json of a run (default: the only one) and return it."""
        path = (run or self.run_dir()) / "result.json"
        until(path.exists)
        return read_document(path)

    def status(self, run: str | None = None) -> dict[str, Any]:
        """The document of `orch status --json`, made in this process: fast enough to poll."""
        with variables(self.environ()):
            return api.find(run, self.directory).status().model_dump(mode="json")

    def all_within(self, commands: Iterable[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], Finished]]:
        """Run these commands in this process, one after another."""
        return ((words, self.within(*words)) for words in commands)

    def pids(self) -> list[int]:
        """Wait for the tasks' pids: a task's output may be shown before its start is reported."""

        def known() -> list[int] | None:
            pids = [task["pid"] for task in self.status()["tasks"]]
            return None if None in pids else pids

        return until(known)

    def task(self, name: str, run: str | None = None) -> dict[str, Any]:
        """The status of a task (`worker:0`)."""
        (found,) = (task for task in self.status(run)["tasks"] if task["task"] == name)
        assert isinstance(found, dict)
        return found

    def record(self, run: Path) -> dict[str, Any]:
        """The run.json of a run."""
        return read_document(run / "run.json")

    def events(self, kind: str, run: Path | None = None) -> list[dict[str, Any]]:
        return read_events(run or self.run_dir(), kind)

    def methods(self, run: Path | None = None) -> set[str]:
        """The start methods of the tasks: fork, spawn."""
        return {event["method"] for event in self.events("task_started", run)}

    def preloads(self, run: Path | None = None) -> list[dict[str, Any]]:
        """The events that report a preloader that has imported its modules."""
        return [event for event in self.events("preload", run) if event["seconds"] is not None]

    def supervisor(self) -> int | None:
        """The pid of the newest run's supervisor, once there is one."""
        runs = self.run_dirs()
        if not runs or not (runs[-1] / "run.json").exists():
            return None
        pid = json.loads((runs[-1] / "run.json").read_text())["supervisor_pid"]
        assert isinstance(pid, int)
        return pid

    def agent(self) -> int | None:
        supervisor = self.supervisor()
        return child_with(supervisor, "worker.agent.agent") if supervisor else None

    def preloader(self) -> int | None:
        """The process that imports for all tasks, a child of the agent."""
        agent = self.agent()
        return child_with(agent, "preloader") if agent else None

    def end_all(self) -> None:
        """End the commands that this test has started, then its runs."""
        for started in self._started:
            if not started.ended:
                started.process.kill()
                started.process.wait()
        for run in self.run_dirs():
            if locks.is_held(run / "lock"):
                self("down", "--force", run.name)
