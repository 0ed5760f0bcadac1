"""Answers questions about a host before a run: JSON lines on stdin, and one line on stdout for each.

The preflight of orch sends this text to the host's Python, which may be 3.6: hence no newer syntax, and only the
standard library. It holds ports and files until its input ends, then removes them and exits. The keys of a question,
each optional, and of the answer:

    run [[word, ...], ...]      list of {code, out, error}: what these programs printed
    hash [path, ...]            {path: {sha256} or {error}}
    directory path              {} or {error}: whether a program can be started in it
    free [path, ...]            {path: bytes}, of the file system of the path or of its nearest parent; also of "~"
    write {directory, nonce}    {} or {error}: puts a file of that name there
    read {directory, nonce}     {found} or {error}: whether such a file is there
    hold address                {port} or {error}: a port that no program listens on
    reach [[address, port]...]  list of "connected", "refused", "silent", or the text of an error
"""

import errno
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

MARKER = b"orch-host "
# Seconds. A host that is there refuses at once, or after a lost packet was sent again (1 s and 3 s).
_REACH_S = 4.0
# A Python answers in 0.05 s; another program may never exit.
_RUN_S = 20.0
_IFADDR = 0x8915  # SIOCGIFADDR
_NAME_BYTES = 256
_READ_BYTES = 1 << 20


def identity() -> "dict[str, object]":
    """The identity of this host: hosts with equal `machine` are one. `reached`: see reached_address()."""
    return {
        "version": list(sys.version_info[:3]),
        "python": sys.executable,
        "machine": [
            _text("/proc/sys/kernel/random/boot_id"),
            socket.gethostname(),
            _link("/proc/self/ns/pid"),
        ],
        "addresses": addresses(),
        "reached": reached_address(),
        "home": os.path.expanduser("~"),
        "temporary": os.environ.get("TMPDIR", "/tmp"),
    }


def reached_address() -> "str | None":
    """The address of this host that ssh connected to, or that srun's machine sees."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        return connection[2]
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not launcher:
        return None
    family = socket.AF_INET6 if ":" in launcher else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((launcher, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def addresses() -> "dict[str, str]":
    """The IPv4 address of each interface that has one."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _IFADDR, name.encode()[:15].ljust(_NAME_BYTES, b"\0"))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def run(words: "list[str]") -> "dict[str, object]":
    """Run a program and return what it printed."""
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return {"error": _reason(error)}
    try:
        out, errors = process.communicate(timeout=_RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "no answer within {:g} s".format(_RUN_S)}
    text, error_text = (part.decode("utf-8", "replace")[-100000:] for part in (out, errors))
    return {"code": process.returncode, "out": text, "error": error_text}


def file_hash(path: str) -> "dict[str, str]":
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(_READ_BYTES)
                if not data:
                    return {"sha256": found.hexdigest()}
                found.update(data)
    except OSError as error:
        return {"error": _reason(error)}


def enter(path: str) -> "dict[str, str]":
    """Whether a program can be started in this directory."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path)
        os.fchdir(before)
    except OSError as error:
        return {"error": _reason(error)}
    finally:
        os.close(before)
    return {}


def free(path: str) -> int:
    """The free bytes of the file system that holds `path`, or will."""
    place = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


class Held:
    """Ports and files that last as long as this program."""

    def __init__(self) -> None:
        self._sockets = []  # type: list[socket.socket]
        self._files = []  # type: list[str]
        self._directories = []  # type: list[str]

    def hold(self, address: str) -> "dict[str, object]":
        """Bind a port, and never listen on it: a connection that reaches it is refused."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(held)
        try:
            held.bind((address, 0))
        except OSError as error:
            return {"error": _reason(error)}
        return {"port": held.getsockname()[1]}

    def write(self, directory: str, nonce: str) -> "dict[str, str]":
        """Put a file there. Directories that are missing are made, and removed again if they stay empty."""
        try:
            self._make(directory)
            path = os.path.join(directory, nonce)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            return {"error": _reason(error)}
        self._files.append(path)
        return {}

    def close(self) -> None:
        """Remove and release everything."""
        for held in self._sockets:
            held.close()
        for remove, paths in ((os.unlink, self._files), (os.rmdir, reversed(self._directories))):
            for path in paths:
                try:
                    remove(path)
                except OSError:
                    pass

    def _make(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            try:
                os.mkdir(path, 0o700)
            except OSError as error:
                if error.errno != errno.EEXIST:
                    raise
            else:
                self._directories.append(path)


def read(directory: str, nonce: str) -> "dict[str, object]":
    """Whether the file that another host wrote is there. A network file system may show it late."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        return {"found": False} if error.errno == errno.ENOENT else {"error": _reason(error)}
    return {"found": nonce in names}


def reach(targets: "list[list[object]]") -> "list[str]":
    """Connect to all targets at the same time."""
    results = ["silent"] * len(targets)
    waiting = {}  # type: dict[int, tuple[int, socket.socket]]
    poller = select.poll()
    for number, (address, port) in enumerate(targets):
        family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
        one = socket.socket(family, socket.SOCK_STREAM)
        one.setblocking(False)
        code = one.connect_ex((str(address), int(str(port))))
        if code == errno.EINPROGRESS:
            waiting[one.fileno()] = (number, one)
            poller.register(one, select.POLLOUT)
        else:
            results[number] = _outcome(code)
            one.close()
    deadline = time.monotonic() + _REACH_S
    while waiting:
        rest = deadline - time.monotonic()
        if rest <= 0:
            break
        for fd, _ in poller.poll(rest * 1000):
            number, one = waiting.pop(fd)
            poller.unregister(fd)
            results[number] = _outcome(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            one.close()
    for _, one in waiting.values():
        one.close()
    return results


def answer(question: "dict[str, Any]", held: Held) -> "dict[str, object]":
    """The answer to one question."""
    handlers = {
        "run": lambda programs: [run(words) for words in programs],
        "hash": lambda paths: {path: file_hash(path) for path in paths},
        "directory": enter,
        "free": lambda paths: {path: free(path) for path in paths},
        "write": lambda place: held.write(place["directory"], place["nonce"]),
        "read": lambda place: read(place["directory"], place["nonce"]),
        "hold": held.hold,
        "reach": reach,
    }  # type: Any
    return {key: handler(question[key]) for key, handler in handlers.items() if key in question}


def serve() -> None:
    """Say who this host is, then answer until the input ends."""
    held = Held()
    _write(identity())
    try:
        while True:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            _write(answer(json.loads(line.decode()), held))
    finally:
        held.close()


def _write(document: "dict[str, object]") -> None:
    data = MARKER + json.dumps(document).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _outcome(code: int) -> str:
    if code == errno.ECONNREFUSED:
        return "refused"
    if code == errno.ETIMEDOUT:
        return "silent"
    return os.strerror(code) if code else "connected"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


if __name__ == "__main__":
    serve()
