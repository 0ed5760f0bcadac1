"""Keeps TensorFlow's objects from delaying the script at their end: iterators of tf.data, and all at the exit.

With several workers the script would wait seconds for each iterator of tf.data. Its destructor cancels the thread that
tunes it and joins it. TensorFlow (2.21 and earlier) wakes that thread by a cancellation callback, but marks the
cancellation as done after its callbacks. A thread that checks in between sleeps for the rest of its tuning period,
which doubles from 10 ms up to 60 s during the training. `fit`, `evaluate`, `predict`, a loop over a distributed
dataset and the interpreter's exit wait for it with Python's lock held.

Here every iterator's resource gets another owner. When the iterator is dropped, a thread moves the last reference into
a staging area of TensorFlow and lets an asynchronous executor clear it. Only a thread outside of Python and of the
training then waits. Iterators that are alive at the interpreter's exit are not destroyed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..after_import import after_import, before_import
from ..blocking import make_immortal
from . import replace

# References to a resource without another owner: in `_held`, in a local variable, and getrefcount's argument.
_OUR_REFERENCES = 3
# Seconds between checks of dropped resources that still have another owner. The pause doubles up to the second value.
_CHECK_S = 0.02
_LONGEST_CHECK_S = 1.0
# Seconds to wait for the thread at the exit.
_JOIN_S = 1.0
# Other functions registered to run at the exit may take this many seconds.
_LONGEST_FINALIZATION_S = 600
# With Python's lock held, these wait for the executor of every thread (`tf.random.set_seed` calls the first).
_WAIT_FOR_EXECUTORS = ("TFE_ContextClearCaches", "TFE_ContextSyncExecutors")
_DONE = "_orch_iterators"


def arm() -> None:
    """Once TensorFlow is imported, destroy iterators in the background. Freeze what the imports create."""
    after_import("tensorflow", _repair_if_possible)
    for module in ("tensorflow", "keras"):
        freeze_objects_of_import(module)


def _repair_if_possible(tensorflow: ModuleType) -> None:
    try:
        repair(tensorflow)
    except (ImportError, AttributeError):
        return  # another build of TensorFlow, which stays as it is


def repair(tensorflow: ModuleType) -> None:
    """Become an owner of every iterator that is created from now on. A second call changes nothing.
    ImportError or AttributeError if this TensorFlow is built differently."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
    from tensorflow.python.eager import context

    single, several = iterator_ops.OwnedIterator, multi_device_iterator_ops.OwnedMultiDeviceIterator
    if hasattr(single, _DONE):
        return
    owner = _Owner(tensorflow)
    for name in _WAIT_FOR_EXECUTORS:
        replace(pywrap_tfe, name)(owner.call_between)

    @replace(single, "_create_iterator")
    def create_iterator(original: Any, self: Any, dataset: Any) -> None:
        original(self, dataset)
        if context.executing_eagerly():
            owner.share(self, self._iterator_resource)

    @replace(several, "__init__")
    def several_init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if context.executing_eagerly():
            owner.share(self, self._multi_device_iterator_resource)

    setattr(single, _DONE, owner)
    # Registered before the script's functions, it runs after them: they may still drop iterators.
    atexit.register(owner.keep_living)


def owner_in_this_process() -> _Owner:
    """The owner of the iterators after `repair`; AttributeError before."""
    from tensorflow.python.data.ops import iterator_ops

    owner: _Owner = getattr(iterator_ops.OwnedIterator, _DONE)
    return owner


