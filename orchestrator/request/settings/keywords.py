"""The keyword arguments that start a cluster from Python, for editors and type checkers.

A test compares them with the declarations in options.py, which the values are read by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

Words = str | Sequence[str | Path]
Directory = str | Path
Environment = Mapping[str, str | float] | Sequence[str]
# Seconds, or a text such as "1h30m"; "off" where an option has a limit that can be turned off.
Time = float | str
Policy = Literal["abort", "restart", "restart-task", "continue"]


class RoleOptions(TypedDict, total=False):
    """The entry of a role in `roles`, as a table [roles.ps] of orch.toml."""

    count: int | str
    command: Words
    env: Environment
    on_failure: Policy
    gpus: str
    hosts: str | Sequence[str]


class UpOptions(TypedDict, total=False):
    """The options of `orch up` in snake case. None counts as not given."""

    roles: Mapping[Literal["chief", "worker", "ps", "evaluator"], RoleOptions] | None

    name: str | None
    replace: bool | None
    timeout: Time | None
    env: Environment | None
    cwd: str | Path | None
    checkpoint_dir: str | Path | None
    log_dir: str | Path | None

    global_batch: int | None

    ps: int | None
    evaluator: bool | None
    evaluator_timeout: Time | None
    chief: Literal["separate", "worker0"] | None
    strategy: (
        Literal[
            "one-device",
            "mirrored",
            "multi-worker-mirrored",
            "parameter-server",
            "central-storage",
            "tpu",
            "dtensor",
        ]
        | None
    )
    replicas: int | None
    device: str | None
    tpu: str | None
    mesh: str | Mapping[str, int] | None
    communication: Literal["auto", "ring", "nccl"] | None

    on_failure: Policy | None
    max_restarts: int | None
    start_timeout: Time | None
    stall_timeout: Time | None
    stop_on_nan: bool | None
    expect_cluster: bool | None
    grace: Time | None
    failure_grace: Time | None
    notice: Time | None
    chaos: str | Sequence[str] | None

    gpus: str | None
    gpu_memory: int | str | None
    threads: int | Literal["auto"] | None
    memory_limit: int | str | None
    network: Literal["host", "private"] | None

    hosts: str | Sequence[str] | None
    engine: Literal["local", "ssh", "slurm"] | None
    tasks_per_host: int | None
    placement: Literal["pack", "spread"] | None
    interface: str | None
    link_timeout: Time | None
    remote_python: str | None
    sync: bool | None
    ssh_command: Words | None
    nodes: int | None
    partition: str | None
    account: str | None
    time: Time | None
    slurm: Words | None

    start: Literal["auto", "spawn"] | None
    preload: str | Sequence[str] | None
    script_tf_config: bool | None
    no_fixes: bool | None
    keras: Literal["auto", "3", "legacy"] | None

    debug: str | Sequence[str] | None
    debug_no_wait: bool | None

    tensorboard: bool | None
    profile: str | None
