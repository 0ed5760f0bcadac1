"""GPUs and TPUs: missing, or present but not usable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.job.choices import Strategy
from orchestrator.core.text.counted import counted
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, note, ok, problem, warning
from orchestrator.host.devices import gpu_devices, has_local_tpu
from orchestrator.host.kernel_files import read_text

_CUDA = "libcuda.so.1"
_LIBRARY_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The variables that TPUClusterResolver reads if it is given no name, in its order.
_TPU_VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG")
_LOCAL_TPU = "local"


def check_gpus(context: Context) -> Iterator[Finding]:
    listed, error = context.ask_nvidia_smi(context.environ)
    if error is not None:
        fix = "reload or reinstall the driver (library and kernel module may differ), or run without: --gpus none"
        yield warning("gpus", f"nvidia-smi fails: {error}", "nvidia-smi", fix=fix)
    devices = gpu_devices(context.root / "dev")
    if not devices:
        version = read_text(context.proc / "driver/nvidia/version")
        driver = re.search(r"Kernel Module\D{0,200}(\d+(?:\.\d+)+)", version)
        if driver is not None:
            text = f"the driver {driver[1]} is loaded, but /dev/nvidia0 is missing: TensorFlow will not see a GPU"
            fix = "in a container: --gpus all and the NVIDIA container toolkit; else nvidia-modprobe -u -c=0"
            yield warning("gpus", text, "/dev", fix=fix)
        elif error is None:
            yield ok("gpus", "no NVIDIA GPU: TensorFlow uses the cores")
        return
    count = counted(len(devices), "GPU")
    library = _cuda_library(context)
    if library is None:
        text = f"{count}, but no {_CUDA}: TensorFlow will not use them"
        fix = "install the driver's libraries (libcuda1, nvidia-driver-cuda-libs); in a container --gpus all"
        yield warning("gpus", text, f"/dev/{devices[0]}", fix=fix)
        return
    if context.task_environ.get(_VISIBLE) in ("", "-1"):
        yield ok("gpus", f"{count}, hidden from the tasks", _VISIBLE)
        return
    python, names = context.python, ", ".join(listed or devices)
    if python is not None and python.error is None and "nvidia-cudnn-cu12" not in python.versions:
        text = f"{names}; this Python has no CUDA libraries of its own: TensorFlow needs the system's"
        yield note("gpus", text, python.path, fix=f"{python.path} -m pip install 'tensorflow[and-cuda]'")
    else:
        yield ok("gpus", names, str(library))
    workers = context.spec.workers
    if workers > len(devices):
        shared = ",".join(str(index % len(devices)) for index in range(workers))
        text = f"{count} for {workers} workers: orch gives them none, and all train on the cores"
        fix = f"--workers {len(devices)}, or --gpus {shared} to share"
        yield warning("gpus", text, _VISIBLE, fix=fix)


def _cuda_library(context: Context) -> Path | None:
    folders = [
        Path(folder) for folder in context.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder
    ]
    folders += [context.root / folder for folder in _LIBRARY_DIRECTORIES]
    return next((folder / _CUDA for folder in folders if (folder / _CUDA).exists()), None)


def check_tpu(context: Context) -> Iterator[Finding]:
    """Find a TPU for --strategy tpu, by its name or attached to this machine. It does not use the network."""
    choice, environ = context.spec.strategy, context.task_environ
    if choice.strategy is not Strategy.TPU:
        return
    variable = next((each for each in _TPU_VARIABLES if environ.get(each)), None)
    name = choice.tpu or (environ[variable] if variable else None)
    if name not in (None, _LOCAL_TPU) or has_local_tpu(
        context.root / "dev", context.root / "sys/bus/pci/devices"
    ):
        return
    reason = "this machine has none attached"
    if name is None:
        *others, last = _TPU_VARIABLES
        reason += f", and neither --tpu nor {', '.join(others)} or {last} names one"
    else:
        reason += (
            f", and {'--tpu' if choice.tpu else variable} is `{_LOCAL_TPU}`, which means this machine's TPU"
        )
    fix = "add --tpu NAME or --tpu grpc://ADDRESS:8470, or use --strategy mirrored"
    yield problem("tpus", f"--strategy tpu: no TPU found: {reason}", fix=fix)