class _Owner:
    """Holds a reference to each iterator's resource, and destroys resources without another owner."""

    def __init__(self, tensorflow: ModuleType) -> None:
        from tensorflow.python.eager import context, executor

        self._tensorflow: Any = tensorflow
        self._context, self._executor = context, executor
        self._numbers = itertools.count()
        self._held: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}
        self._dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        # Held while this thread uses the executor: destroying an iterator may need Python's lock.
        self._handing_over = threading.RLock()
        self._has_destroyed = False

    def share(self, iterator: Any, resource: Any) -> None:
        number = next(self._numbers)
        # The callback may run anywhere, also within TensorFlow, so it does as little as possible.
        dropped = self._dropped
        self._held[number] = (weakref.ref(iterator, lambda _: dropped.put(number)), [resource])
        if self._thread is None:
            self._start_once()

    def _start_once(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="orch-iterators", daemon=True)
                thread.start()
                self._thread = thread

    def call_between(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `call`, but not while an iterator is handed over: each would wait for the other."""
        with self._handing_over:
            return call(*args, **kwargs)

    def held(self) -> int:
        """The number of resources of iterators that are in use or wait to be destroyed."""
        return len(self._held)

    def keep_living(self) -> None:
        """Stop the thread, and keep the living iterators from being destroyed with the interpreter."""
        if self._thread is None:
            return
        self._dropped.put(None)
        self._thread.join(_JOIN_S)
        for _, resources in list(self._held.values()):
            for resource in resources:
                make_immortal(resource)
        # The iterators' threads run in its pools.
        handle = getattr(self._context.context_safe(), "_context_handle", None)
        if handle is not None:
            make_immortal(handle)
        _exit_before_native_destructors()
        if self._has_destroyed:
            _pause_late_threads()

    def _work(self) -> None:
        executor: Any = None
        shared: list[int] = []  # dropped, but the resource has another owner
        pause = _CHECK_S
        while True:
            try:
                number = self._dropped.get(timeout=pause if shared else None)
            except queue.Empty:
                pause = min(2 * pause, _LONGEST_CHECK_S)
            else:
                if number is None:
                    return
                pause = _CHECK_S
                shared.append(number)
            for number in [number for number in shared if self._is_ours_alone(number)]:
                shared.remove(number)
                if executor is None:
                    executor = self._executor.new_executor(enable_async=True)
                    # Its destructor would wait for its work.
                    make_immortal(executor)
                    self._has_destroyed = True
                self._destroy(number, executor)

    def _is_ours_alone(self, number: int) -> bool:
        resource = self._held[number][1][0]
        return sys.getrefcount(resource) <= _OUR_REFERENCES

    def _destroy(self, number: int, executor: Any) -> None:
        tf, area = self._tensorflow, f"orch-iterator-{number}"
        try:
            with tf.init_scope(), tf.device("CPU:0"):
                tf.raw_ops.Stage(values=self._held[number][1], shared_name=area)
        except Exception:
            return  # it stays held, which takes memory but no time
        del self._held[number]
        with (
            self._handing_over,
            self._context.executor_scope(executor),
            tf.init_scope(),
            tf.device("CPU:0"),
        ):
            tf.raw_ops.StageClear(dtypes=[tf.resource], shared_name=area)


# -- exit


def _exit_before_native_destructors() -> None:
    """Exit after Python's finalization, with its exit code, but before C++ runs its static destructors.
    Static destructors free what the threads of living iterators still use, and some exits would crash."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "on_exit"):
        return  # another C library than glibc
    # The last function registered runs first: output of C code is flushed, then _exit gets the exit code of on_exit.
    library.on_exit(library._exit, None)
    library.__cxa_atexit(library.fflush, None, None)


def _pause_late_threads() -> None:
    """Pause a thread that still destroys an iterator during Python's finalization. Its destructor asks for Python's
    lock; Python (before 3.14) unwinds the thread, and unwinding out of a C++ destructor would abort the process."""
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):
        return
    set_terminate.argtypes = [ctypes.c_void_p]
    set_terminate.restype = ctypes.c_void_p
    set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
    # If the main thread ever pauses here, the process must still exit.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LONGEST_FINALIZATION_S)


# -- garbage collection
#
# TensorFlow's import creates about 260,000 objects that live until the exit, where the last collection would take a
# second for them. gc.freeze() saves that second, but it also freezes the script's own objects. Objects in a reference
# cycle, such as all global variables that a function can see, would never be freed: `__del__` would not be called, and
# buffers of open files would not be written.


def freeze_objects_of_import(name: str) -> None:
    """Exclude from garbage collection what the import of `name` creates, the one under way or the next one."""
    # The preloader has frozen preloaded modules, before the script created objects. Counting them would take 0.05 s.
    # From 3.13 on, Python would not free the script's cycles at its end.
    is_frozen = any(getattr(finder, "are_frozen", False) for finder in sys.meta_path)
    if is_frozen or sys.version_info >= (3, 13):
        return
    found: set[int] = set()
    before_import(name, lambda: found.update(_tracked_addresses()))

    def freeze(_: ModuleType) -> None:
        if found:
            _freeze_all_but(found)

    after_import(name, freeze)


def _tracked_addresses() -> set[int]:
    """Addresses of all tracked objects. References would keep them alive."""
    return {id(each) for each in gc.get_objects()}


def _freeze_all_but(addresses: set[int]) -> None:
    """Freeze all other objects. An address may belong to a newer object by now, which then is not frozen either."""
    untrack, track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    for function in (untrack, track):
        function.argtypes, function.restype = (ctypes.py_object,), None
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        kept = [each for each in gc.get_objects() if id(each) in addresses]
        gc.freeze()
        # Tracking an object again puts it into the youngest generation, outside of the frozen ones.
        for each in kept:
            untrack(each)
            track(each)
    finally:
        if was_enabled:
            gc.enable()
