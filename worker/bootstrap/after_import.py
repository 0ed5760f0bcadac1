"""Calls back when a module has been imported, without importing it: how the bootstrap reaches a script's TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Callback = Callable[[ModuleType], None]


def after_import(name: str, callback: Callback) -> None:
    """Call `callback(module)` right after `name` has been executed by an import; now, if it already has been.

    What the callback raises goes to whoever imports: it should keep its errors to itself.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    finder = next((found for found in sys.meta_path if isinstance(found, _Watcher)), None)
    if finder is None:
        finder = _Watcher()
        sys.meta_path.insert(0, finder)
    finder.callbacks.setdefault(name, []).append(callback)


class _Watcher(MetaPathFinder):
    """Finds the watched modules as the finders behind it do, with a loader that calls back."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callbacks = self.callbacks.pop(fullname, None)
        if callbacks is None:
            return None
        spec = find_spec(fullname)  # this finder no longer knows the name, so the others answer
        if spec is None or spec.loader is None:
            self.callbacks[fullname] = callbacks  # not there yet; it may be later
            return None
        if not self.callbacks:
            sys.meta_path.remove(self)
        spec.loader = _CallingLoader(spec.loader, callbacks)
        return spec


class _CallingLoader(Loader):
    """The real loader, which is put back before the module runs: the module sees what it always sees."""

    def __init__(self, real: Loader, callbacks: list[Callback]) -> None:
        self._real = real
        self._callbacks = callbacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        for callback in self._callbacks:
            callback(module)
