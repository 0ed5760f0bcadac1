"""Ends tf.data iterators beside the script, as destroying one of several workers' waits for seconds.

The destructor of a tf.data iterator cancels the thread that tunes it and joins it. TensorFlow (2.21 and
before) wakes that thread by a cancellation callback, but marks the cancellation as done only after its
callbacks: a thread that looks in between goes back to sleep for the rest of its tuning period, which doubles
from 10 ms up to 60 s as training goes on. `fit`, `evaluate`, `predict`, a loop over a distributed dataset and
the interpreter's exit all pay that wait, with Python's global lock held.

So every iterator's resource gets one more owner here. When the iterator is dropped, a thread moves the last
reference into a staging area of TensorFlow's and has it cleared by an asynchronous executor: the wait then is
of a thread that belongs to neither Python nor the training. What is still alive at the interpreter's exit is
never destroyed.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import spared_collector
from ..after_import import after_import

# References to a resource that nobody else holds: the holder's, the local variable's and getrefcount's own.
_OURS_ALONE = 3
_LOOK_AGAIN_S = 0.02
# What somebody keeps on holding is looked at less and less often.
_LOOK_RARELY_S = 1.0
_JOIN_S = 1.0
# Whatever else was registered to run at the exit may take its time.
_LONGEST_FINALIZATION_S = 600
# They wait, with Python's global lock held, for what any thread's executor has to do (`tf.random.set_seed` does).
_WAITS_FOR_THREADS = ("TFE_ContextClearCaches", "TFE_ContextSyncExecutors")
_DONE = "_orch_iterators"


def arm(workers: int) -> None:
    """From TensorFlow's import on let no iterator's end be waited for, if there are several workers."""
    if workers > 1:
        after_import("tensorflow", _repair_quietly)
        for module in ("tensorflow", "keras"):
            spared_collector.spare(module)


def repair(tensorflow: ModuleType) -> None:
    """Take part in the ownership of every iterator that is made from now on; AttributeError for a TensorFlow
    that is built otherwise. Calling it again changes nothing."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
    from tensorflow.python.eager import context, executor

    single, several = iterator_ops.OwnedIterator, multi_device_iterator_ops.OwnedMultiDeviceIterator
    if hasattr(single, _DONE):
        return
    make_single, make_several = single._create_iterator, several.__init__

    def clear(name: str, resource: Any) -> Callable[[], None]:
        return _stage(tensorflow, context, name, resource)

    ends = _Ends(
        clear,
        lambda: executor.new_executor(enable_async=True),
        context.executor_scope,
        lambda: getattr(context.context_safe(), "_context_handle", None),
    )

    @functools.wraps(make_single)
    def create_iterator(self: Any, dataset: Any) -> None:
        make_single(self, dataset)
        if context.executing_eagerly():
            ends.share(self, self._iterator_resource)

    @functools.wraps(make_several)
    def several_init(self: Any, *args: Any, **kwargs: Any) -> None:
        make_several(self, *args, **kwargs)
        if context.executing_eagerly():
            ends.share(self, self._multi_device_iterator_resource)

    for name in _WAITS_FOR_THREADS:
        setattr(pywrap_tfe, name, ends.not_meanwhile(getattr(pywrap_tfe, name)))
    single._create_iterator = create_iterator
    several.__init__ = several_init
    setattr(single, _DONE, ends)
    # First in, last out: what the script registers runs before it, and may still drop iterators.
    atexit.register(ends.let_live)


def ends_of_this_process() -> _Ends:
    """What holds the iterators once `repair` has been done; AttributeError before."""
    from tensorflow.python.data.ops import iterator_ops

    ends: _Ends = getattr(iterator_ops.OwnedIterator, _DONE)
    return ends


def _repair_quietly(tensorflow: ModuleType) -> None:
    try:
        repair(tensorflow)
    except (ImportError, AttributeError):
        return  # built otherwise: as it would be without


def _stage(tensorflow: Any, context: Any, name: str, resource: Any) -> Callable[[], None]:
    """Put `resource` into the staging area `name`; what it returns clears that, destroying the resource."""
    operations = tensorflow.raw_ops
    with tensorflow.init_scope(), tensorflow.device("CPU:0"):
        operations.Stage(values=[resource], shared_name=name)

    def clear() -> None:
        with tensorflow.init_scope(), tensorflow.device("CPU:0"):
            operations.StageClear(dtypes=[tensorflow.resource], shared_name=name)

    return clear


