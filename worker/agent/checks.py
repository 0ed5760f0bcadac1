"""Answers questions about this host before a run, in a helper of the agent."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from worker.agent.helper import Helper
from worker.wire.checks import Checked, HeldPort, Outcome, Question, Ran, SharedFile
from worker.wire.codec import decoder, encode
from worker.wire.stream import Stream

# Seconds to connect. A reachable host refuses at once, or after a lost packet was sent again (1 s and 3 s).
_REACH_S = 4.0
# Seconds for a program. A Python answers in 0.05 s; another program may never exit.
_RUN_S = 20.0
# Seconds for the helper to remove the files that it has created.
_LEAVE_S = 1.0
_MOST_TEXT = 100_000
_KILLED = "the process that checks the host was killed, or it crashed"

_decode_question = decoder(Question)
_decode_answer = decoder(Checked)


class Checks:
    """Owns the helper that answers. Call serve() when `poller` reports a descriptor that it serves()."""

    def __init__(self, poller: select.epoll, send: Callable[[Checked], None]) -> None:
        self._poller = poller
        self._send = send
        self._helper: tuple[Helper, Stream] | None = None
        self._open = 0

    @property
    def pids(self) -> set[int]:
        """The pid of the helper, which only this object may reap."""
        return set() if self._helper is None else {self._helper[0].pid}

    def ask(self, question: Question) -> None:
        """Pass the question to the helper. The answer is sent later. OSError."""
        if self._helper is None:
            helper = Helper.fork("orch-checks", serve)
            fd = helper.stream.fileno()
            self._helper = helper, Stream(fd, fd, self._poller, helper.stream)
        self._open += 1
        self._helper[1].send(encode(question))

    def serves(self, fd: int) -> bool:
        return self._helper is not None and self._helper[1].serves(fd)

    def serve(self, fd: int) -> None:
        if self._helper is not None:
            lines, is_open = self._helper[1].read()
            for line in lines:
                self._open -= 1
                self._send(_decode_answer(line))
            if not is_open:
                self.close()
                while self._open:
                    self._open -= 1
                    self._send(Checked("", 0, error=_KILLED))

    def close(self) -> None:
        """Let the helper release what it holds, and end it."""
        if self._helper is None:
            return
        helper, stream = self._helper
        self._helper = None
        stream.close()
        with suppress(OSError):
            helper.stream.shutdown(socket.SHUT_WR)
        gone = select.poll()
        gone.register(helper.stream, 0)  # the end of the other side is always reported
        gone.poll(_LEAVE_S * 1000)
        helper.end()


def serve(stream: socket.socket) -> None:
    """Answer until the stream ends, then remove and release everything."""
    with ExitStack() as made, stream.makefile("rb") as lines:
        for line in lines:
            stream.sendall(encode(_answer(_decode_question(line), made)))


def _answer(question: Question, made: ExitStack) -> Checked:
    """Return the answers. `made` releases at its end what they create."""
    temporary = os.environ.get("TMPDIR", "/tmp")
    return Checked(
        temporary=_plain(temporary),
        free_bytes=_free(Path(temporary)),
        run=tuple(map(_run, question.run)),
        hash=tuple(map(_hash, question.hash)),
        enter=None if question.enter is None else _enter(question.enter),
        write=None if question.write is None else _write(question.write, made),
        read=None if question.read is None else _read(question.read),
        hold=None if question.hold is None else _hold(question.hold, made),
        reach=_reach(question.reach),
    )


def _free(place: Path) -> int:
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _run(words: Sequence[str]) -> Ran:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_RUN_S)
    except subprocess.TimeoutExpired:
        return Ran(None, error=f"no answer within {_RUN_S:g} s")
    except OSError as error:
        return Ran(None, error=_reason(error))
    out, errors = (part.decode(errors="replace")[-_MOST_TEXT:] for part in (done.stdout, done.stderr))
    return Ran(done.returncode, out, errors)


def _hash(path: str) -> Outcome:
    import hashlib

    try:
        with open(path, "rb") as file:  # noqa: PTH123 (a path of any bytes)
            return Outcome(value=hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        return Outcome(_reason(error))


def _enter(directory: str) -> Outcome:
    try:
        os.chdir(directory)
    except OSError as error:
        return Outcome(_reason(error))
    os.chdir("/")
    return Outcome()


def _write(file: SharedFile, made: ExitStack) -> Outcome:
    """Directories that are missing are made, and removed again if they stay empty."""
    path = Path(file.directory, file.name)
    try:
        for directory in reversed([each for each in path.parents if not each.is_dir()]):
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700)
                made.callback(_try, directory.rmdir)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        return Outcome(_reason(error))
    made.callback(_try, path.unlink)
    return Outcome()


def _try(remove: Callable[[], object]) -> None:
    with suppress(OSError):
        remove()


def _read(file: SharedFile) -> Outcome:
    """Whether the file that another host wrote is there. A network file system may show it late; a list is asked of the
    server."""
    try:
        is_there = any(each.name == file.name for each in Path(file.directory).iterdir())
    except FileNotFoundError:
        is_there = False
    except OSError as error:
        return Outcome(_reason(error))
    return Outcome(value=file.name if is_there else None)


def _hold(address: str, made: ExitStack) -> HeldPort:
    """Bind a port, and never listen on it: a connection that reaches it is refused."""
    try:
        held = made.enter_context(_socket(address))
        held.bind((address, 0))
    except OSError as error:
        return HeldPort(_reason(error))
    return HeldPort(port=held.getsockname()[1])


def _reach(targets: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Connect to all targets at the same time."""
    results = ["silent"] * len(targets)
    waiting: dict[int, tuple[int, socket.socket]] = {}
    poller = select.poll()
    with ExitStack() as opened:
        for number, (address, port) in enumerate(targets):
            try:
                one = opened.enter_context(_socket(address))
            except OSError as error:
                results[number] = _reason(error)
                continue
            one.setblocking(False)
            code = one.connect_ex((address, port))
            if code == errno.EINPROGRESS:
                waiting[one.fileno()] = number, one
                poller.register(one, select.POLLOUT)
            else:
                results[number] = _result(code)
        deadline = time.monotonic() + _REACH_S
        while waiting and (rest := deadline - time.monotonic()) > 0:
            for fd, _ in poller.poll(rest * 1000):
                number, one = waiting.pop(fd)
                poller.unregister(fd)
                results[number] = _result(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    return tuple(results)


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)


def _result(code: int) -> str:
    if code == errno.ECONNREFUSED:
        return "refused"
    if code == errno.ETIMEDOUT:
        return "silent"
    return os.strerror(code) if code else "connected"


def _reason(error: OSError) -> str:
    return _plain(error.strerror or str(error))


def _plain(text: str) -> str:
    """Text without the surrogates of a name that is not Unicode."""
    return text.encode(errors="replace").decode()
