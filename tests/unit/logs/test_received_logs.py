"""Logs that another host sends are written where its task's log ends, and nowhere else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.directory import Directory
from orchestrator.store.logs.received import ForgedLog, ReceivedLogs


@pytest.fixture
def received(tmp_path: Path) -> Iterator[ReceivedLogs]:
    with Directory.open(tmp_path) as directory:
        logs = ReceivedLogs(directory)
        logs.add("worker:0", "worker-0.log")
        yield logs
        logs.close()


def test_repeated_bytes_are_written_once(received: ReceivedLogs, tmp_path: Path) -> None:
    for offset, data in ((0, b"one "), (0, b"one two "), (4, b"two "), (8, b"three"), (2, b"e")):
        received.write("worker:0", offset, data)
    assert (tmp_path / "worker-0.log").read_bytes() == b"one two three"


def test_log_of_a_later_session_follows(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        with Directory.open(tmp_path) as directory:
            logs = ReceivedLogs(directory)
            logs.add("worker:0", "worker-0.log")
            logs.write("worker:0", 0, text)
            logs.write("worker:0", 0, b"", is_cut=True)
            logs.write("worker:0", 0, text)
            logs.close()
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
    with tempfile.TemporaryDirectory() as place, Directory.open(Path(place)) as directory:
        logs = ReceivedLogs(directory)
        logs.add("worker:0", "worker-0.log")
        logs.write("worker:0", 0, b"abc")
        if (task, offset) != ("worker:0", 0):
            with pytest.raises(ForgedLog):
                logs.write(task, offset, b"data")
            with pytest.raises(ForgedLog):
                logs.write(task, offset, b"", is_cut=True)
        logs.close()
        assert [path.name for path in Path(place).iterdir()] == ["worker-0.log"]
        assert (Path(place) / "worker-0.log").read_bytes() == b"abc"
