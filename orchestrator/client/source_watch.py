"""The source files of a run, and a thread that notices when one of them changes (`orch up --watch`)."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import JobSpec
from orchestrator.request.command.program import find_program
from orchestrator.request.command.source_tree import TooLarge
from orchestrator.request.settings.request import WATCH_SOURCES

_SETTINGS = ("orch.toml", "pyproject.toml")
_PYTHON = "*.py"
# Milliseconds: changes that come together count as one.
_DEBOUNCE_MS = 100
# Milliseconds between looks at the files themselves: some file systems (NFS) report no changes.
_LOOK_MS = 2000
_MOST_DIRECTORIES = 2000
# Seconds for which a busy machine may take to compile a source that it has read.
_COMPILING_S = 60.0
_NOT_SOURCES = frozenset({"__pycache__", "checkpoints", "node_modules", "site-packages", "logs"})

# Time of modification (ns), size and inode: a file that is saved by a rename gets another inode.
_Marks = dict[Path, tuple[int, int, int]]


def require_watchfiles(source: str) -> None:
    """UsageError if the package that reports changes is not installed."""
    if find_spec("watchfiles") is None:
        raise UsageError(f"{source} needs watchfiles: pip install 'tf-orch[watch]'")


def local_sources(spec: JobSpec, environ: Mapping[str, str]) -> frozenset[Path] | None:
    """Return the scripts of a job and the local modules that they may import, if only in a function.

    Files that are missing are named, too: the next save may be theirs. None if there is too much source to tell. Empty
    for a command without local Python source."""
    files: set[Path] = set()
    for command in spec.commands:
        if not command.interpreter:
            continue
        program = find_program(command.argv[1:], spec.cwd, environ)
        try:
            found = list(program.tree.reachable(program.start)) if program.start else []
        except TooLarge:
            return None
        local = {source.path for source in found if source.path.is_file()}
        files |= local.union(program.tree.missing()) if local else local
    return frozenset(files)


def syntax_error(files: Iterator[Path] | frozenset[Path]) -> str | None:
    """Return where and why Python could not read a file; None if it can read them all."""
    for file in sorted(files):
        if file.suffix != ".py":
            continue
        try:
            compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            why = getattr(error, "msg", None) or str(error)
            return f"{file}{f':{line}' if line else ''}: {type(error).__name__}: {why}"
        except OSError:
            continue  # removed meanwhile; the run reports it
    return None


def remove_stale_code(files: Iterable[Path], environ: Mapping[str, str]) -> None:
    """Remove compiled code that may be of an older text of its source. Call it while no task of the run lives.

    Python compares only the second of the last change and the size of a source, so it could take the code of the text
    before the last save. Code that was written long after the last change is kept.
    """
    for file in files:
        with suppress(OSError):
            changed = file.stat().st_ctime
            for code in _compiled(file, environ):
                if code.stat().st_mtime < changed + _COMPILING_S:
                    code.unlink()


def _compiled(file: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the compiled code of a source, of all interpreters and levels of optimisation."""
    if file.suffix != ".py":
        return
    prefix = environ.get("PYTHONPYCACHEPREFIX")
    place = Path(f"{prefix}{file.parent}") if prefix else file.parent / "__pycache__"
    for name in _names(place):
        if name.startswith(f"{file.stem}.") and name.endswith(".pyc"):
            yield place / name


class SourceWatch:
    """Watches the files of one run. `fileno()` is readable once one has changed; `changed` names those.

    `pattern`: what --watch names: other files below `directory`. Close it, or use it in a `with`.
    """

    def __init__(self, sources: frozenset[Path] | None, pattern: str, directory: Path, source: str) -> None:
        """UsageError, with the `source` of the option, if there is nothing to watch."""
        self._directory = directory
        self._patterns = [] if pattern == WATCH_SOURCES else [pattern]
        if sources is None:
            self._patterns.append(_PYTHON)
        elif not sources and not self._patterns:
            raise UsageError(
                f"{source}: the command has no Python source in this directory; name the files, such as"
                f" {source.partition('=')[0]}='*.yaml'"
            )
        self._sources = (sources or frozenset()) | {directory / name for name in _SETTINGS}
        self._marks = self._look()
        self.changed: tuple[Path, ...] = ()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch sources", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._event)

    @property
    def files(self) -> frozenset[Path]:
        return frozenset(self._marks)

    def fileno(self) -> int:
        return self._event

    def has_changed(self) -> bool:
        return bool(self.changed)

    def wait(self) -> None:
        """Return when a file has changed."""
        poller = select.poll()
        poller.register(self._event, select.POLLIN)
        while not self.changed:
            poller.poll()

    def _watch(self) -> None:
        from watchfiles import watch

        places = {str(file.parent) for file in self._sources if file.parent.is_dir()}
        if self._patterns:
            places |= {str(place) for place in self._directories()}
        for _ in watch(
            *sorted(places),
            watch_filter=None,
            debounce=_DEBOUNCE_MS,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
            raise_interrupt=False,
            ignore_permission_denied=True,
        ):
            now = self._look()
            changed = {
                file for file in now.keys() | self._marks.keys() if now.get(file) != self._marks.get(file)
            }
            if changed:
                self.changed = tuple(sorted(changed))
                os.eventfd_write(self._event, 1)
                return

    def _look(self) -> _Marks:
        marks: _Marks = {}
        for file in self._sources:
            _add_mark(marks, file)
        if self._patterns:
            for place in self._directories():
                for name in _names(place):
                    file = place / name
                    shown = str(file.relative_to(self._directory))
                    if any(fnmatch(shown, pattern) for pattern in self._patterns):
                        _add_mark(marks, file)
        return marks

    def _directories(self) -> Iterator[Path]:
        """Yield the directory and those below it, without hidden ones, environments, caches and checkpoints."""
        for count, (place, below, _) in enumerate(os.walk(self._directory)):
            if count >= _MOST_DIRECTORIES:
                return
            below[:] = [
                name
                for name in below
                if not name.startswith(".")
                and name not in _NOT_SOURCES
                and not Path(place, name, "pyvenv.cfg").exists()
            ]
            yield Path(place)


def _add_mark(marks: _Marks, file: Path) -> None:
    try:
        found = file.stat()
    except OSError:
        return
    marks[file] = found.st_mtime_ns, found.st_size, found.st_ino


def _names(place: Path) -> list[str]:
    try:
        return [name for name in os.listdir(place) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return []
