"""Reports whether a task joins a cluster, at which address, and whether it trains: orch compares this with its plan."""

from __future__ import annotations

import sys

from .after_import import after_import
from .messages import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .messages import ProgressPipe

# Libraries that join processes without TensorFlow's clusters.
_OTHER_CLUSTERS = ("horovod", "mpi4py", "byteps", "smdistributed")


class Place:
    """The address of this process's server, and the number of tasks in its cluster. Unknown: "" and 0."""

    def __init__(self, server_def: object) -> None:
        """`server_def`: TensorFlow's ServerDef, serialized. An error is logged."""
        self.address, self.tasks = "", 0
        if isinstance(server_def, bytes):
            attempt("reporting the cluster", lambda: self._read(server_def))

    def _read(self, server_def: bytes) -> None:
        from tensorflow.core.protobuf import tensorflow_server_pb2

        server = tensorflow_server_pb2.ServerDef.FromString(server_def)
        jobs = {job.name: dict(job.tasks) for job in server.cluster.job}
        self.address = jobs.get(server.job_name, {}).get(server.task_index, "")
        self.tasks = sum(len(tasks) for tasks in jobs.values())


def watch_training(pipe: ProgressPipe) -> None:
    """Report the first gradient, in eager mode or in a graph. The hooks remove themselves then."""
    watched: list[tuple[Any, str, Any]] = []

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def first(*arguments: Any, **named: Any) -> Any:
            while watched:
                setattr(*watched.pop())
            if not any(other in sys.modules for other in _OTHER_CLUSTERS):
                pipe.report(trains=True)
            return original(*arguments, **named)

        watched.append((module, name, original))
        setattr(module, name, first)

    def after(module: ModuleType, name: str) -> None:
        attempt("noticing the training", lambda: watch(module, name))

    after_import("tensorflow.python.pywrap_tfe", lambda module: after(module, "TFE_Py_TapeGradient"))
    after_import("tensorflow.python.ops.gradients_util", lambda module: after(module, "_GradientsHelper"))
