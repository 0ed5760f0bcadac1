"""Hooks into the script's TensorFlow: phases, waits that a stop can end, the run's settings and the fixes for Keras.

Each hook runs once in a process: while it imports TensorFlow, joins its cluster, or computes its first gradient.
"""

from __future__ import annotations

import atexit
import os
import sys

from . import stopping
from .after_import import after_import, before_import
from .cluster_facts import Place, await_listener, count_steps, watch_training
from .messages import attempt, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .messages import ProgressPipe
    from .profiling import Profile

CANCELLED = 1  # tf.errors.CANCELLED
_LIBRARY = "libtensorflow_cc.so.2"
# Seconds for a coordinator to recover a worker after its program has ended.
_RECOVERY_S = 10.0
# The limit in a run whose tasks are debugged: a day.
_DEBUGGING_MS = 24 * 3600 * 1000
_are_fixes_armed = False


def install(pipe: ProgressPipe, fixes: bool, profile: Profile | None = None) -> None:
    """Install the hooks for a TensorFlow that is imported later, or already is."""
    before_import("tensorflow", lambda: pipe.phase("importing"))
    after_import("tensorflow", _apply_settings)
    after_import("tensorflow", lambda _: pipe.phase("starting"))
    after_import(
        "tensorflow.python.pywrap_tfe",
        lambda bindings: attempt("joining a cluster", lambda: _hook_context(bindings, pipe)),
    )
    after_import(
        "tensorflow.python.client.pywrap_tf_session",
        lambda bindings: attempt("stopping a server", lambda: _hook_server(bindings, pipe)),
    )
    after_import(
        "tensorflow.python.distribute.coordinator.cluster_coordinator",
        lambda _: _at_exit("ending a coordinator", _end_recoveries),
    )
    if "TF_CONFIG" in os.environ:
        after_import(
            "tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver",
            lambda module: attempt("Slurm's resolver", lambda: _hook_slurm(module)),
        )
    watch_training(pipe)
    count_steps(pipe, profile)
    if fixes:
        for name in ("tensorflow", "keras", "tf_keras"):
            before_import(name, lambda: attempt("the Keras fixes", _arm_fixes_once))


def _apply_settings(tensorflow: ModuleType) -> None:
    # Not imported earlier: a script without TensorFlow starts faster.
    from . import tensorflow_settings

    tensorflow_settings.apply(tensorflow)


def _hook_slurm(module: ModuleType) -> None:
    """Let a SlurmClusterResolver answer from TF_CONFIG.

    Slurm's variables describe the agent, one a node. And TensorFlow sorts nodes by their text: with 10 or more of them,
    n10 would come before n2, and a task would take another one's place.
    """
    from tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver import (
        TFConfigClusterResolver,
    )

    resolver = module.SlurmClusterResolver

    def init(self: Any, *given: Any, **named: Any) -> None:
        rpc_layer = named.get("rpc_layer", given[6] if len(given) > 6 else "grpc")
        self._ours = TFConfigClusterResolver(rpc_layer=rpc_layer)
        self.rpc_layer = rpc_layer
        self.task_type = self.task_id = None

    def cluster_spec(self: Any) -> Any:
        self.task_type, self.task_id = self._ours.task_type, self._ours.task_id
        return self._ours.cluster_spec()

    def num_accelerators(self: Any, *given: Any, **named: Any) -> Any:
        return self._ours.num_accelerators(*given, **named)

    resolver.__init__ = init
    resolver.cluster_spec = cluster_spec
    resolver.num_accelerators = num_accelerators


def wait_for_debugged() -> None:
    """Raise the time limits of TensorFlow's coordination service: on heartbeats, and on the start of a cluster."""
    after_import(
        "tensorflow.python.eager.context",
        lambda context: attempt(
            "waiting for tasks that are debugged", lambda: _raise_limits(context.Context)
        ),
    )


def _raise_limits(context: Any) -> None:
    configure = context.configure_coordination_service

    def configure_coordination_service(self: Any, *arguments: Any, **named: Any) -> None:
        for limit in ("heartbeat_timeout_in_ms", "cluster_register_timeout_in_ms"):
            named[limit] = _DEBUGGING_MS
        configure(self, *arguments, **named)

    context.configure_coordination_service = configure_coordination_service


def _at_exit(part: str, action: Callable[[], None]) -> None:
    atexit.register(attempt, part, action)


def _end_recoveries() -> None:
    """Stop the threads in which coordinators recover restarted workers.

    The thread holds a lock that the coordinator's destructor takes. Python's exit freezes the thread, and a program
    that ends during a recovery would wait forever.
    """
    for thread in sys.modules["threading"].enumerate():
        handler: Any = getattr(getattr(thread, "_target", None), "__self__", None)
        if thread.name != "WorkerPreemptionHandler" or handler is None:
            continue
        handler._should_preemption_thread_run = False
        if handler._cluster_update_lock.acquire(timeout=_RECOVERY_S):
            handler._cluster_update_lock.release()
            handler.stop()
            thread.join(_RECOVERY_S)
        else:
            handler.stop = lambda: None


