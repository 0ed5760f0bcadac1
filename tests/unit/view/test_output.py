"""Writing to slow readers, closed pipes and files."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.client.view.output import Output, OutputClosed

MUCH = b"0123456789abcdef" * 65536


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest, no_leaked_descriptors: None) -> Iterator[list[int]]:
    """The reader and the writer of a stream. One that a test closes is taken out."""
    if request.param == "pipe":
        made = [*os.pipe()]
    else:
        theirs, ours = socket.socketpair()
        # The default buffer of some machines holds all bytes.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(MUCH) // 8)
        made = [theirs.detach(), ours.detach()]
    yield made
    for fd in made:
        os.close(fd)


def test_slow_reader_does_not_block_and_gets_all_bytes(ends: list[int]) -> None:
    """The descriptor stays blocking: the shell and other programs write to the same file description."""
    reader, writer = ends
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    out = Output(writer)
    out.write(MUCH)
    assert out.backlog > 0 and not out.drain(0.0)
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == before
    out.write(b"the end")
    got = b""
    while out.backlog:
        got += os.read(reader, 1 << 20)
        out.drain(0.0)
    out.close()
    os.close(ends.pop())
    while data := os.read(reader, 1 << 20):
        got += data
    assert got == MUCH + b"the end"


@pytest.mark.parametrize("begun", [b"", MUCH])
def test_reader_that_closes_raises_output_closed(ends: list[int], begun: bytes) -> None:
    out = Output(ends[1])
    out.write(begun)
    os.close(ends.pop(0))
    with pytest.raises(OutputClosed):
        out.write(b"x")
        out.drain(30.0)
    out.close()


def test_file_is_written_at_its_offset(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before ")
        file.flush()
        out = Output(file.fileno())
        out.write(MUCH)
        assert out.backlog == 0 and out.drain(0.0)
        out.close()
        file.write(b" after")
    assert (tmp_path / "out").read_bytes() == b"before " + MUCH + b" after"
