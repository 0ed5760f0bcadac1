"""Lines assembled from chunks do not depend on the boundaries of the chunks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.logs.lines import Block, Chunk, LineAssembler


def chunk(data: bytes, task: str = "worker:0", attempt: int = 1, lost: int = 0) -> Chunk:
    return Chunk(task, attempt, 1.0, 0, data, lost)


def assemble(pieces: list[bytes], max_line_bytes: int = 1 << 20) -> list[Block]:
    assembler = LineAssembler(max_line_bytes, numbered=True)
    blocks = [block for piece in pieces for block in assembler.feed(chunk(piece))]
    return blocks + assembler.flush()


def lines(blocks: list[Block]) -> list[tuple[int, bytes, bool, int]]:
    """Return (number, text, partial, omitted) of every line."""
    found = []
    for block in blocks:
        parts = block.data.split(b"\n")
        last = parts.pop()
        found += [(block.seq + n, part, False, block.omitted) for n, part in enumerate(parts)]
        if block.partial:
            found.append((block.seq + len(parts), last, True, block.omitted))
        else:
            assert last == b""
    return found


texts = st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"\n", b"\r", b"bcd"]), max_size=60).map(
    b"".join
)


@given(texts, st.lists(st.integers(0, 200), max_size=12))
def test_lines_do_not_depend_on_the_chunks(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(edges)]
    found = lines(assemble(pieces))
    assert found == lines(assemble([data]))
    expected = data.split(b"\n")
    rest = expected.pop()
    assert [text for _, text, _, _ in found] == expected + ([rest] if rest else [])
    assert [number for number, *_ in found] == list(range(1, len(found) + 1))
    assert [partial for _, _, partial, _ in found] == [False] * len(expected) + ([True] if rest else [])


@given(texts, st.integers(1, 50), st.integers(1, 20))
def test_line_beyond_the_limit_is_cut_and_counts_omitted_bytes(data: bytes, step: int, limit: int) -> None:
    pieces = [data[i : i + step] for i in range(0, len(data), step)]
    whole = lines(assemble([data]))
    cut = lines(assemble(pieces, max_line_bytes=limit))
    assert [len(text) + omitted for _, text, _, omitted in cut] == [len(text) for _, text, _, _ in whole]
    for (_, text, _, omitted), (_, full, _, _) in zip(cut, whole, strict=True):
        assert full.startswith(text)
        # A line within one chunk needs no extra memory and is not cut.
        assert len(text) <= max(limit, step)
        assert not omitted or len(text) == limit


def test_complete_chunk_is_not_copied_and_tasks_are_not_mixed() -> None:
    assembler = LineAssembler()
    assert assembler.feed(chunk(b"fi", "worker:0")) == []
    data = b"second\nthird\n"
    (block,) = assembler.feed(chunk(data, "worker:1"))
    assert block.data is data
    # A line has the time of its end.
    (block,) = assembler.feed(chunk(b"rst\n")._replace(time=9.0))
    assert (block.data, block.time) == (b"first\n", 9.0)


def test_attempt_does_not_continue_a_line_of_the_previous_attempt() -> None:
    assembler = LineAssembler()
    assembler.feed(chunk(b"killed in the mid", attempt=1))
    blocks = assembler.feed(chunk(b"hello\n", attempt=2))
    assert [(b.attempt, b.data, b.partial) for b in blocks] == [
        (1, b"killed in the mid", True),
        (2, b"hello\n", False),
    ]


def test_truncation_ends_the_line_and_restarts_numbering() -> None:
    assembler = LineAssembler(numbered=True)
    assembler.feed(chunk(b"one\ntw"))
    blocks = assembler.feed(chunk(b"", lost=6)) + assembler.feed(chunk(b"three\n"))
    assert [(b.data, b.partial, b.lost, b.seq) for b in blocks] == [
        (b"tw", True, 0, 2),
        (b"", False, 6, 1),
        (b"three\n", False, 0, 1),
    ]


def test_pieces_of_a_long_line_are_joined_once() -> None:
    """The line has ten million bytes in pieces of a hundred. Repeated joining would copy 500 GB."""
    assembler = LineAssembler()
    piece = chunk(b"x" * 100)
    for _ in range(100_000):
        assert assembler.feed(piece) == []
    (block,) = assembler.feed(chunk(b"\n"))
    assert len(block.data) == 10_000_001
