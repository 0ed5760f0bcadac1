"""Parse the `.index` file of a TensorFlow checkpoint and the file `checkpoint` that names the latest one (pure).

An index is a sorted table in LevelDB's format (its doc/table_format.md): blocks of keys and values, listed in a last
block, which a footer of 48 bytes points to. The values are messages of tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.text.counted import counted

STATE_FILE = "checkpoint"
_FOOTER_BYTES = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
# A block is followed by one byte for its compression and four bytes of checksum.
_UNCOMPRESSED = 0
_MOST_SHARDS = 100_000
# An index with more is left to TensorFlow, because reading it takes minutes.
_MOST_TENSORS = 1_000_000
_FIELD_NUM_SHARDS = 1
_FIELD_SHARD, _FIELD_OFFSET, _FIELD_SIZE = 3, 4, 5
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
# A string in protobuf's text format: "..." or '...' with C escapes.
_LATEST = re.compile(
    r"""^[ \t]*model_checkpoint_path[ \t]*:[ \t]*(["'])((?:\\.|(?!\1)[^\\\n])*)\1""", re.MULTILINE
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class DamagedIndex(ValueError):
    """The data is not a complete index. str() is the reason."""


@dataclass(frozen=True)
class BundleIndex:
    """`shard_bytes[i]` is the minimum length of the i-th data file, `tensors` the number of entries."""

    shard_bytes: tuple[int, ...]
    tensors: int


def read_index(data: bytes) -> BundleIndex | None:
    """Parse an index. None if it is compressed or too large: only TensorFlow reads that. DamagedIndex."""
    try:
        return _read(data)
    except (IndexError, UnicodeDecodeError) as error:
        raise DamagedIndex("it ends in the middle of an entry") from error


def parse_latest(text: str, directory: Path) -> Path | None:
    """Return the prefix of the latest checkpoint in the text of a state file in `directory`. None if unreadable."""
    match = _LATEST.search(text)
    if match is None or not match[2]:
        return None
    name = _ESCAPE.sub(_unescape, match[2].encode(errors="surrogateescape")).decode(errors="surrogateescape")
    return None if "\0" in name else directory / name


def _unescape(match: re.Match[bytes]) -> bytes:
    code: bytes = match[1]
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 0xFF])
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code)


def _read(data: bytes) -> BundleIndex | None:
    if len(data) < _FOOTER_BYTES:
        raise DamagedIndex(f"it is cut off: {counted(len(data), 'byte')}")
    if data[-len(_MAGIC) :] != _MAGIC:
        raise DamagedIndex(
            "it is cut off, or not the index of a checkpoint: it does not end with the magic number"
        )
    footer = data[-_FOOTER_BYTES:]
    _, at = _handle(footer, 0)
    blocks, _ = _handle(footer, at)
    if _is_compressed(data, blocks):
        return None
    ends: list[int] | None = None
    tensors = 0
    read_to = 0
    for _, handle in _entries(_block(data, blocks)):
        place, _ = _handle(handle, 0)
        # In a table the blocks follow each other: no byte is read twice.
        if place[0] < read_to:
            raise DamagedIndex("two of its blocks overlap")
        read_to = sum(place)
        if _is_compressed(data, place):
            return None
        for key_length, value in _entries(_block(data, place)):
            if tensors >= _MOST_TENSORS:
                return None
            fields = _integer_fields(value)
            if ends is None:
                if key_length:
                    raise DamagedIndex("it has no header")
                ends = [0] * _shard_count(fields)
                continue
            shard = fields.get(_FIELD_SHARD, 0)
            if shard >= len(ends):
                raise DamagedIndex(f"it refers to data file {shard} of {len(ends)}")
            tensors += 1
            ends[shard] = max(ends[shard], fields.get(_FIELD_OFFSET, 0) + fields.get(_FIELD_SIZE, 0))
    if ends is None:
        raise DamagedIndex("it is empty")
    return BundleIndex(tuple(ends), tensors)


def _shard_count(fields: dict[int, int]) -> int:
    count = fields.get(_FIELD_NUM_SHARDS, 0)
    if not 0 < count <= _MOST_SHARDS:
        raise DamagedIndex(f"it lists {counted(count, 'data file')}")
    return count


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return (offset, size) of a block, and the position after them."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _is_compressed(data: bytes, place: tuple[int, int]) -> bool:
    return data[sum(place)] != _UNCOMPRESSED


def _block(data: bytes, place: tuple[int, int]) -> bytes:
    """Return the entries of a block, without the list of restart points after them."""
    offset, size = place
    block = data[offset : offset + size]
    if len(block) < size or size < 4:
        raise DamagedIndex("a part of it is missing")
    restarts = int.from_bytes(block[-4:], "little")
    if 4 * (restarts + 1) > size:
        raise DamagedIndex("one of its blocks is damaged")
    return block[: size - 4 * (restarts + 1)]


def _entries(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (length of the key, value). A stored key omits the prefix that it shares with the previous one."""
    at = key_length = 0
    while at < len(block):
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > key_length or at + own + length > len(block):
            raise DamagedIndex("one of its entries is damaged")
        # The keys themselves are not needed. A damaged one could be as long as the file, and shared by all others.
        key_length = shared + own
        at += own
        yield key_length, block[at : at + length]
        at += length


def _integer_fields(message: bytes) -> dict[int, int]:
    """Return the varint fields of a protobuf message by field number."""
    found: dict[int, int] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            found[tag >> 3], at = _varint(message, at)
        elif kind == _LENGTH:
            length, at = _varint(message, at)
            at += length
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            at += 4 if kind == _FOUR_BYTES else 8
        else:
            raise DamagedIndex("one of its values is damaged")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits for each byte, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DamagedIndex("one of its numbers is damaged")