def _make_immortal(thing: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _end_before_native_destructors() -> None:
    """Let this process end after Python's own finalization, with its exit code, but before C++ destroys what
    the threads of living iterators still use: those would crash in some exits."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "on_exit"):
        return  # another C library than glibc
    # Last in, first out. on_exit hands the exit code over; what C code has printed is flushed before.
    library.on_exit(library._exit, None)
    library.__cxa_atexit(library.fflush, None, None)


def _let_late_threads_wait() -> None:
    """Have a thread that is still destroying an iterator stop, where Python's finalization would abort all.

    The destructor of a function's stack traces asks for Python's global lock. Python (until 3.14) ends a thread
    that does so during finalization by unwinding it, and unwinding out of a destructor is C++'s `terminate`.
    """
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):
        return
    set_terminate.argtypes = [ctypes.c_void_p]
    set_terminate.restype = ctypes.c_void_p
    set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
    # Should it be the main thread that ever comes to wait there, the process must end all the same.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LONGEST_FINALIZATION_S)


class _Ends:
    """Holds a reference to each iterator's resource, and destroys those that nobody else holds."""

    def __init__(
        self,
        stage: Callable[[str, Any], Callable[[], None]],
        new_executor: Callable[[], Any],
        executor_scope: Callable[[Any], Any],
        context_handle: Callable[[], Any],
    ) -> None:
        self._stage = stage
        self._new_executor = new_executor
        self._executor_scope = executor_scope
        self._context_handle = context_handle
        self._numbers = itertools.count()
        self._held: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}
        self._dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        # Held while the executor is this thread's: destroying an iterator may need Python's global lock.
        self._handing_over = threading.RLock()
        self._ended = False

    def share(self, iterator: Any, resource: Any) -> None:
        number = next(self._numbers)
        # The callback may run anywhere, within TensorFlow too: it does as little as there is.
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

    def not_meanwhile(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, never while an iterator is being handed over: each would wait for the other for ever."""

        @functools.wraps(call)
        def later(*args: Any, **kwargs: Any) -> Any:
            with self._handing_over:
                return call(*args, **kwargs)

        return later

    def held(self) -> int:
        """How many resources are held: of iterators that are in use or wait to be destroyed."""
        return len(self._held)

    def let_live(self) -> None:
        """Stop working, and keep what is left from being destroyed with the interpreter."""
        if self._thread is None:
            return
        self._dropped.put(None)
        self._thread.join(_JOIN_S)
        for _, resources in list(self._held.values()):
            for resource in resources:
                _make_immortal(resource)
        # The iterators' threads run on its pools.
        handle = self._context_handle()
        if handle is not None:
            _make_immortal(handle)
        _end_before_native_destructors()
        if self._ended:
            _let_late_threads_wait()

    def _work(self) -> None:
        executor: Any = None
        shared: list[int] = []  # dropped, but somebody else still holds the resource
        pause = _LOOK_AGAIN_S
        while True:
            try:
                number = self._dropped.get(timeout=pause if shared else None)
            except queue.Empty:
                pause = min(2 * pause, _LOOK_RARELY_S)
            else:
                if number is None:
                    return
                pause = _LOOK_AGAIN_S
                shared.append(number)
            for number in [number for number in shared if self._is_ours_alone(number)]:
                shared.remove(number)
                if executor is None:
                    executor = self._new_executor()
                    # Its destructor would wait for what it still does.
                    _make_immortal(executor)
                    self._ended = True
                self._end(number, executor)

    def _is_ours_alone(self, number: int) -> bool:
        resource = self._held[number][1][0]
        return sys.getrefcount(resource) <= _OURS_ALONE

    def _end(self, number: int, executor: Any) -> None:
        resources = self._held[number][1]
        try:
            clear = self._stage(f"orch-iterator-{number}", resources[0])
        except Exception:
            return  # it stays held: memory, but no wait
        del self._held[number]
        del resources
        with self._handing_over, self._executor_scope(executor):
            clear()
