"""Which options contradict each other, and which tasks and files they do not fit: one sentence each, None if fine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from worker.training.data.record_files import DatasetError, find_files, is_in_files, shard_problem
from worker.training.options.context import directory_problem, tpu_problem
from worker.training.options.fields import (
    CHECKPOINTS,
    LOOPS,
    MOST_PARTS,
    PARAMETER_SERVER,
    Options,
)
from worker.training.process.environment import ClusterError, Place, is_legacy_keras
from worker.training.weights import Weight, bytes_per_device, dense_units, format_bytes, weight_table

MULTI_WORKER = "multi-worker-mirrored"
SPLIT_CPU = ("mirrored", "central-storage")
# Strategies that train in a single process.
SINGLE_PROCESS = (*SPLIT_CPU, "one-device", "tpu")
_DEVICE = re.compile(r"/?(device:)?(CPU|GPU):\d+", re.IGNORECASE)


def find_contradiction(options: Options, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the first problem with the options that does not depend on the machine, None without one."""
    checks = (
        _cell_problem,
        _device_problem,
        _parameter_server_problem,
        _mesh_problem,
        _precision_problem,
        _evaluator_problem,
        _checkpoint_problem,
        _data_problem,
        _memory_problem,
    )
    for check in checks:
        if (problem := check(options, environment)) is not None:
            return problem
    return None


def check_place(place: Place, strategy: str, checkpoint: str = CHECKPOINTS[0]) -> None:
    """Raise ClusterError if a task of this process's cluster has nothing to do under `strategy`."""
    if (problem := _place_problem(place, strategy, checkpoint)) is not None:
        raise ClusterError(problem)


def _place_problem(place: Place, strategy: str, checkpoint: str) -> str | None:
    if place.role == "evaluator":
        return evaluator_problem(strategy, checkpoint)
    if strategy == PARAMETER_SERVER:
        if not place.servers:
            missing = "no parameter server"
        elif not place.has_own_chief:
            missing = "no chief"
        elif place.workers < 2:
            missing = "no worker besides the chief"
        else:
            return None
        return (
            f"parameter-server needs a chief, workers and parameter servers, and TF_CONFIG has {missing}: "
            "start it by `orch up --strategy parameter-server --workers 2 --ps 1`"
        )
    if place.servers:
        return (
            f"TF_CONFIG has parameter servers and {strategy} takes no parameter servers: "
            "leave them out, or take --strategy parameter-server"
        )
    if strategy in SINGLE_PROCESS and place.workers > 1:
        return (
            f"TF_CONFIG has {place.workers} workers, and {strategy} is one process: leave TF_CONFIG out, "
            "or take --strategy multi-worker-mirrored"
        )
    return None


def loop_problem(strategy: str, loop: str, *, legacy_keras: bool) -> str | None:
    """Return why this strategy cannot train by this loop, None if it can."""
    if legacy_keras and (strategy, loop) != (PARAMETER_SERVER, "fit"):
        return (
            "tf_keras (--keras legacy, TF_USE_LEGACY_KERAS=1) is only for parameter-server with fit: "
            f"{strategy} with {'a custom loop' if loop == 'custom' else loop} is written for Keras 3, so leave it out"
        )
    if strategy == PARAMETER_SERVER and loop == "fit" and not legacy_keras:
        return (
            "Keras 3 cannot fit under ParameterServerStrategy: take `-- --loop custom`, "
            "or tf_keras by `--keras legacy`"
        )
    if strategy == "dtensor" and loop == "fit":
        return (
            "Keras's fit cannot train on a DTensor mesh (on TensorFlow its ModelParallel leaves the weights whole): "
            "take `-- --loop custom`"
        )
    return None


def default_loop(strategy: str, *, legacy_keras: bool) -> str:
    """Return Keras fit if it can train, else the custom loop."""
    if legacy_keras or loop_problem(strategy, LOOPS[0], legacy_keras=False) is None:
        return LOOPS[0]
    return "custom"


def evaluator_problem(strategy: str, checkpoint: str) -> str | None:
    """Return why an evaluator cannot follow this training's checkpoints, None if it can."""
    if strategy == "dtensor":
        return (
            "the evaluator reads checkpoints of a Keras model, and those of dtensor hold its own sharded weights: "
            "leave the evaluator out"
        )
    if checkpoint == "backup":
        return (
            "the evaluator follows the checkpoints of the epochs, and --checkpoint backup writes none: "
            "take --checkpoint manager, or leave the evaluator out"
        )
    return None


