"""--sync: copies the working directory to the hosts with rsync, over the job's ssh."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.engines.ssh import SshEngine, last_line
from orchestrator.links.start_queue import MOST_STARTING

# Files that git ignores belong to this machine: environments, caches, outputs.
_LEFT_OUT = ("--exclude=.git", "--exclude=__pycache__", "--filter=:- .gitignore")
# rsync's exit codes for a connection that failed, and for a remote rsync that did not start.
_NO_CONNECTION = 255
_NOT_FOUND = 127
# A file was removed while rsync copied the others.
_VANISHED = 24


def copy_directory(spec: JobSpec, hosts: Iterable[Host]) -> None:
    """Copy `spec.cwd` to the same path on each host, to a few at the same time. UsageError names the hosts that failed.

    Files that exist only there stay. Files that are newer there are replaced by those from here.
    """
    engine = SshEngine(spec.ssh_command, spec.link_timeout_s)
    running: deque[_Copy] = deque()
    failures: list[str] = []
    try:
        for host in hosts:
            if len(running) == MOST_STARTING:
                failures += _end_first(running)
            running.append(_Copy(engine, host, spec.cwd))
        while running:
            failures += _end_first(running)
    finally:
        for copy in running:
            copy.close()
    if failures:
        raise UsageError("\n".join(f"--sync: {reason}" for reason in failures))


def _end_first(running: deque[_Copy]) -> Iterator[str]:
    """Wait for the copy that was started first. Yield why it failed, if it did."""
    reason = running[0].failure()
    running.popleft().close()
    if reason is not None:
        yield reason


class _Copy:
    """The rsync process for a host. `close` ends it."""

    def __init__(self, engine: SshEngine, host: Host, directory: Path) -> None:
        self._engine = engine
        self._host = host
        self._errors = tempfile.TemporaryFile()
        there = f"[{host.destination}]" if ":" in host.destination else host.destination
        words = [
            "rsync",
            "--archive",
            "--compress",
            *_LEFT_OUT,
            f"--rsh={shlex.join(engine.login_words())}",
            # Missing parents are made; --mkpath does that from rsync 3.2.3 on.
            f"--rsync-path=mkdir -p {shlex.quote(str(directory))} && rsync",
            "--protect-args",
            f"{directory}/",
            f"{there}:{directory}/",
        ]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
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
            return self._engine.explain(self._host.destination, code, said)
        if code == _NOT_FOUND or "rsync: command not found" in text or "rsync: not found" in text:
            return f"{name}: rsync is not installed there; install it, or copy the directory yourself"
        # Said after the error of another program, such as mkdir.
        outcome = ("rsync error:", "rsync: connection unexpectedly closed")
        lines = [line for line in text.splitlines() if not line.startswith(outcome)]
        return f"{name}: rsync failed: {last_line(chr(10).join(lines)) or f'exit code {code}'}"

    def close(self) -> None:
        if self._process.poll() is None:
            # With its ssh, which would wait for a host that does not answer.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
