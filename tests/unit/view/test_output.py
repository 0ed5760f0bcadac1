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


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    ends = {reader, writer}
    yield reader, writer
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def read_some(fd: int) -> bytes:
    return os.read(fd, 1 << 20)


def test_slow_reader_does_not_block_and_gets_all_bytes(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Output(writer)
    out.write(MUCH)
    assert out.backlog > 0
    assert not out.drain(0.0)
    out.write(b"the end")
    got = b""
    while out.backlog:
        got += read_some(reader)
        out.drain(0.0)
    out.close()
    os.close(writer)
    while data := read_some(reader):
        got += data
    assert got == MUCH + b"the end"


def test_given_descriptor_stays_blocking(pipe: tuple[int, int]) -> None:
    """The shell and other programs write to the same file description."""
    writer = pipe[1]
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    out = Output(writer)
    out.write(MUCH)
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == before
    out.close()
    assert os.write(writer, b"") == 0


def test_closed_reader_raises_output_closed(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Output(writer)
    os.close(reader)
    with pytest.raises(OutputClosed):
        out.write(b"x")
    out.close()


def test_reader_that_closes_during_backlog_raises_output_closed(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    out = Output(writer)
    out.write(MUCH)
    os.close(reader)
    with pytest.raises(OutputClosed):
        out.drain(30.0)
    out.close()


def test_file_is_written_at_its_offset(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before ")
        file.flush()
        out = Output(file.fileno())
        out.write(MUCH)
        assert out.backlog == 0
        assert out.drain(0.0)
        out.close()
        file.write(b" after")
    assert (tmp_path / "out").read_bytes() == b"before " + MUCH + b" after"


def test_full_disk_raises_os_error() -> None:
    with Path("/dev/full").open("wb") as full:
        out = Output(full.fileno())
        with pytest.raises(OSError, match="No space left"):
            out.write(b"x")
        out.close()


def test_slow_socket_does_not_block() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # The default buffer of some machines holds all bytes.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(MUCH) // 8)
        out = Output(ours.fileno())
        out.write(MUCH)
        assert out.backlog > 0
        got = b""
        while out.backlog:
            got += theirs.recv(1 << 20)
            out.drain(0.0)
        ours.close()
        while data := theirs.recv(1 << 20):
            got += data
        assert got == MUCH
        out.close()
