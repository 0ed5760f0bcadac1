"""Pieces of the logs hold every line once, wherever they are cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from orchestrator.store.logs.index import IndexRecord, format_record
from orchestrator.store.logs.lines import Block
from orchestrator.ui import log_pieces
from orchestrator.ui.log_pieces import Cursor, LogTail, Piece, pieces_before, read_piece

RECORDS = 400


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of two tasks whose records end anywhere in a line."""
    directory = tmp_path / "logs"
    directory.mkdir(mode=0o700)
    texts = {
        task: b"".join(b"%s line %d\n" % (task.encode(), n) for n in range(900))
        for task in ("worker:0", "worker:1")
    }
    index, offsets = b"", dict.fromkeys(texts, 0)
    for number in range(RECORDS):
        task = f"worker:{number % 2}"
        length = min(31 + 7 * (number % 11), len(texts[task]) - offsets[task])
        index += format_record(IndexRecord(float(number), task, 1, offsets[task], length))
        offsets[task] += length
    for task, text in texts.items():
        path = directory / f"{task.replace(':', '-')}.log"
        path.write_bytes(text[: offsets[task]])
        path.chmod(0o600)
    (directory / "index").write_bytes(index)
    (directory / "index").chmod(0o600)
    return directory


def lines(blocks: list[Block]) -> list[bytes]:
    return [line for block in blocks for line in block.data.splitlines()]


def all_lines(logs: Path) -> list[bytes]:
    return lines(read_piece(logs, Piece(0, 1 << 40)))


def test_pieces_backwards_are_all_lines_in_order(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for piece_bytes in (1, 100, 5000, 1 << 20):
        monkeypatch.setattr(log_pieces, "PIECE_BYTES", piece_bytes)
        pieces = list(pieces_before(logs))
        assert pieces[-1].begin == 0
        assert all(later.begin == earlier.end for later, earlier in itertools.pairwise(pieces))
        found = [line for piece in reversed(pieces) for line in lines(read_piece(logs, piece))]
        assert len(found) > 700
        assert found == all_lines(logs), piece_bytes


def test_tail_continues_where_a_piece_has_ended(logs: Path) -> None:
    index = (logs / "index").read_bytes()
    for cut in (position + 1 for position, byte in enumerate(index[:1200]) if byte == ord("\n")):
        with LogTail(logs, cut) as tail:
            after: list[Block] = []
            while (found := tail.read(500)) is not None:
                after += found
            assert tail.cursor == Cursor(len(index))
        assert lines(read_piece(logs, Piece(0, cut))) + lines(after) == all_lines(logs)


def test_last_piece_of_an_ended_run_has_the_lines_that_no_index_covers(logs: Path) -> None:
    with (logs / "worker-0.log").open("ab") as log:
        log.write(b" the end\nwithout a newline")
    (last, *_) = pieces_before(logs)
    found = lines(read_piece(logs, last, is_last=True))
    assert b"without a newline" in found
    assert any(line.endswith(b" the end") for line in found)


def test_logs_that_are_missing_have_no_pieces(tmp_path: Path) -> None:
    assert list(pieces_before(tmp_path / "none")) == []
    assert read_piece(tmp_path / "none", Piece(0, 0), is_last=True) == []


def test_other_words_are_no_cursors() -> None:
    for text in ("", "x", "-1", "1.5", "9" * 30, "e"):
        with pytest.raises(ValueError, match="cursor"):
            Cursor.parse(text)
    assert Cursor.parse("12e") == Cursor(12, is_end=True)
