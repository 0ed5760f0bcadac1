"""Makes the strategy that the options ask for, on the devices that it trains on."""

from __future__ import annotations

import os
import socket
from typing import Any

import tensorflow as tf

from worker.bootstrap.cluster_facts import await_listener
from worker.bootstrap.tensorflow_settings import REPLICAS, configure_devices
from worker.training.job import Job
from worker.training.options.checks import SPLIT_CPU
from worker.training.options.context import LOCAL_TPU, has_local_tpu
from worker.training.options.fields import Options
from worker.training.process.environment import Place, UsageError
from worker.training.process.output import (
    counted,
    name_other_workers,
    print_as_task,
    without_startup_messages,
)
from worker.training.process.progress import ProgressChannel

# Logical CPU devices without GPUs, so that a learner sees more than one replica.
CPU_REPLICAS = 2
# Where central-storage keeps the variables.
VARIABLE_DEVICE = "CPU:0"
TPU_CONNECT_S = 10.0


def make_strategy(job: Job, progress: ProgressChannel) -> Any:
    """Return the strategy; with several workers wait until all are there. UsageError if this machine cannot have it."""
    options, place = job.options, job.place
    progress.phase("waiting")
    prepare_devices(options)
    match options.strategy:
        case "multi-worker-mirrored":
            strategy = _multi_worker_mirrored(place, options.communication)
        case "mirrored":
            strategy = tf.distribute.MirroredStrategy(device_names())
        case "one-device":
            strategy = tf.distribute.OneDeviceStrategy(_find_device(options.device))
        case "central-storage":
            strategy = central_storage(device_names())
        case "tpu":
            strategy = _tpu_strategy(options.tpu)
        case other:
            raise UsageError(f"--strategy {other} does not train replicas of the whole model")
    progress.phase("starting")
    return strategy


def prepare_devices(options: Options) -> None:
    """Split the CPU into logical devices if the options ask for it, or if the strategy needs several and has no GPU."""
    with without_startup_messages():
        gpus = tf.config.list_physical_devices("GPU")
    replicas = options.replicas
    if replicas is None and options.strategy in SPLIT_CPU and not gpus:
        replicas = CPU_REPLICAS
    configure_devices(tf, {**os.environ, REPLICAS: str(replicas or "")})


def describe_strategy(job: Job, strategy: Any) -> str:
    """Return `mirrored with fit: 2 replicas on CPU:0, CPU:1`; with several workers the devices of each."""
    options, replicas = job.options, strategy.num_replicas_in_sync
    words = f"{options.strategy} with {options.loop}: {counted(replicas, 'replica')}"
    names = ", ".join(_short_name(name) for name in strategy.extended.worker_devices)
    each = " of each worker" if job.place.workers > 1 else ""
    variables = f", variables on {VARIABLE_DEVICE}" if options.strategy == "central-storage" else ""
    precision = "" if options.precision == "float32" else f", {options.precision}"
    return f"{words} on {names}{each}{variables}{precision}"


def device_names() -> list[str]:
    """Return all logical GPUs, without any all logical CPUs: `GPU:0`, `GPU:1`."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [_short_name(device.name) for device in devices]


def _find_device(asked: str | None) -> str:
    """Return the device that the user named, else the first GPU, else the CPU; UsageError if it does not exist."""
    if asked is None:
        return device_names()[0]
    name = asked.upper().removeprefix("/").removeprefix("DEVICE:")
    here = [
        _short_name(device.name) for device in tf.config.list_logical_devices() if "XLA" not in device.name
    ]
    if name not in here:
        raise UsageError(f"--device {asked}: there is no such device here; there is {', '.join(here)}")
    return name


def _short_name(device: str) -> str:
    """Return `CPU:0` for `/job:worker/replica:0/task:0/device:CPU:0`."""
    return device.rpartition("device:")[2]


def _multi_worker_mirrored(place: Place, communication: str) -> Any:
    if communication == "nccl" and not tf.config.list_physical_devices("GPU"):
        raise UsageError("--communication nccl sums over GPUs, and this worker sees none: take ring, or auto")
    if place.workers > 1:
        print_as_task(place, f"waiting for {name_other_workers(place)} to connect")
    if not place.is_chief:
        await_listener(place.addresses[0])
    implementation = tf.distribute.experimental.CommunicationImplementation[communication.upper()]
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    )


def central_storage(compute_devices: list[str]) -> Any:
    """Return the strategy, after repairing how Keras 3 handles metrics and the loss scale under it."""
    import keras

    from worker.bootstrap.keras_fix.variables import fix_central_storage

    fix_central_storage(keras, report=lambda fault: None)
    return tf.distribute.experimental.CentralStorageStrategy(compute_devices, VARIABLE_DEVICE)


def _tpu_strategy(name: str | None) -> Any:
    """Return the strategy of the TPU `name`, or of the one in the environment or in this machine; UsageError."""
    wanted = name or (LOCAL_TPU if has_local_tpu() else None)
    shown = name or wanted or "that the environment names"
    try:
        _check_connection(wanted or "")
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=wanted)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UsageError(
            f"the TPU {shown} cannot be used ({reason}): give its name or address by --tpu"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _check_connection(addresses: str) -> None:
    """Connect to each `grpc://host:port`: TensorFlow would wait silently for an address that does not answer."""
    for address in addresses.split(","):
        if address.startswith("grpc://"):
            host, _, port = address.removeprefix("grpc://").rpartition(":")
            if not port.isdecimal():
                raise ValueError(f"{address} is not grpc://host:port")
            socket.create_connection((host.strip("[]"), int(port)), TPU_CONNECT_S).close()
