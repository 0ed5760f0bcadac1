"""GPUs that are there, or half there (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.facts import Facts
from orchestrator.doctor.findings import Finding, Level

_TOPIC = "gpus"
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def judge_gpus(facts: Facts) -> Iterator[Finding]:
    gpus, hidden = facts.gpus, facts.variables.get("CUDA_VISIBLE_DEVICES")
    if gpus.smi_error is not None:
        yield Finding(
            Level.WARNING,
            _TOPIC,
            f"nvidia-smi fails: {gpus.smi_error}",
            "nvidia-smi",
            "reload or reinstall the driver (its library and its kernel module may differ), or run without:"
            " --env CUDA_VISIBLE_DEVICES=-1",
        )
    if not gpus.devices:
        if gpus.driver is not None:
            yield Finding(
                Level.WARNING,
                _TOPIC,
                f"the driver {gpus.driver} is loaded, but there is no /dev/nvidia0: TensorFlow will not see a GPU",
                "/dev",
                "in a container: --gpus all and the NVIDIA container toolkit; else nvidia-modprobe -u -c=0",
            )
        elif gpus.smi_error is None:
            yield Finding(Level.OK, _TOPIC, "no NVIDIA GPU: TensorFlow uses the cores")
        return
    many = f"{len(gpus.devices)} GPU{'s' * (len(gpus.devices) != 1)}"
    if gpus.library is None:
        yield Finding(
            Level.WARNING,
            _TOPIC,
            f"{many}, but no libcuda.so.1: TensorFlow will not use them",
            "/dev/" + gpus.devices[0],
            "install the driver's libraries (libcuda1, nvidia-driver-cuda-libs); in a container --gpus all",
        )
        return
    if hidden is not None and hidden in ("", "-1"):
        yield Finding(Level.OK, _TOPIC, f"{many}, hidden from the tasks", "CUDA_VISIBLE_DEVICES")
        return
    names = ", ".join(gpus.listed or gpus.devices)
    if "nvidia-cudnn-cu12" not in facts.interpreter.versions and facts.interpreter.error is None:
        yield Finding(
            Level.NOTE,
            _TOPIC,
            f"{names}; this Python has no CUDA libraries of its own: TensorFlow needs the system's",
            facts.interpreter.path,
            f"{facts.interpreter.path} -m pip install 'tensorflow[and-cuda]'",
        )
    else:
        yield Finding(Level.OK, _TOPIC, names, gpus.library)
    if facts.asked.workers > 1 and facts.variables.get(_GROWTH, "").lower() not in ("1", "true"):
        yield Finding(
            Level.WARNING,
            _TOPIC,
            f"{facts.asked.workers} workers see the same {many}, and each takes almost all of their memory",
            "CUDA_VISIBLE_DEVICES",
            f"--env {_GROWTH}=true, or --env CUDA_VISIBLE_DEVICES=-1 to train on the cores, or choose by"
            " ORCH_TASK in the script",
        )
