"""What the bootstrap does around a script's TensorFlow: phases, waits that can be stopped, the Keras fixes.

Everything hangs on calls that are made once a process, as it imports TensorFlow or joins its cluster; nothing on
those of a step.
"""

from __future__ import annotations

import os
import sys

from . import cluster, devices, stopping
from .after_import import after_import, before_import
from .telling import say, say_broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .telling import ProgressPipe

CANCELLED = 1  # tf.errors.CANCELLED
_LIBRARY = "libtensorflow_cc.so.2"
_armed = False


def install(pipe: ProgressPipe, fixes: bool) -> None:
    """Arm all of it, for a TensorFlow that is imported later or has been already."""
    before_import("tensorflow", lambda: pipe.phase("importing"))
    if devices.is_asked_for(os.environ):
        after_import("tensorflow", _quietly("setting up devices", _configure_devices))
    after_import(
        "tensorflow.python.distribute.collective_all_reduce_strategy",
        _quietly("--communication", _apply_communication),
    )
    after_import(
        "tensorflow.python.autograph.pyct.loader",
        _quietly("tidying up after autograph", _write_into_scratch),
    )
    after_import("tensorflow", lambda _: pipe.phase("starting"))
    after_import(
        "tensorflow.python.pywrap_tfe", _quietly("joining a cluster", lambda m: _hook_context(m, pipe))
    )
    after_import(
        "tensorflow.python.client.pywrap_tf_session",
        _quietly("stopping a server", lambda m: _hook_server(m, pipe)),
    )
    if fixes:
        for name in ("tensorflow", "keras", "tf_keras"):
            before_import(name, _arm_fixes_once)


def _quietly(part: str, callback: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def guarded(module: ModuleType) -> None:
        try:
            callback(module)
        except Exception as error:
            say_broken(part, error)

    return guarded


def _configure_devices(tensorflow: ModuleType) -> None:
    devices.configure(tensorflow, os.environ)


def _apply_communication(strategies: ModuleType) -> None:
    from . import communication

    if communication.is_asked_for(os.environ):
        communication.apply(strategies, os.environ)


def _write_into_scratch(loader: ModuleType) -> None:
    from . import autograph_files

    autograph_files.into_scratch(loader)


# -- joining a cluster, and being one's server


def _hook_context(bindings: Any, pipe: ProgressPipe) -> None:
    join = _without_the_lock(bindings.TFE_EnableCollectiveOps, pipe)

    def enable_collective_ops(context: object, server_def: bytes) -> None:
        # A stop left the last one waiting, and this would be the script's last words that use TensorFlow.
        stopping.raise_again()
        pipe.phase("waiting")
        join(context, server_def)
        _abort_at_stop(bindings)
        pipe.phase("training")

    bindings.TFE_EnableCollectiveOps = enable_collective_ops
    for name in ("TFE_ContextSetServerDef", "TFE_ContextSetServerDefWithTimeoutAndRetries"):
        setattr(bindings, name, _connecting(getattr(bindings, name), pipe))
    bindings.TFE_Py_SetCEagerContext = _beginning(bindings.TFE_Py_SetCEagerContext, pipe)


def _without_the_lock(
    enable: Callable[[object, bytes], None], pipe: ProgressPipe
) -> Callable[[object, bytes], None]:
    """TFE_EnableCollectiveOps, interruptible where the C function behind it can be reached."""
    from . import blocking

    directory, _, _ = str(sys.modules["tensorflow"].__file__).rpartition("/")
    keeping_the_handler = blocking.keeping_the_handler(enable)
    try:
        functions = blocking.CFunctions(f"{directory}/{_LIBRARY}")
    except (OSError, AttributeError):
        return keeping_the_handler

    def join(context: object, server_def: bytes) -> None:
        try:
            address = functions.address(context)
        except ValueError:  # of another kind than it has been so far
            keeping_the_handler(context, server_def)
            return
        try:
            code, text = blocking.interruptibly(
                lambda: functions.enable_collective_ops(address, server_def), put_back=pipe.sigterm_again
            )
        except BaseException:
            # Whoever frees it waits for the threads that wait in it: without end, if it is a chief that never comes.
            blocking.keep_for_ever(context)
            raise
        _raise_unless_fine(code, text)

    return join


def _connecting(connect: Callable[..., None], pipe: ProgressPipe) -> Callable[..., None]:
    """For the coordinator of parameter servers; the call lets go of the interpreter lock itself."""
    from . import blocking

    def set_server_def(*arguments: object, **named: object) -> None:
        stopping.raise_again()
        pipe.phase("waiting")
        blocking.interruptibly(lambda: connect(*arguments, **named), put_back=pipe.sigterm_again)
        pipe.phase("training")

    return set_server_def


def _beginning(publish: Callable[[object], None], pipe: ProgressPipe) -> Callable[[object], None]:
    """TensorFlow's runtime is up, in a cluster or not: from here on the script can compute."""

    def set_c_eager_context(context: object) -> None:
        publish(context)
        if context is not None:
            pipe.phase("training")

    return set_c_eager_context


def _hook_server(bindings: Any, pipe: ProgressPipe) -> None:
    from . import blocking

    join, stop = bindings.TF_ServerJoin, bindings.TF_ServerStop
    joined = []

    def server_join(server: object) -> None:
        stopping.raise_again()
        pipe.phase("serving")
        joined.append(server)
        blocking.interruptibly(lambda: join(server))
        joined.remove(server)

    def server_stop(server: object) -> None:
        # It would wait for the join that nobody waits for any more, and so would the process, in Server.__del__.
        if not any(server is other for other in joined):
            stop(server)

    bindings.TF_ServerJoin, bindings.TF_ServerStop = server_join, server_stop


def _raise_unless_fine(code: int, message: str) -> None:
    if code != 0:
        from tensorflow.python.framework import errors_impl

        raise errors_impl.exception_type_from_error_code(code)(None, None, message)


def _abort_at_stop(bindings: Any) -> None:
    from . import collectives

    def abort() -> None:
        try:
            context = sys.modules["tensorflow.python.eager.context"].context_safe()
            if context is not None and context._context_handle is not None:
                bindings.TFE_AbortCollectiveOps(
                    context._context_handle, CANCELLED, "SIGTERM: this task is to stop"
                )
        except Exception as error:
            say_broken("getting out of a collective", error)

    try:
        collectives.abort_at_stop(abort)
    except Exception as error:
        say_broken("getting out of a collective", error)


# -- Keras


def _arm_fixes_once() -> None:
    global _armed
    if _armed:
        return
    _armed = True
    try:
        place = cluster.place()
        from . import keras_fix

        arm = getattr(keras_fix, "arm", None)
        if arm is not None:
            is_heard = place is None or place.is_chief
            arm(1 if place is None else place.workers, say if is_heard else lambda line: None)
    except Exception as error:
        say_broken("the Keras fixes", error)
