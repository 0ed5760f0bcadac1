"""Write checkpoints in TensorFlow's format without TensorFlow: an index and its data files."""

from __future__ import annotations

from pathlib import Path

from recordings import integer, varint

_MAGIC = 0xDB4775248B80FB57


def write_bundle(prefix: Path, *sizes: int) -> Path:
    """Write a checkpoint with one tensor of the given size in each data file. Return the index, written last."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for shard, size in enumerate(sizes):
        shard_path(prefix, shard, len(sizes)).write_bytes(bytes(size))
    index = prefix.with_name(f"{prefix.name}.index")
    index.write_bytes(index_bytes(*sizes))
    return index


def shard_path(prefix: Path, shard: int, count: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{count:05d}")


def index_bytes(*sizes: int, compression: int = 0) -> bytes:
    header = integer(1, len(sizes))
    entries = [(b"", header)]
    entries += [
        (
            f"weights/{shard}".encode(),
            integer(1, 1) + integer(3, shard) + integer(5, size) + b"\x35abcd",
        )
        for shard, size in enumerate(sizes)
    ]
    data = _block(entries)
    place = varint(0) + varint(len(data))
    table = data + bytes([compression]) + b"crc-"
    meta, meta_at = _block([]), len(table)
    table += meta + b"\0crc-"
    blocks, blocks_at = _block([(b"z", place)]), len(table)
    table += blocks + b"\0crc-"
    handles = b"".join(map(varint, (meta_at, len(meta), blocks_at, len(blocks))))
    return table + handles.ljust(40, b"\0") + _MAGIC.to_bytes(8, "little")


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    out, before = b"", b""
    for key, value in entries:
        shared = next((at for at, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), 0)
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return out + bytes(4) + (1).to_bytes(4, "little")
