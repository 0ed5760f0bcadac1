"""Lets callbacks with one path for all workers work: the chief's files are kept, all restore the same state.

At the start of every `fit` the workers tell each other (one small collective) what their callbacks write and
when they save, as a script may give its chief other callbacks than the rest. From that follows:

- BackupAndRestore on one directory: the chief alone writes and removes it, all restore from it. Whatever
  directories there are, the workers start from one epoch and one state: the chief's.
- CSVLogger and TensorBoard on the chief's path: the others write to their scratch directory.
- Callbacks that save every N batches: BatchNormalization's statistics are averaged just before.

ModelCheckpoint on one path needs nothing more than that saves are put in place whole.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .averages import average
from .clusters import first_local, spans_workers, sum_now
from .saves import Chief

# Of a row of numbers that each worker tells: paths, and who saves every how many batches.
_PATHS, _SAVERS, _SAVER_NUMBERS = 16, 6, 3
_ROW = _PATHS + _SAVERS * _SAVER_NUMBERS
_PATH_OF = {"BackupAndRestore": "backup_dir", "CSVLogger": "filename", "TensorBoard": "log_dir"}


@dataclass
class Saver:
    """Counts batches as ModelCheckpoint and BackupAndRestore do: due every `every` of them."""

    every: int
    seen: int
    last: int  # -1: none yet

    def is_due(self, batch: int) -> bool:
        self.seen += batch + 1 if batch <= self.last or self.last < 0 else batch - self.last
        self.last = batch
        if self.seen < self.every:
            return False
        self.seen = 0
        return True


@dataclass
class Fit:
    """What is known of the fit that a model is in."""

    savers: list[Saver]
    some_restore: bool
    all_restore_alike: bool


_fits: dict[int, Fit] = {}


def repair(keras: ModuleType, workers: int) -> str | None:
    """Have fits begin with an agreement, and callbacks keep to it."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as Trainer
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.callbacks.callback_list import CallbackList

    fit = Trainer.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def agreeing_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not spans_workers(self.distribute_strategy):
            return fit(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments.get("callbacks")
        agreed = _agree(self, _flat(given))
        around = _fits.get(id(self))  # a callback of that one calls this one
        _fits[id(self)] = agreed
        try:
            return fit(self, *args, **kwargs)
        finally:
            _fits.pop(id(self))
            if around is not None:
                _fits[id(self)] = around

    Trainer.fit = agreeing_fit
    _replace_list(CallbackList)
    _replace_backup(BackupAndRestore)
    return "callbacks that share a path"


def _replace_list(callback_list: Any) -> None:
    begin, batch_end = callback_list.on_train_begin, callback_list.on_train_batch_end

    @functools.wraps(begin)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        begin(self, logs)
        model = getattr(self, "_model", None)
        here = _fits.get(id(model))
        if here is not None and here.some_restore:
            _start_alike(model)

    @functools.wraps(batch_end)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        model = getattr(self, "_model", None)
        here = _fits.get(id(model))
        due = [saver.is_due(int(batch)) for saver in here.savers] if here is not None else []
        if any(due):
            average(model)
        batch_end(self, batch, logs)

    callback_list.on_train_begin = on_train_begin
    callback_list.on_train_batch_end = on_train_batch_end


def _replace_backup(backup: Any) -> None:
    begin, save, end = backup.on_train_begin, backup._save_model, backup.on_train_end

    @functools.wraps(begin)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        here = _fits.get(id(self.model))
        if here is None or not here.all_restore_alike:
            begin(self, logs)
            return
        # The chief first: it may put a spare copy in the place of a torn file.
        chief = Chief()
        if chief:
            begin(self, logs)
        sum_now(self.model.distribute_strategy, [0])
        if not chief:
            begin(self, logs)

    @functools.wraps(save)
    def save_model(self: Any, *args: Any, **kwargs: Any) -> None:
        if not getattr(self, "_orch_chief_writes", False):
            save(self, *args, **kwargs)

    @functools.wraps(end)
    def on_train_end(self: Any, logs: Any = None) -> None:
        if not getattr(self, "_orch_chief_writes", False):
            end(self, logs)

    backup.on_train_begin = on_train_begin
    backup._save_model = save_model
    backup.on_train_end = on_train_end


def _agree(model: Any, callbacks: Sequence[Any]) -> Fit:
    strategy = model.distribute_strategy
    rows = _told_by_all(strategy, _row(callbacks))
    mine = [callback for callback in callbacks if _kind(callback)]
    chiefs = set(rows[0][:_PATHS]) - {0}
    backups = [{number for number in row[:_PATHS] if number and number % 3 == 0} for row in rows]
    for callback in mine:
        shared = _number(callback) in chiefs and not Chief()
        if _kind(callback) == "BackupAndRestore":
            callback._orch_chief_writes = shared
        elif shared:
            _write_elsewhere(callback)
    savers = {
        tuple(row[at : at + _SAVER_NUMBERS]) for row in rows for at in range(_PATHS, _ROW, _SAVER_NUMBERS)
    }
    return Fit(
        savers=[Saver(every, seen, last - 1) for every, seen, last in sorted(savers) if every],
        some_restore=any(backups),
        all_restore_alike=bool(backups[0]) and all(found == backups[0] for found in backups),
    )


def _told_by_all(strategy: Any, row: list[int]) -> list[list[int]]:
    """Every worker's row of numbers, by rank; all must call it."""
    import numpy as np

    workers = strategy.extended._num_workers
    table = np.zeros((workers, len(row)), np.int64)
    table[_rank(strategy)] = row
    told: list[list[int]] = sum_now(strategy, table).numpy().tolist()
    return told


def _rank(strategy: Any) -> int:
    return int(strategy.extended._id_in_cluster)


def _row(callbacks: Sequence[Any]) -> list[int]:
    paths = sorted({_number(callback) for callback in callbacks if _kind(callback)})[:_PATHS]
    savers: list[int] = []
    for callback in callbacks:
        every = getattr(callback, "save_freq", None)
        if isinstance(every, int) and not isinstance(every, bool) and every > 0:
            last = getattr(callback, "_last_batch_seen", None)
            seen = getattr(callback, "_batches_seen_since_last_saving", 0)
            savers += [every, int(seen), 0 if last is None else int(last) + 1]
    savers = savers[: _SAVERS * _SAVER_NUMBERS]
    return [*paths, *[0] * (_PATHS - len(paths)), *savers, *[0] * (_SAVERS * _SAVER_NUMBERS - len(savers))]


def _number(callback: Any) -> int:
    """A positive number for what the callback writes where, divisible by 3 for BackupAndRestore alone."""
    kind = _kind(callback)
    path = os.path.realpath(os.fspath(getattr(callback, _PATH_OF[kind])))
    digest = int.from_bytes(hashlib.sha256(f"{kind} {path}".encode()).digest()[:7], "big")
    return digest // 3 * 3 + (3 if kind == "BackupAndRestore" else 1)


def _kind(callback: Any) -> str:
    """The one of Keras's callbacks with a path of their own that it is or comes from; "" for another."""
    for kind in type(callback).__mro__:
        if kind.__name__ in _PATH_OF and kind.__module__.startswith("keras.src.callbacks."):
            return kind.__name__
    return ""


def _flat(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    inner = getattr(callbacks, "callbacks", callbacks)
    return list(inner) if isinstance(inner, list | tuple) else [inner]


def _write_elsewhere(callback: Any) -> None:
    name = _PATH_OF[_kind(callback)]
    scratch = os.environ.get("ORCH_SCRATCH_DIR") or tempfile.mkdtemp(prefix="orch-")
    path = Path(getattr(callback, name))
    # Two callbacks may have one file name, in different directories.
    own = str(Path(scratch) / f"{path.stem}-{_number(callback):x}{path.suffix}")
    setattr(callback, name, own)
    if hasattr(callback, "_log_write_dir"):
        callback._log_write_dir = own


def _start_alike(model: Any) -> None:
    """After some worker's BackupAndRestore has restored, or not: all go on from the chief's epoch and state."""
    strategy = model.distribute_strategy
    epochs = [row[0] for row in _told_by_all(strategy, [int(model._initial_epoch or 0)])]
    if len(set(epochs)) == 1 and _fits[id(model)].all_restore_alike:
        return
    if not any(epochs):
        return
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    _take_chiefs(strategy, list({id(variable): variable for variable in variables}.values()))
    model._initial_epoch = epochs[0]


def _take_chiefs(strategy: Any, variables: Sequence[Any]) -> None:
    import tensorflow as tf

    for wide, names in ((tf.float32, ("float16", "bfloat16", "float32")), (tf.float64, ("float64",))):
        _take(strategy, [variable for variable in variables if variable.dtype in names], wide)
    _take(strategy, [variable for variable in variables if "int" in str(variable.dtype)], tf.int64)


def _take(strategy: Any, variables: Sequence[Any], wide: Any) -> None:
    import tensorflow as tf

    if not variables:
        return
    flat = tf.concat(
        [tf.reshape(tf.cast(first_local(strategy, one.value), wide), [-1]) for one in variables], 0
    )
    chiefs = sum_now(strategy, flat if _rank(strategy) == 0 else tf.zeros_like(flat))
    sizes = [int(tf.size(first_local(strategy, one.value))) for one in variables]
    for variable, part in zip(variables, tf.split(chiefs, sizes), strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))
