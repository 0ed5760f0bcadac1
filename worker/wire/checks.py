"""The questions to the agent of another host before a run, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from worker.wire.codec import Within
from worker.wire.facts import Count, Port, Text


@dataclass(frozen=True)
class SharedFile:
    """A file in a directory that hosts may share."""

    directory: str
    name: str


@dataclass(frozen=True)
class Question:
    """Each part is optional. Files and ports are kept until the run begins or the agent exits.

    run: programs with their arguments; their output is returned
    hash: files whose SHA-256 is returned
    enter: a directory in which a program is to be started
    write, read: to put a file there, and to look for one
    hold: an address at which to bind a port without listening on it
    reach: addresses and ports to connect to
    """

    run: tuple[tuple[str, ...], ...] = ()
    hash: tuple[str, ...] = ()
    enter: str | None = None
    write: SharedFile | None = None
    read: SharedFile | None = None
    hold: str | None = None
    reach: tuple[tuple[str, Port], ...] = ()


@dataclass(frozen=True)
class Ran:
    """`code`: the exit code, or a negative signal number; None if the program did not start or exit. `error`: the
    reason then, otherwise its stderr."""

    code: Annotated[int, Within(-64, 255)] | None
    out: Text = ""
    error: Text | None = None


@dataclass(frozen=True)
class Outcome:
    """`error`: why it could not be done. `value`: the SHA-256 of a file, or the name of a file that is there."""

    error: Text | None = None
    value: Text | None = None


@dataclass(frozen=True)
class HeldPort:
    """`port` is held; None: `error` says why not."""

    error: Text | None = None
    port: Port | None = None


@dataclass(frozen=True)
class Checked:
    """The answers, in the order of the question; None or empty for what was not asked.

    temporary: the directory in which logs wait to be sent, `free_bytes` of its file system
    reach: "connected", "refused", "silent", or the text of an error
    error: why the question was not answered
    """

    temporary: Text
    free_bytes: Count
    run: tuple[Ran, ...] = ()
    hash: tuple[Outcome, ...] = ()
    enter: Outcome | None = None
    write: Outcome | None = None
    read: Outcome | None = None
    hold: HeldPort | None = None
    reach: tuple[Text, ...] = ()
    error: Text | None = None
