"""The first program on another host: checks the Python, unpacks the bundle, then hands over to the guard of an agent.

It is sent as one line of text and may be run by any Python from 3.6 on, in order to say that a newer one is needed.
The next line of stdin holds its parameters, and the bundle follows; orchestrator/links/opening.py is the other end.
It imports nothing of orch before the bundle is there.
"""

import errno
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from typing import Any, Callable

OLDEST = (3, 11)
PREFIX = "orch-agent-{}-".format(os.geteuid())
_TEMPORARY = ("/tmp", "/var/tmp")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Refused(Exception):
    """This host cannot serve. The text is for the user."""


def main() -> None:
    source = getattr(sys.stdin.buffer, "raw")  # noqa: B009 (unknown to the types)
    parameters = json.loads(source.readline().decode())

    def answer(**fields: object) -> None:
        os.write(1, (parameters["mark"] + json.dumps(fields) + "\n").encode())

    try:
        _serve(source, parameters, lambda: answer(state="ready"))
    except Refused as refused:
        answer(state="refused", reason=str(refused))
    except OSError as error:
        name = "" if error.filename is None else "{}: ".format(error.filename)
        answer(state="refused", reason=name + (error.strerror or str(error)))


def _serve(source: "io.RawIOBase", parameters: "dict[str, Any]", ready: "Callable[[], None]") -> None:
    if sys.version_info < OLDEST:
        raise Refused(
            "Python {} ({}) is too old: orch needs {}.{} or newer; --remote-python names another".format(
                sys.version.split()[0], sys.executable, *OLDEST
            )
        )
    bundle = _read(source, parameters["bundle_bytes"])
    directory = _make_directory(parameters["agent"])
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            archive.extractall(os.path.join(directory, "bundle"))
        sys.path.insert(0, os.path.join(directory, "bundle"))
        from pathlib import Path

        from worker.agent.guard import serve

        serve(Path(directory), parameters["link_timeout_s"], ready)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = os.path.dirname(directory)
        raise Refused(
            "no space is left in {}; delete files there, or let TMPDIR name another directory".format(place)
        ) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def bases() -> "list[str]":
    """The directories in which agents have theirs."""
    return [base for base in (os.environ.get("TMPDIR", ""), *_TEMPORARY) if os.path.isabs(base)]


def _make_directory(agent: str) -> str:
    """Create a private directory for the agent. `agent` names a run and a host."""
    failure = Refused("there is no directory for temporary files")  # type: Exception
    for base in bases():
        try:
            return tempfile.mkdtemp(prefix="{}{}-".format(PREFIX, agent), dir=base)
        except OSError as error:
            failure = error
    raise failure


def is_own_directory(path: str) -> bool:
    """Whether this is a directory, not a link, of this user, in which others cannot write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_ours and not status.st_mode & _OTHERS_MAY_WRITE


def _read(source: "io.RawIOBase", count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = source.read(min(count - len(data), 1 << 16))
        if not piece:
            raise Refused("the connection ended within the bundle")
        data += piece
    return bytes(data)


if __name__ == "__main__":
    main()
