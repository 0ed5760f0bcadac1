"""Lets BackupAndRestore be killed at any moment: its weights and their epoch change together, or not at all; and lets
what it restores draw the random numbers that come next.

Keras writes the weights over the last ones and then, apart from them, which epoch they are of. A kill in between
leaves weights of one epoch said to be of another, and that epoch is trained twice; one within either leaves a file
that cannot be read. Here both are written beside. They count from the moment at which the second one gets its name;
whatever is still to be renamed then is, by this process or by the next.

Of random seeds (Dropout's, noise's, augmentation's) Keras saves nothing, so a restored model would draw those of the
first epoch again. They stand beside the epoch here, where a plain Keras passes over them.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

_SEEDS = "seeds"
_NEEDED = ("_weights_path", "_training_metadata_path", "_prev_weights_path", "_prev_training_metadata_path")


def repair(keras: ModuleType, workers: int) -> str | None:
    """Have backups written, completed and removed as one."""
    from keras.src.callbacks.backup_and_restore import BackupAndRestore

    if not hasattr(BackupAndRestore, "_load_model"):
        return None
    save, load, end = (
        BackupAndRestore._save_model,
        BackupAndRestore._load_model,
        BackupAndRestore.on_train_end,
    )

    @functools.wraps(save)
    def save_model(self: Any, *args: Any, **kwargs: Any) -> None:
        if args or kwargs or not _is_plain(self):
            save(self, *args, **kwargs)
            return
        files = _Files(self)
        files.weights.parent.mkdir(parents=True, exist_ok=True)
        self.model.save_weights(filepath=str(files.next_weights), overwrite=True)
        beside = files.next_epoch.with_suffix(f".{os.getpid()}")
        facts = {
            "epoch": self._current_epoch,
            "batch": self._last_batch_seen,
            _SEEDS: _seeds(keras, self.model),
        }
        beside.write_text(json.dumps(facts))
        beside.replace(files.next_epoch)
        files.settle()

    @functools.wraps(load)
    def load_model(self: Any) -> None:
        if _is_plain(self):
            files = _Files(self)
            files.settle()
            _remove_gone(Path(self.backup_dir))
            load(self)
            _restore_seeds(self.model, files.epoch)
        else:
            load(self)

    @functools.wraps(end)
    def on_train_end(self: Any, logs: Any = None) -> None:
        directory = Path(self.backup_dir)
        if _is_plain(self) and self.delete_checkpoint and directory.is_dir() and not directory.is_symlink():
            directory.replace(directory.with_name(f".{directory.name}.{os.getpid()}.gone"))
            _remove_gone(directory)
        end(self, logs)

    BackupAndRestore._save_model = save_model
    BackupAndRestore._load_model = load_model
    BackupAndRestore.on_train_end = on_train_end
    return "backups that a kill would tear"


def settled_epoch(backup: Any) -> int:
    """How many epochs the last whole state of a BackupAndRestore has seen, 0 without any; what a kill left half done is
    put in order first. OSError, ValueError if it cannot be read."""
    files = _Files(backup)
    files.settle()
    if not files.epoch.exists() or not files.weights.exists():
        return 0
    return int(json.loads(files.epoch.read_text())["epoch"])


def _remove_gone(directory: Path) -> None:
    """Backups that a process had done with, be it one that was killed while it removed them."""
    for gone in directory.parent.glob(f".{glob.escape(directory.name)}.*.gone"):
        shutil.rmtree(gone, ignore_errors=True)


def _generators(model: Any) -> list[Any]:
    return [
        generator for layer in model._flatten_layers() for generator in getattr(layer, "_seed_generators", ())
    ]


def _seeds(keras: Any, model: Any) -> list[list[int]]:
    return [keras.ops.convert_to_numpy(generator.state).tolist() for generator in _generators(model)]


def _restore_seeds(model: Any, epoch_file: Path) -> None:
    try:
        seeds = json.loads(epoch_file.read_text()).get(_SEEDS)
    except FileNotFoundError:
        return
    generators = _generators(model)
    if isinstance(seeds, list) and len(seeds) == len(generators):
        for generator, seed in zip(generators, seeds, strict=True):
            generator.state.assign(seed)


class _Files:
    """The files of one backup directory: the last state, with `double_checkpoint` the one before, and the next."""

    def __init__(self, backup: Any) -> None:
        self.weights, self.epoch = Path(backup._weights_path), Path(backup._training_metadata_path)
        self.spare_weights = Path(backup._prev_weights_path)
        self.spare_epoch = Path(backup._prev_training_metadata_path)
        self.next_weights = self.weights.with_name("next.weights.h5")
        self.next_epoch = self.weights.with_name("next.json")
        self._keeps_spare = bool(backup.double_checkpoint)

    def settle(self) -> None:
        """Put the next state in the last one's place if all of it is there, else forget it."""
        if not self.next_epoch.exists():
            self.next_weights.unlink(missing_ok=True)
            if not self.weights.exists():
                self.epoch.unlink(missing_ok=True)  # an epoch of nothing
            return
        if self.next_weights.exists():
            self._put(self.next_weights, self.weights, self.spare_weights)
        self._put(self.next_epoch, self.epoch, self.spare_epoch)

    def _put(self, new: Path, last: Path, spare: Path) -> None:
        if self._keeps_spare and last.exists():
            last.replace(spare)
        new.replace(last)


def _is_plain(backup: Any) -> bool:
    """Whether it is as this module knows it, and in a directory of this machine."""
    return "://" not in str(backup.backup_dir) and all(hasattr(backup, name) for name in _NEEDED)