def batch_problem(
    options: Options, replicas: int, workers: int, *, global_batch: int, own_streams: bool
) -> str | None:
    """Return why the replicas of `workers` processes cannot share the global batch, None if they can.

    `own_streams`: each worker has its own stream of examples.
    """
    asked = f"--global-batch {global_batch}"
    if global_batch < replicas:
        return f"{asked} has no example for some of {replicas} replicas: take at least {replicas}"
    if global_batch % replicas == 0:
        return None
    if options.loop == "fit" and workers == 1:
        return (
            f"{asked}: Keras's fit on {replicas} replicas of one process takes the mean of their means, which is not "
            f"the batch's mean if they do not share it evenly: take a multiple of {replicas}, or --loop custom"
        )
    if options.last_batch != "short" and (own_streams or options.input == "function"):
        return (
            f"{asked} cannot be shared evenly by {replicas} replicas, which --input function and --auto-shard file "
            "and off need: take a multiple"
        )
    return None


def _cell_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    return loop_problem(options.strategy, options.loop, legacy_keras=is_legacy_keras(environment))


def _device_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    strategy = options.strategy
    for name, users, problem in (
        (
            "replicas",
            SPLIT_CPU,
            f"splits one process's CPU for {' and '.join(SPLIT_CPU)}, not for {strategy}",
        ),
        ("device", ["one-device"], f"names the device of one-device; {strategy} takes all it finds"),
        ("tpu", ["tpu"], f"names the TPU of --strategy tpu, which {strategy} does not use"),
        ("communication", [MULTI_WORKER], f"is between the workers of {MULTI_WORKER}; {strategy} has none"),
        ("partitioner", [PARAMETER_SERVER], f"cuts variables for parameter servers; {strategy} has none"),
        ("mesh", ["dtensor"], f"is for --strategy dtensor, not for {strategy}"),
    ):
        if strategy not in users and getattr(options, name) != getattr(Options, name):
            return f"--{name} {problem}"
    if options.device is not None and not _DEVICE.fullmatch(options.device):
        return f"--device: {options.device!r} is not a device; write CPU:0 or GPU:1"
    return tpu_problem(options.tpu, environment) if strategy == "tpu" else None


def _mesh_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    if options.strategy != "dtensor":
        return None
    if options.mesh is None:
        return "dtensor needs --mesh batch=B,model=M: into how many parts the batch and the model are cut"
    batch, model = options.mesh
    if options.global_batch is not None and options.global_batch % batch:
        return (
            f"--global-batch {options.global_batch} cannot be cut into {batch} equal parts for --mesh batch={batch}: "
            "take a multiple"
        )
    if dense_units(options.width) % model:
        return (
            f"--mesh model={model} cannot cut the dense layer's {dense_units(options.width)} units into equal parts: "
            "take a number that divides them, or another --width"
        )
    return None


def _parameter_server_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    if options.strategy != PARAMETER_SERVER:
        return None
    for option, is_given in (
        ("--auto-shard", options.auto_shard != "data"),
        ("--input", options.input != "dataset"),
        ("--check-data", options.check_data),
    ):
        if is_given:
            return f"{option}: the chief of parameter-server chooses the examples of each step; nothing is sharded"
    if options.loop == "fit" and options.last_batch != "full":
        return "--last-batch short: fit under parameter-server takes an endless stream per worker; take `--loop custom`"
    return None


def _precision_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    if options.precision != "float32" and options.strategy in (PARAMETER_SERVER, "dtensor"):
        return (
            f"--precision {options.precision} is for the strategies that train replicas in step; "
            f"{options.strategy} computes in float32"
        )
    if options.precision == "mixed_float16" and options.strategy == "tpu":
        return (
            "--precision mixed_float16 is for GPUs: a TPU multiplies in bfloat16, which needs no scaled loss: "
            "take --precision mixed_bfloat16"
        )
    return None


def _evaluator_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    # orch sets ORCH_TASK for a task, and also when it asks before the start.
    is_evaluator = environment.get("ORCH_TASK", "").partition(":")[0] == "evaluator"
    return evaluator_problem(options.strategy, options.checkpoint) if is_evaluator else None


