"""Gives a task's TensorFlow the devices that orch has planned for it, before anything else touches them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REPLICAS, MESH, GPU_MEMORY = "ORCH_REPLICAS", "ORCH_MESH", "ORCH_GPU_MEMORY"
VARIABLES = (REPLICAS, MESH, GPU_MEMORY)
_CLIENTS = "DTENSOR_JOBS"
_GROW = "grow"
_MIB = 1 << 20


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether there is anything for `configure` to do."""
    return any(environ.get(name) for name in VARIABLES)


def configure(tensorflow: Any, environ: Mapping[str, str]) -> None:
    """Set what `environ` asks for in this process's TensorFlow (the module), which must not have used a device yet:
    RuntimeError if it has, ValueError for a variable that says nothing sensible. Without any of VARIABLES: nothing.

    * ORCH_REPLICAS=N: N logical CPU devices, and no GPU in sight, so that MirroredStrategy() finds N replicas.
    * ORCH_MESH=batch=B,model=M: B x M devices over the clients in DTENSOR_JOBS (host:port,...; none: one client):
      as many logical CPU devices as are this client's, unless it sees GPUs.
    * ORCH_GPU_MEMORY=BYTES: each visible GPU gives so much (rounded down to MiB); `grow` is not ours to do, since
      TF_FORCE_GPU_ALLOW_GROWTH does it.

    What is called later to the same end wins, as long as no device has been used.
    """
    replicas, limit = wanted_cpus(environ), _memory_limit(environ)
    if replicas is None and limit is None:
        return
    config = tensorflow.config
    gpus = config.list_physical_devices("GPU")
    if replicas is not None and (environ.get(REPLICAS) or not gpus):
        if gpus:
            config.set_visible_devices([], "GPU")
        _split_cpu(config, replicas)
        return
    if limit is not None:
        for gpu in config.get_visible_devices("GPU"):
            share = config.LogicalDeviceConfiguration(memory_limit=limit)
            config.set_logical_device_configuration(gpu, [share])


def wanted_cpus(environ: Mapping[str, str]) -> int | None:
    """How many logical CPU devices this task is to have; None: it is left to TensorFlow (one)."""
    if replicas := environ.get(REPLICAS):
        return _count(REPLICAS, replicas)
    if mesh := environ.get(MESH):
        clients = len([job for job in environ.get(_CLIENTS, "").split(",") if job]) or 1
        devices = 1
        for part in mesh.split(","):
            devices *= _count(MESH, part.partition("=")[2])
        if devices % clients:
            raise ValueError(f"{MESH}={mesh}: {devices} devices cannot be shared out to {clients} clients")
        return devices // clients
    return None


def _split_cpu(config: Any, count: int) -> None:
    cpu = config.list_physical_devices("CPU")[0]
    config.set_logical_device_configuration(cpu, [config.LogicalDeviceConfiguration() for _ in range(count)])


def _memory_limit(environ: Mapping[str, str]) -> int | None:
    """MiB a GPU, None for no limit."""
    text = environ.get(GPU_MEMORY)
    return None if not text or text == _GROW else max(1, _count(GPU_MEMORY, text) // _MIB)


def _count(name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{name}: {text!r} is not a whole number of at least 1")
    return int(text)
