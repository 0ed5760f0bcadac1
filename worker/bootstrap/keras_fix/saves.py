"""Lets all workers save to one path: each writes beside it and puts its file there whole; the chief's stays.

Written for scripts that know of no other workers: `model.save`, `save_weights`, ModelCheckpoint,
`tf.train.Checkpoint` and its manager would otherwise crash on a file lock or mix two workers' bytes. Nobody
waits for anybody, and nothing is asked over the network: a save may be the chief's alone. A worker with a path
of its own has its file there as ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SUFFIXES = (".weights.h5", ".keras", ".h5", ".hdf5")

# How often this worker has saved to a path, in this process.
_saved: dict[str, int] = {}


# The last TF_CONFIG that named a task: a script may take it away once it has its strategy.
_last_config: list[str] = []


class Chief:
    """Whether this worker is the chief, by TF_CONFIG as it is now or, where it is gone, as it last was."""

    def __bool__(self) -> bool:
        known = remember_place()
        if known is None:
            return True
        kind, index, cluster = known
        return kind == "chief" or (kind == "worker" and index == 0 and "chief" not in cluster)


def remember_place() -> tuple[str, int, list[str]] | None:
    """This task's type and index and the cluster's types, as TF_CONFIG has or last had them; else None."""
    for text in (os.environ.get("TF_CONFIG", ""), *_last_config):
        try:
            config = json.loads(text)
            place = str(config["task"]["type"]), int(config["task"]["index"]), list(config["cluster"])
        except (ValueError, KeyError, TypeError):
            continue
        _last_config[:] = [text]
        return place
    return None


def repair(keras: ModuleType, workers: int) -> str | None:
    """Have whole models, weights and checkpoints put in place whole."""
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.saving import saving_lib
    from keras.src.utils import file_utils
    from tensorflow.python.checkpoint import checkpoint

    for module, name in (
        (saving_lib, "save_model"),
        (saving_lib, "save_weights_only"),
        (legacy_h5_format, "save_model_to_hdf5"),
    ):
        setattr(module, name, _saving_beside(getattr(module, name)))
    file_utils.makedirs = _making_what_is_missing(file_utils.makedirs)
    checkpoint.TrackableSaver.save = _checkpointing_beside(checkpoint.TrackableSaver.save)
    return "saves of all workers to one path"


def _saving_beside(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def save_beside(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        final = _plain_file(filepath)
        if final is None or kwargs.get("max_shard_size") or kwargs.get("zipped") is False:
            return save(model, filepath, *args, **kwargs)
        suffix = next(suffix for suffix in SUFFIXES if final.name.endswith(suffix))
        _remove_unfinished(final, final.name.removesuffix(suffix))
        beside = final.with_name(f".{final.name.removesuffix(suffix)}.{_own_mark()}{suffix}")
        try:
            result = save(model, str(beside), *args, **kwargs)
            put_in_place(final, [(beside, final)])
        finally:
            beside.unlink(missing_ok=True)
        return result

    return save_beside


def _checkpointing_beside(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def save_beside(
        self: Any, file_prefix: Any, checkpoint_number: Any = None, session: Any = None, options: Any = None
    ) -> Any:
        import tensorflow as tf

        if (
            not tf.executing_eagerly()
            or not isinstance(file_prefix, str | os.PathLike)
            or "://" in str(file_prefix)
            or (options is not None and options.experimental_enable_async_checkpoint)
        ):
            return save(self, file_prefix, checkpoint_number, session, options)
        prefix = os.fspath(file_prefix)
        if checkpoint_number:
            prefix = f"{prefix}-{int(checkpoint_number)}"
        final = Path(prefix)
        _remove_unfinished(final, final.name)
        beside = final.with_name(f".{final.name}.{_own_mark()}")
        try:
            save(self, str(beside), None, session, options)
            # The index last: a checkpoint is there when its index is.
            written = sorted(_parts(beside), key=lambda part: part.name.endswith(".index"))
            put_in_place(
                final,
                [(part, final.with_name(final.name + part.name[len(beside.name) :])) for part in written],
            )
        finally:
            for part in _parts(beside):
                part.unlink(missing_ok=True)
        return tf.constant(prefix)

    return save_beside


def _making_what_is_missing(makedirs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras looks whether a directory is there before it makes it; another worker may be between the two."""

    @functools.wraps(makedirs)
    def make(path: Any) -> Any:
        try:
            return makedirs(path)
        except FileExistsError:
            if not Path(path).is_dir():
                raise
            return None

    return make


def put_in_place(final: Path, moves: Sequence[tuple[Path, Path]]) -> None:
    """Rename each (from, to), unless the chief has already put there what this worker saves: its files then
    are left where they are. The n-th save of one worker to a path is taken for the n-th of another."""
    key = str(final.resolve())
    _saved[key] = _saved.get(key, 0) + 1
    with _chiefs_saves(key) as chiefs_saves:
        if not Chief() and chiefs_saves.count >= _saved[key] and all(to.exists() for _, to in moves):
            return
        for source, to in moves:
            source.replace(to)
        if Chief():
            chiefs_saves.count = _saved[key]


class _Count:
    def __init__(self, count: int) -> None:
        self.count = count


@contextlib.contextmanager
def _chiefs_saves(key: str) -> Iterator[_Count]:
    """How often the chief has saved to a path in this attempt, for one worker at a time."""
    directory = shared_directory()
    if directory is None:
        yield _Count(0)
        return
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    descriptor = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = _Count(int(os.pread(descriptor, 32, 0) or b"0"))
        count = _Count(before.count)
        yield count
        if count.count != before.count:
            os.pwrite(descriptor, b"%d" % count.count, 0)
    finally:
        os.close(descriptor)


def shared_directory() -> Path | None:
    """A directory of this attempt's that all workers of this host share, removed with the run; else None."""
    scratch = os.environ.get("ORCH_SCRATCH_DIR")
    if not scratch:
        return None
    directory = Path(scratch).parent / f"saves-{os.environ.get('ORCH_ATTEMPT', '1')}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return directory


def _plain_file(filepath: Any) -> Path | None:
    """Where a save goes if that is a file to be made or replaced on this machine."""
    if not isinstance(filepath, str | os.PathLike) or "://" in str(filepath):
        return None
    path = Path(filepath).resolve()
    if not path.name.endswith(SUFFIXES) or (path.exists() and not path.is_file()):
        return None
    return path


def _parts(prefix: Path) -> list[Path]:
    return [
        path
        for path in prefix.parent.iterdir()
        if path.name.startswith((f"{prefix.name}.index", f"{prefix.name}.data-"))
    ]


def _remove_unfinished(final: Path, name: str) -> None:
    """What this task was writing beside the path in an attempt before, when it was killed."""
    if os.environ.get("ORCH_ATTEMPT", "1") == "1" or str(final.resolve()) in _saved:
        return
    start = f".{name}.{_task_mark()}-"
    for unfinished in final.parent.glob(".*") if final.parent.is_dir() else ():
        pid = unfinished.name.removeprefix(start).partition(".")[0]
        if unfinished.name.startswith(start) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                unfinished.unlink()


def _own_mark() -> str:
    return f"{_task_mark()}-{os.getpid()}"


def _task_mark() -> str:
    return os.environ.get("ORCH_TASK", "worker").replace(":", "-")
