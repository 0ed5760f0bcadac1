"""The place of a task in its cluster; reports whether it trains, and the steps of Keras's `fit`."""

from __future__ import annotations

import sys
import time

from .after_import import after_import
from .messages import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .messages import ProgressPipe
    from .profiling import Profile

# Libraries that join processes without TensorFlow's clusters.
_OTHER_CLUSTERS = ("horovod", "mpi4py", "byteps", "smdistributed")


# Seconds. TensorFlow itself waits for a leader that comes later, or never.
_LONGEST_WAIT_S = 10.0
_CONNECT_S = 1.0
_CHECK_S = 0.02


def await_listener(address: str) -> None:
    """Wait until a server listens at `address` (host:port), for a limited time.

    Called before TensorFlow connects to it: gRPC repeats a connection that was refused after a second.
    """
    import socket

    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while port.isdecimal() and time.monotonic() < deadline:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return
        except ConnectionRefusedError:
            time.sleep(_CHECK_S)
        except OSError:
            return  # TensorFlow reports it


class Place:
    """The address of this process's server, that of the cluster's leader, and the number of tasks in its cluster.
    Unknown: "", "" and 0."""

    def __init__(self, server_def: object) -> None:
        """`server_def`: TensorFlow's ServerDef, serialized. An error is logged."""
        self.address, self.leader, self.tasks = "", "", 0
        if isinstance(server_def, bytes):
            attempt("reporting the cluster", lambda: self._read(server_def))

    def _read(self, server_def: bytes) -> None:
        from tensorflow.core.protobuf import tensorflow_server_pb2

        server = tensorflow_server_pb2.ServerDef.FromString(server_def)
        jobs = {job.name: dict(job.tasks) for job in server.cluster.job}
        self.address = jobs.get(server.job_name, {}).get(server.task_index, "")
        self.tasks = sum(len(tasks) for tasks in jobs.values())
        # For example: /job:worker/replica:0/task:0
        leader = server.default_session_config.experimental.collective_group_leader
        parts = dict(part.partition(":")[::2] for part in leader.split("/"))
        self.leader = jobs.get(parts.get("job", ""), {}).get(int(parts.get("task", 0)), "")


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


# -- training steps

# Modules of Keras 3 and tf_keras that define CallbackList.
_CALLBACK_LISTS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
# Seconds. Steps that follow each other more quickly are not all reported.
_STEP_INTERVAL_S = 0.02


def count_steps(pipe: ProgressPipe, profile: Profile | None = None) -> None:
    """Report the training steps of Keras's `fit`, also if it prints nothing. `profile` records some of them."""
    count = StepCount(pipe)
    for name in _CALLBACK_LISTS:
        after_import(
            name,
            lambda module: attempt(
                "counting steps", lambda: _count_calls(module.CallbackList, count, profile)
            ),
        )


class StepCount:
    """Counts the steps of this process over all epochs and calls of `fit`. At most two reports are sent in an interval.

    The first report of an interval is exact until the next step. If that comes in the same interval, a second report
    says that steps may be skipped from then on.
    """

    def __init__(self, pipe: ProgressPipe) -> None:
        self._pipe = pipe
        self._before = 0  # in complete epochs
        self._in_epoch = 0
        self._first_epoch: int | None = None
        self._start: int | None = None
        self._skips = False
        self._due = 0.0

    @property
    def done(self) -> int:
        """The steps that this process has done."""
        return self._before + self._in_epoch

    def begin_epoch(self, epoch: int, steps: int | None) -> None:
        """`epoch` counts from 0; `steps` is the length of an epoch, if known."""
        self._before += self._in_epoch
        if self._first_epoch is None:
            self._first_epoch = epoch
        if self._start is None and (self._first_epoch == 0 or steps or self._in_epoch):
            self._start = self._first_epoch * (steps or self._in_epoch)
        self._in_epoch = 0

    def step(self, batch: int, steps: int | None, now: float) -> None:
        """Batch `batch` of the epoch, from 0, is done at `now` (monotonic seconds)."""
        # The last of several steps in one execution may lie beyond the epoch.
        self._in_epoch = min(batch + 1, steps or batch + 1)
        is_early = now < self._due
        if is_early and self._skips:
            return
        self._skips, self._due = is_early, now + _STEP_INTERVAL_S
        self._pipe.report(fit={"done": self.done, "start": self._start, "skips": self._skips})


def _count_calls(callback_list: Any, count: StepCount, profile: Profile | None) -> None:
    """Count before the callbacks are called: the step is done."""
    begin_epoch, end_batch = callback_list.on_epoch_begin, callback_list.on_train_batch_end
    begin_batch = callback_list.on_train_batch_begin

    def steps_of(callbacks: Any) -> int | None:
        # The script may give a NumPy integer, and a float to tf_keras, which then runs the last part as a step.
        steps = (getattr(callbacks, "params", None) or {}).get("steps")
        return None if steps is None else int(-(-steps // 1))

    def on_epoch_begin(self: Any, epoch: int, *arguments: Any, **named: Any) -> None:
        count.begin_epoch(int(epoch), steps_of(self))
        begin_epoch(self, epoch, *arguments, **named)

    def on_train_batch_end(self: Any, batch: int, *arguments: Any, **named: Any) -> None:
        count.step(int(batch), steps_of(self), time.monotonic())
        if profile is not None:
            profile.end_step(count.done)
        end_batch(self, batch, *arguments, **named)

    def on_train_batch_begin(self: Any, batch: int, *arguments: Any, **named: Any) -> None:
        begin_batch(self, batch, *arguments, **named)
        if profile is not None:
            profile.begin_step(count.done)

    callback_list.on_epoch_begin, callback_list.on_train_batch_end = on_epoch_begin, on_train_batch_end
    if profile is not None:
        callback_list.on_train_batch_begin = on_train_batch_begin
