"""Checks of the options against orch's settings, this machine's TPU, and what the checkpoint directory holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from worker.training.options.fields import Options
from worker.training.process.environment import is_in_a_run

# Options that orch has used to start the processes and their devices, by the variable that holds orch's value.
SET_BY_ORCH = {
    "strategy": "ORCH_STRATEGY",
    "replicas": "ORCH_REPLICAS",
    "device": "ORCH_DEVICE",
    "tpu": "ORCH_TPU",
    "mesh": "ORCH_MESH",
}

# The name that TPUClusterResolver gives to the TPU of this machine.
LOCAL_TPU = "local"
# Where TPUClusterResolver looks when no name is given.
_TPU_VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG")
_TPU_FILES = ("accel*", "vfio/[0-9]*")
_DEVICES = Path("/dev")

BACKUP = "backup"
_CHECKPOINT = re.compile(r"ckpt-\d+(-\d+)?\.index", re.ASCII)


def orch_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    """Return which option differs from orch's setting, None if none does or orch has no such setting."""
    if not is_in_a_run(environment):
        return None
    batch = environment.get("ORCH_GLOBAL_BATCH")
    if batch and str(options.global_batch) != batch:
        return (
            f"--global-batch {options.global_batch}: this run has --global-batch {batch} for all its attempts; "
            "give one of them, before the --"
        )
    if not environment.get(SET_BY_ORCH["strategy"]):
        return None
    for name, variable in SET_BY_ORCH.items():
        value = getattr(options, name)
        if isinstance(value, tuple):
            value = f"batch={value[0]},model={value[1]}"
        wanted, set_by_orch = str(value or ""), environment.get(variable, "")
        if wanted != set_by_orch:
            found = f"has --{name} {set_by_orch}" if set_by_orch else f"was given no --{name}"
            return (
                f"--{name} {wanted}: this run {found}, and orch has started its processes for that; "
                f"put it before the --: orch up --{name} {wanted}"
            )
    return None


def tpu_problem(name: str | None, environment: Mapping[str, str], devices: Path = _DEVICES) -> str | None:
    """Return the problem if a TPU is neither named nor found, else None."""
    if name or any(environment.get(variable) for variable in _TPU_VARIABLES) or has_local_tpu(devices):
        return None
    *others, last = _TPU_VARIABLES
    return (
        "--strategy tpu: no TPU found: this machine has no TPU or lacks the package libtpu, and neither --tpu nor "
        f"{', '.join(others)} or {last} names one; add --tpu NAME or --tpu grpc://ADDRESS:8470"
    )


def has_local_tpu(devices: Path = _DEVICES) -> bool:
    """Return whether this machine has a TPU's device files and its library is installed."""
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None and any(
        True for pattern in _TPU_FILES for _ in devices.glob(pattern)
    )


def directory_problem(method: str, directory: Path) -> str | None:
    """Return why `method` (of --checkpoint) would ignore a training in `directory` and start again, None if not.

    A method resumes from its own files, whatever else the directory holds.
    """
    checkpoint, backup = _newest_checkpoint(directory), _find_backup(directory)
    if method == BACKUP:
        found, own, methods, hint = checkpoint, backup, "manager or preemption", "manager"
    else:
        found, own, methods, hint = backup, checkpoint, BACKUP, BACKUP
    if found is None or own is not None:
        return None
    return (
        f"{found} is of a training with --checkpoint {methods}, and {method} cannot resume from it: "
        f"take --checkpoint {hint}, or another --checkpoint-dir to start again"
    )


def _newest_checkpoint(directory: Path) -> Path | None:
    """Return the path of the newest checkpoint, without the files' endings."""
    indexes = [path for path in _list_directory(directory) if _CHECKPOINT.fullmatch(path.name)]
    if not indexes:
        return None
    newest = max(indexes, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
    return newest.with_suffix("")


def _find_backup(directory: Path) -> Path | None:
    """Return the directory of a task that holds a backup."""
    tasks = _list_directory(directory / BACKUP)
    return next((task for task in sorted(tasks) if (task / "latest.weights.h5").exists()), None)


def _list_directory(directory: Path) -> list[Path]:
    """Return the entries; an unreadable directory has none, and the first write reports the error."""
    try:
        return list(directory.iterdir())
    except OSError:
        return []