def _checkpoint_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    checkpoint, strategy = options.checkpoint, options.strategy
    if checkpoint == "backup" and options.loop == "custom":
        return (
            "BackupAndRestore is a callback of Keras fit and cannot be used in a custom loop: "
            "take `-- --loop fit`, or `--checkpoint manager`"
        )
    if checkpoint == "backup" and strategy == PARAMETER_SERVER:
        return (
            "fit under ParameterServerStrategy is tf_keras's, and BackupAndRestore here is Keras 3's: "
            "take `--checkpoint manager`"
        )
    if checkpoint == "preemption" and strategy == PARAMETER_SERVER:
        return (
            "PreemptionCheckpointHandler does not support ParameterServerStrategy, whose workers keep no state: "
            "take `--checkpoint manager`"
        )
    if checkpoint == "preemption" and strategy == "dtensor":
        return (
            "PreemptionCheckpointHandler supports the clusters of tf.distribute's strategies and not those of "
            "DTensor: take `--checkpoint manager`"
        )
    return directory_problem(checkpoint, options.checkpoint_dir)


def _data_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    strategy = options.strategy
    from_files = is_in_files(options.dataset)
    if strategy == "dtensor":
        for option, is_given in (
            ("--input function", options.input == "function"),
            ("--last-batch short", options.last_batch == "short"),
            ("--check-data", options.check_data),
            (f"--auto-shard {options.auto_shard}", options.auto_shard in ("file", "off")),
        ):
            if is_given:
                return f"{option} is for the strategies of tf.distribute; {strategy} cuts each batch itself"
    if options.auto_shard == "file" and not from_files:
        return (
            f"--auto-shard file gives each worker its own files, and {options.dataset} is held in memory: "
            "`python -m worker.records` writes it into files"
        )
    if options.last_batch == "short":
        if options.auto_shard in ("file", "off") or (options.auto_shard == "auto" and from_files):
            return (
                "--last-batch short needs workers that end a pass at the same step, and by file, or without sharding, "
                "each has passes of its own: take --auto-shard data"
            )
        if options.steps_per_epoch is not None:
            return "--last-batch short makes an epoch one pass, and --steps-per-epoch sets another length: give one"
    trainers = environment.get("ORCH_TRAINERS", "")
    workers = int(trainers) if trainers.isdecimal() else None
    files = len(find_files(options.dataset).training) if from_files else 0
    by_file = options.auto_shard == "file" and strategy == MULTI_WORKER
    problem = shard_problem(files, workers) if by_file and workers is not None else None
    return problem or _early_batch_problem(options, workers, files)


def _early_batch_problem(options: Options, workers: int | None, files: int) -> str | None:
    """Return `batch_problem` as far as it is certain before the start, with at least one replica per worker.

    `workers` None: unknown. `files` of training examples, 0 if they are held in memory.
    """
    if options.global_batch is None:
        return None
    several = (workers if options.strategy == MULTI_WORKER else None) or 1
    replicas = max(several, options.replicas or 1)
    by_file = options.auto_shard == "file" or (options.auto_shard == "auto" and files >= several)
    own_streams = several > 1 and (by_file or options.auto_shard == "off")
    return batch_problem(
        options, replicas, several, global_batch=options.global_batch, own_streams=own_streams
    )


def _memory_problem(options: Options, environment: Mapping[str, str]) -> str | None:
    if options.device_memory is None:
        return None
    if options.strategy == PARAMETER_SERVER:
        return "--device-memory limits what one device holds; parameter-server spreads that over its servers"
    from worker.training.data.datasets import read_image_shape

    try:
        image_shape, classes = read_image_shape(options.dataset, options.seed)
    except DatasetError as error:
        return str(error)
    return memory_problem(options, image_shape, classes)


def memory_problem(options: Options, image_shape: tuple[int, int, int], classes: int) -> str | None:
    """Return why training takes more than --device-memory, with the smallest mesh that would fit; None if it fits."""
    budget = options.device_memory
    weights = weight_table(image_shape, classes, options.width)
    parts = options.mesh[1] if options.strategy == "dtensor" and options.mesh else 1
    needed = bytes_per_device(weights, parts)
    if budget is None or needed <= budget:
        return None
    return (
        f"weights, gradients and Adam's moments take {format_bytes(needed)} a device; --device-memory is "
        f"{format_bytes(budget)}: {_suggest_mesh(weights, parts, budget, options.width)}"
    )


def _suggest_mesh(weights: tuple[Weight, ...], parts: int, budget: int, width: int) -> str:
    units = dense_units(width)
    for number in range(parts + 1, MOST_PARTS + 1):
        if not units % number and (needed := bytes_per_device(weights, number)) <= budget:
            return f"cut the model: --mesh model={number} takes {format_bytes(needed)}"
    least = bytes_per_device(weights, min(units, MOST_PARTS))
    hint = "take a smaller --width" if width > 1 else "allow more"
    return f"no --mesh cuts it far enough ({format_bytes(least)} a device at least): {hint}"
