"""Logs that another host sends are written where its task's log ends, and nowhere else."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ForgedLog, ReceivedLogs


@contextlib.contextmanager
def received(place: Path) -> Iterator[ReceivedLogs]:
    with Directory.open(place) as directory:
        logs = ReceivedLogs(directory)
        logs.add("worker:0", "worker-0.log")
        yield logs
        logs.close()


def test_repeated_bytes_are_written_once(tmp_path: Path) -> None:
    with received(tmp_path) as logs:
        for offset, data in ((0, b"one "), (0, b"one two "), (4, b"two "), (8, b"three"), (2, b"e")):
            logs.write("worker:0", offset, data)
    assert (tmp_path / "worker-0.log").read_bytes() == b"one two three"


def test_log_of_a_later_session_follows(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        with received(tmp_path) as logs:
            logs.write("worker:0", 0, text)
            logs.write("worker:0", 0, b"", is_cut=True)
            logs.write("worker:0", 0, text)
    assert (tmp_path / "worker-0.log").read_bytes() == b"first\nsecond\n"


@given(
    st.one_of(
        st.tuples(st.text(), st.just(0)),
        st.tuples(st.sampled_from(["../../x", "worker:1", "/etc/x", "worker-0.log", ""]), st.just(0)),
        st.tuples(st.just("worker:0"), st.integers(4, 2**70)),
    )
)
def test_forged_log_is_refused(forged: tuple[str, int]) -> None:
    task, offset = forged
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with received(place) as logs:
            logs.write("worker:0", 0, b"abc")
            if (task, offset) != ("worker:0", 0):
                for data, is_cut in ((b"data", False), (b"", True)):
                    with pytest.raises(ForgedLog):
                        logs.write(task, offset, data, is_cut=is_cut)
        assert [path.name for path in place.iterdir()] == ["worker-0.log"]
        assert (place / "worker-0.log").read_bytes() == b"abc"
