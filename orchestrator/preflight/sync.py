"""--sync: copies the working directory to the hosts with rsync, over the job's ssh."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from orchestrator.core.errors import UsageError
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.text.clean import one_line
from orchestrator.engines.ssh import SshEngine, last_line
from orchestrator.links.start_queue import MOST_STARTING

# The rules for a directory that is not in a repository. git lists the files of the others.
_LEFT_OUT = ("--exclude=.git", "--exclude=__pycache__", "--filter=:- .gitignore")
# rsync reads the paths from its input, and copies directories without their contents. Vanished paths are skipped.
_LISTED = ("--from0", "--files-from=-", "--ignore-missing-args")
# A repository may name a program for fsmonitor, which git would run. An empty name turns it off.
_GIT_LIST = ("-c", "core.fsmonitor=", "ls-files", "-z", "--exclude-standard")
# git sets these variables for a hook. They name the hook's repository instead of the directory's.
_OF_A_HOOK = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE"})
# rsync's exit codes for a connection that failed, and for a remote rsync that did not start.
_NO_CONNECTION = 255
_NOT_FOUND = 127
# A file was removed while rsync copied the others.
_VANISHED = 24


def copy_directory(spec: JobSpec, hosts: Iterable[Host]) -> None:
    """Copy `spec.cwd` to the same path on each host, to a few at the same time. UsageError names the hosts that failed.

    Files that git ignores are left out. Files that exist only there stay. Files that are newer there are replaced by
    those from here.
    """
    engine = SshEngine(spec.ssh_command, spec.link_timeout_s)
    running: deque[_Copy] = deque()
    failures: list[str] = []
    paths = _write_paths(spec.cwd)
    try:
        for host in hosts:
            if len(running) == MOST_STARTING:
                failures += _end_first(running)
            running.append(_Copy(engine, host, spec.cwd, paths))
        while running:
            failures += _end_first(running)
    finally:
        for copy in running:
            copy.close()
        if paths is not None:
            paths.close()
    if failures:
        raise UsageError("\n".join(f"--sync: {reason}" for reason in failures))


def _write_paths(directory: Path) -> IO[bytes] | None:
    """Return a file with the paths to copy; None if the directory is not in a repository. UsageError."""
    paths = _list_paths(str(directory.resolve()).rstrip("/") + "/")
    if paths is None:
        return None
    if not paths and any(entry.name != ".git" for entry in directory.iterdir()):
        raise UsageError(f"--sync: git ignores all files in {directory}, so nothing would be copied")
    file = tempfile.TemporaryFile()
    # rsync takes a path that begins with # as a comment.
    file.writelines(b"./%s\0" % os.fsencode(path) for path in paths)
    file.flush()
    return file


def _list_paths(top: str) -> set[str] | None:
    """Return the paths below `top` that git does not ignore, also of the repositories in it; None outside of one."""
    paths: set[str] = set()
    repositories = [""]
    for inside in repositories:
        place = top + inside
        files = _ask_git(place, "-co")
        if files is None:
            return None
        repositories += [
            f"{inside}{path}/"
            for path in files
            if os.path.lexists(f"{place}{path}/.git") and _is_real(place + path)
        ]
        # git does not track empty directories, but a script may write into one.
        directories = _ask_git(place, "-o", "--directory") or set()
        paths |= {inside + path for path in files | directories}
    # If a link has replaced a directory of the index, rsync would follow it.
    real = {parent for parent in set(map(_parent, paths)) if _is_real(top + parent)}
    return {path for path in paths if _parent(path) in real and "__pycache__" not in path.split("/")}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_real(path: str) -> bool:
    """Return whether neither the path nor a directory above it is a symbolic link."""
    return os.path.realpath(path) == os.path.normpath(path)


def _ask_git(directory: str, *which: str) -> set[str] | None:
    """Return what `git ls-files` lists; None if the directory is not in a repository. UsageError if git fails."""
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        done = subprocess.run(
            ["git", "-C", directory, *_GIT_LIST, *which],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ | {"LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        if _has_repository(directory):
            raise _listing_failed(directory, f"git could not be started: {error.strerror}") from error
        return None
    said = done.stderr.decode(errors="replace").splitlines()
    # git only warns about a directory that it cannot read.
    reasons = [line for line in said if line.startswith(("fatal:", "warning: could not open"))]
    is_outside = done.returncode and reasons and reasons[0].startswith("fatal: not a git repository")
    # git says the same of a repository that is damaged.
    if is_outside and not _has_repository(directory):
        return None
    if done.returncode or reasons:
        raise _listing_failed(directory, one_line(reasons[0] if reasons else f"exit code {done.returncode}"))
    # rsync would copy everything in a directory whose path ends with a slash.
    found = {os.fsdecode(path.rstrip(b"/")) for path in done.stdout.split(b"\0")}
    return found - {"", "."}


def _has_repository(directory: str) -> bool:
    return any(os.path.lexists(place / ".git") for place in Path(directory, "-").parents)


def _listing_failed(directory: str, reason: str) -> UsageError:
    return UsageError(
        f"--sync: git cannot list the files in {directory} ({reason}); correct what"
        f" `git -C {shlex.quote(directory)} status` reports"
    )


def _end_first(running: deque[_Copy]) -> Iterator[str]:
    """Wait for the copy that was started first. Yield why it failed, if it did."""
    reason = running[0].failure()
    running.popleft().close()
    if reason is not None:
        yield reason


class _Copy:
    """The rsync process for a host. `close` ends it."""

    def __init__(self, engine: SshEngine, host: Host, directory: Path, paths: IO[bytes] | None) -> None:
        self._engine = engine
        self._host = host
        self._errors = tempfile.TemporaryFile()
        self._log = engine.new_log()
        mode = stat.S_IMODE(directory.stat().st_mode)
        there = f"[{host.destination}]" if ":" in host.destination else host.destination
        words = [
            "rsync",
            "--archive",
            "--compress",
            *(_LEFT_OUT if paths is None else _LISTED),
            f"--rsh={shlex.join(engine.login_words(self._log))}",
            # Missing parents are made; --mkpath does that from rsync 3.2.3 on. A list of paths does not set its mode.
            f"--rsync-path=mkdir -p -m {mode:o} {shlex.quote(str(directory))} && rsync",
            "--protect-args",
            f"{directory}/",
            f"{there}:{directory}/",
        ]
        # Opened again: each process reads from the start.
        place = Path(os.devnull if paths is None else f"/proc/self/fd/{paths.fileno()}")
        try:
            with place.open("rb") as stdin:
                self._process = subprocess.Popen(
                    words,
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    start_new_session=True,
                )
        except OSError as error:
            self._errors.close()
            self._log.close()
            raise UsageError(
                f"--sync: rsync could not be started ({error.strerror}); install it here and on the hosts"
            ) from error

    def failure(self) -> str | None:
        """Wait for the end. Return why it failed, None if it did not."""
        code = self._process.wait()
        if code in (0, _VANISHED):
            return None
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        name = self._host.name
        if code == _NO_CONNECTION:
            # The last line is rsync's own.
            said = "\n".join(line for line in text.splitlines() if not line.startswith("rsync"))
            return self._engine.explain(self._host.destination, code, said, self._log.read())
        if code == _NOT_FOUND or "rsync: command not found" in text or "rsync: not found" in text:
            return f"{name}: rsync is not installed there; install it, or copy the directory yourself"
        # Said after the error of another program, such as mkdir.
        outcome = ("rsync error:", "rsync: connection unexpectedly closed")
        text = f"{text}\n{self._log.read() or ''}"
        lines = [line for line in text.splitlines() if not line.startswith(outcome)]
        return f"{name}: rsync failed: {last_line(chr(10).join(lines)) or f'exit code {code}'}"

    def close(self) -> None:
        if self._process.poll() is None:
            # With its ssh, which would wait for a host that does not answer.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
        self._log.close()
