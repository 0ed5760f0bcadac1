"""Options of `orch up` about the strategy and the devices it trains on."""

from __future__ import annotations

from typing import Annotated

import typer

_STRATEGIES = (
    "multi_worker_mirrored",
    "mirrored",
    "one_device",
    "central_storage",
    "parameter_server",
    "tpu",
    "dtensor",
)

StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Of tf.distribute; it decides which processes there are: multi-worker-mirrored, mirrored, one-device,"
        " central-storage, parameter-server, tpu, dtensor.",
        autocompletion=lambda: list(_STRATEGIES),
    ),
]
Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas", metavar="N", help="mirrored, central-storage: train on N logical CPU devices."
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="one-device: which one: CPU:0, GPU:1.")
]
Tpu = Annotated[
    str | None,
    typer.Option("--tpu", metavar="NAME", help="tpu: its name or address, or local. Default: $TPU_NAME."),
]
MeshOption = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="batch=B,model=M",
        help="dtensor: into how many parts the batch and the model are cut, over --workers processes.",
    ),
]
CommunicationOption = Annotated[
    str | None,
    typer.Option(
        "--communication",
        metavar="auto|ring|nccl",
        help="multi-worker-mirrored: how gradients are summed.",
        autocompletion=lambda: ["auto", "ring", "nccl"],
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="WHICH",
        help='auto: all, split equally (default); none; 0,1: these, split equally; "per-task N".',
        autocompletion=lambda: ["auto", "none"],
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory",
        metavar="grow|SIZE",
        help="What a task takes of each GPU it sees: as it needs it, or 4GiB. Default: all of it.",
    ),
]
