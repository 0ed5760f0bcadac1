"""The values that options of a job choose from, and the defaults of the other options.

Imports only enum: `orch --help` and the start of the supervisor must not wait for pydantic.
"""

from __future__ import annotations

from enum import StrEnum

DEFAULT_WORKERS = 1
DEFAULT_MAX_RESTARTS = 3
# Seconds from SIGTERM to SIGKILL when a run is asked to stop.
DEFAULT_GRACE_S = 10.0
# The same after a failure. Peers of the failed task wait in collectives that cannot complete.
DEFAULT_FAILURE_GRACE_S = 0.5
# The tasks save their state and end so many seconds before the end of their allocation.
DEFAULT_NOTICE_S = 120.0
# A task that is silent and idle for so long is reported. Not an option: only tests change it.
SILENCE_NOTICE_S = 300.0
DEFAULT_START_TIMEOUT_S = 120.0
# Time to evaluate the last checkpoint: a side-car evaluator is seconds behind, a large validation set takes minutes.
DEFAULT_EVALUATOR_TIMEOUT_S = 600.0
# A host that has not answered for so long is lost.
DEFAULT_LINK_TIMEOUT_S = 16.0


class ChiefOption(StrEnum):
    """Whether the chief is a separate task or worker:0."""

    SEPARATE = "separate"
    WORKER0 = "worker0"


class Strategy(StrEnum):
    """The strategies of tf.distribute. `--strategy` also accepts underscores instead of dashes."""

    MULTI_WORKER_MIRRORED = "multi-worker-mirrored"
    MIRRORED = "mirrored"
    ONE_DEVICE = "one-device"
    CENTRAL_STORAGE = "central-storage"
    PARAMETER_SERVER = "parameter-server"
    TPU = "tpu"
    DTENSOR = "dtensor"


class Communication(StrEnum):
    """How MultiWorkerMirroredStrategy sums gradients."""

    AUTO = "auto"
    RING = "ring"
    NCCL = "nccl"


class FailurePolicy(StrEnum):
    """The reaction to a failed task: the run ends, all tasks restart, only it restarts, or the others continue."""

    ABORT = "abort"
    RESTART = "restart"
    RESTART_TASK = "restart-task"
    CONTINUE = "continue"


class NetworkOption(StrEnum):
    """From where the tasks' servers can be reached: wherever this machine can be, or only from processes of the run."""

    HOST = "host"
    PRIVATE = "private"


class EngineName(StrEnum):
    """How agents are started: on this machine, on hosts over ssh, or on the nodes of a Slurm allocation."""

    LOCAL = "local"
    SSH = "ssh"
    SLURM = "slurm"


class Placement(StrEnum):
    """Which tasks share a host: neighbours in the order of tasks, or every Nth task of N hosts."""

    PACK = "pack"
    SPREAD = "spread"


class StartOption(StrEnum):
    """`auto` forks a task where the script cannot notice it; `spawn` never forks."""

    AUTO = "auto"
    SPAWN = "spawn"


class KerasOption(StrEnum):
    """Which Keras the tasks get: the one that the script needs, Keras 3 as installed, or tf_keras."""

    AUTO = "auto"
    THREE = "3"
    LEGACY = "legacy"
