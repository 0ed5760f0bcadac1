"""The first program on another host: checks the Python, gets the bundle, then hands over to worker/remote/entry.py.

It is sent as one line of text and may be run by any Python from 3.6 on, in order to say that a newer one is needed.
The next line of stdin holds its parameters; orchestrator/links/opening.py is the other end. It imports nothing of orch
before the bundle is there.
"""

import hashlib
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
_TEMPORARY = ("/tmp", "/var/tmp")
# The path of a unix socket has at most 107 bytes.
_LONGEST_BASE = 60
_MANIFEST = "manifest.json"
# Beginnings of names beside bundles: one that is being unpacked, and a damaged one that was replaced.
UNPACKING, REPLACED = ".new-", ".old-"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Refused(Exception):
    """This host cannot serve. The text is for the user."""


def main() -> None:
    source = getattr(sys.stdin.buffer, "raw")  # noqa: B009 (unknown to the types)
    parameters = json.loads(source.readline().decode())

    def answer(**fields: object) -> None:
        os.write(1, (parameters["mark"] + json.dumps(fields) + "\n").encode())

    try:
        _serve(source, parameters, answer)
    except Refused as refused:
        answer(state="refused", reason=str(refused))
    except OSError as error:
        name = "" if error.filename is None else "{}: ".format(error.filename)
        answer(state="refused", reason=name + (error.strerror or str(error)))


def _serve(source: "io.RawIOBase", parameters: "dict[str, Any]", answer: "Callable[..., None]") -> None:
    _check_python()
    directory = _agent_directory(parameters)
    try:
        bundle = _bundle(source, parameters, directory, answer)
        sys.path.insert(0, bundle)
        from pathlib import Path

        from worker.remote.entry import start_or_find

        stream = start_or_find(parameters, Path(directory), bundle)
    except BaseException:
        if parameters["is_first"]:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    from worker.remote.relay import relay

    if stream is None:
        answer(state="gone", reason="the agent has ended there: it was killed, or it crashed")
    else:
        answer(state="ready")
        relay(stream, os.path.join(directory, "agent.log"))


def _check_python() -> None:
    if sys.version_info < OLDEST:
        raise Refused(
            "Python {} ({}) is too old: orch needs {}.{} or newer; --remote-python names another".format(
                sys.version.split()[0], sys.executable, *OLDEST
            )
        )


def bases() -> "list[str]":
    """The directories in which agents have theirs."""
    found = [os.environ.get("TMPDIR", ""), *_TEMPORARY]
    return [base for base in found if os.path.isabs(base) and len(base) <= _LONGEST_BASE]


def _agent_directory(parameters: "dict[str, Any]") -> str:
    """Create the private directory of the agent, or find it. It may be missing if the agent is gone."""
    name = "orch-agent-{}-{}".format(os.geteuid(), parameters["agent_id"])
    found = [os.path.join(base, name) for base in bases()]
    if not parameters["is_first"]:
        return next((path for path in found if is_own_directory(path)), found[0])
    failure = None  # type: OSError | None
    for path in found:
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            failure = failure or error
        else:
            return path
    raise failure or Refused("there is no directory for temporary files")


def is_own_directory(path: str) -> bool:
    """Whether this is a directory, not a link, of this user, in which others cannot write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_ours and not status.st_mode & _OTHERS_MAY_WRITE


def _bundle(
    source: "io.RawIOBase", parameters: "dict[str, Any]", directory: str, answer: "Callable[..., None]"
) -> str:
    """Return the directory of the unpacked bundle. It is asked for only if this host does not have it."""
    places = [os.path.join(_cache(), parameters["bundle"]), os.path.join(directory, "bundle")]
    for place in places:
        if _is_whole(place):
            try:
                os.utime(place)  # it is used: not one of the old ones
            except OSError:
                pass  # on a read-only file system
            return place
    answer(state="need")
    data = _read(source, parameters["bundle_bytes"])
    if hashlib.sha256(data).hexdigest() != parameters["bundle"]:
        raise Refused("the bundle was damaged on the way")
    failure = None  # type: OSError | None
    for place in places:
        try:
            _unpack(data, place)
        except OSError as error:
            failure = error  # for example a home directory that is read-only or full
        if _is_whole(place):
            return place
    raise failure or Refused("the bundle cannot be unpacked")


def _cache() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "orch", "bundles")


def _is_whole(place: str) -> bool:
    """Whether this directory holds all files of a bundle as they were sent."""
    if not is_own_directory(place):
        return False
    try:
        with open(os.path.join(place, _MANIFEST)) as file:
            manifest = json.load(file)
        for name, digest in manifest.items():
            with open(os.path.join(place, name), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    return False
    except (OSError, ValueError):
        return False
    return True


def _unpack(data: bytes, place: str) -> None:
    """Unpack beside the place, then rename: another start may do the same, and an agent may be using the old one."""
    above = os.path.dirname(place)
    os.makedirs(above, mode=0o700, exist_ok=True)
    beside = tempfile.mkdtemp(prefix=UNPACKING, dir=above)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(beside)
        if os.path.lexists(place) and not _is_whole(place):
            os.rename(place, tempfile.mkdtemp(prefix=REPLACED, dir=above))
        try:
            os.rename(beside, place)
        except OSError:
            if not _is_whole(place):
                raise
    finally:
        for name in os.listdir(above):
            if name.startswith(REPLACED) or os.path.join(above, name) == beside:
                shutil.rmtree(os.path.join(above, name), ignore_errors=True)


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