def _keep_remote_functions() -> None:
    """Let Python's exit remove no function from the workers of a coordinator, which end with it.

    Each removal waits for an answer of every worker, which can take a minute (docs/tensorflow.md).
    """
    sys.modules["tensorflow.python.eager.context"].Context.remove_function = lambda self, name: None


def _arm_fixes_once() -> None:
    global _are_fixes_armed
    if _are_fixes_armed:
        return
    _are_fixes_armed = True
    from . import keras_fix
    from .keras_fix.workers import place

    here = place()
    logs = here is None or here.is_chief
    keras_fix.arm(1 if here is None else here.workers, log if logs else lambda line: None)


# -- joining a cluster


def _hook_context(bindings: Any, pipe: ProgressPipe) -> None:
    join = _joining_interruptibly(bindings.TFE_EnableCollectiveOps, pipe)

    def enable_collective_ops(context: object, server_def: bytes) -> None:
        # The script's clean-up after a stop would wait here for the same peers.
        stopping.raise_if_stopping()
        place = Place(server_def)
        pipe.report(phase="waiting", server=place.address)
        if place.leader != place.address:
            await_listener(place.leader)
        try:
            join(context, server_def)
        except Exception:
            pipe.phase("starting")
            raise
        _abort_at_stop(bindings)
        pipe.report(phase="training", cluster=place.tasks)

    publish = bindings.TFE_Py_SetCEagerContext

    def set_c_eager_context(context: object) -> None:
        # Publishes TensorFlow's runtime, in a cluster or not. From then on the script can compute.
        publish(context)
        if context is not None:
            pipe.phase("training")

    bindings.TFE_EnableCollectiveOps = enable_collective_ops
    bindings.TFE_Py_SetCEagerContext = set_c_eager_context
    for name in ("TFE_ContextSetServerDef", "TFE_ContextSetServerDefWithTimeoutAndRetries"):
        setattr(bindings, name, _connecting_interruptibly(getattr(bindings, name), pipe))


def _joining_interruptibly(
    enable: Callable[[object, bytes], None], pipe: ProgressPipe
) -> Callable[[object, bytes], None]:
    """TFE_EnableCollectiveOps, interruptible if the C function behind it is found."""
    from . import blocking

    directory, _, _ = str(sys.modules["tensorflow"].__file__).rpartition("/")
    uninterruptible = blocking.keeping_handler(enable)
    try:
        functions = blocking.CFunctions(f"{directory}/{_LIBRARY}")
    except (OSError, AttributeError):
        return uninterruptible

    def join(context: object, server_def: bytes) -> None:
        try:
            address = functions.address(context)
        except ValueError:  # the context is not a capsule in this TensorFlow
            uninterruptible(context, server_def)
            return
        try:
            code, message = blocking.call_interruptibly(
                lambda: functions.enable_collective_ops(address, server_def), on_restore=pipe.sigterm_again
            )
        except BaseException:
            # Freeing the context would wait for the threads in it, without end if the chief never comes.
            blocking.make_immortal(context)
            raise
        if code != 0:
            from tensorflow.python.framework import errors_impl

            raise errors_impl.exception_type_from_error_code(code)(None, None, message)

    return join


def _connecting_interruptibly(connect: Callable[..., None], pipe: ProgressPipe) -> Callable[..., None]:
    """A call by which a coordinator connects to its parameter servers. It releases Python's lock itself."""
    from . import blocking

    def set_server_def(*arguments: object, **named: object) -> None:
        stopping.raise_if_stopping()
        pipe.phase("waiting")
        try:
            blocking.call_interruptibly(lambda: connect(*arguments, **named), on_restore=pipe.sigterm_again)
        except Exception:
            pipe.phase("starting")
            raise
        server_def = next((each for each in arguments if isinstance(each, bytes)), None)
        pipe.report(phase="training", cluster=Place(server_def).tasks)
        _at_exit("leaving a coordinator's workers", _keep_remote_functions)

    return set_server_def


def _abort_at_stop(bindings: Any) -> None:
    from . import blocking

    def abort() -> None:
        context = sys.modules["tensorflow.python.eager.context"].context_safe()
        if context is not None and context._context_handle is not None:
            bindings.TFE_AbortCollectiveOps(
                context._context_handle, CANCELLED, "SIGTERM: this task is to stop"
            )

    part = "aborting a collective"
    attempt(part, lambda: blocking.abort_at_stop(lambda: attempt(part, abort)))


# -- a server


def _hook_server(bindings: Any, pipe: ProgressPipe) -> None:
    from . import blocking

    start, join, stop = bindings.TF_NewServer, bindings.TF_ServerJoin, bindings.TF_ServerStop
    joined = []

    def new_server(server_def: bytes) -> object:
        server, place = start(server_def), Place(server_def)
        pipe.report(server=place.address, cluster=place.tasks)
        return server

    def server_join(server: object) -> None:
        stopping.raise_if_stopping()
        pipe.phase("serving")
        joined.append(server)
        blocking.call_interruptibly(lambda: join(server))
        joined.remove(server)

    def server_stop(server: object) -> None:
        # After an interrupted join, Server.__del__ would wait for the thread that is still in it.
        if not any(server is other for other in joined):
            stop(server)

    bindings.TF_NewServer, bindings.TF_ServerJoin, bindings.TF_ServerStop = (
        new_server,
        server_join,
        server_stop,
    )
