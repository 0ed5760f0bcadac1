"""Pickles a function of this process with its arguments for the tasks, and unpickles what they return."""

from __future__ import annotations

import dis
import functools
import inspect
import io
import linecache
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from orchestrator.core.errors import UsageError
from orchestrator.core.text.clean import safe

# Deepest part of a value that is named in a message.
_DEEPEST = 6
_PYTEST = "_pytest"
_registering = threading.Lock()


@dataclass
class Contents:
    """Facts about a pickled call. `modules`: those that unpickling it or running its code may import. `classes`: those
    of this process. `sources`: the text of code that is in no file, such as a cell of a notebook, by its name."""

    modules: set[str] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)


def pickle_call(
    function: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[memoryview, Contents]:
    """UsageError names what cannot be pickled."""
    file, contents = io.BytesIO(), Contents()
    try:
        _dump((function, tuple(args), dict(kwargs)), file, contents)
    except Exception as error:
        name = name_of(function)
        culprit = _culprit(function, args, kwargs)
        where = "" if culprit is None else f"{culprit}: "
        raise UsageError(
            f"{name} cannot be sent to the tasks: {where}{type(error).__name__}: {error}; create it inside the"
            " function, or pass what it is made of"
        ) from error
    return file.getbuffer(), contents


def _dump(thing: object, file: io.BytesIO, contents: Contents) -> None:
    # The modules whose code is pickled by value are registered for the whole process.
    with _registering, _Pickler(file, contents) as pickler:
        pickler.dump(thing)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes what it pickles in `contents`. The code of modules that a task cannot import is pickled itself."""

    def __init__(self, file: io.BytesIO, contents: Contents) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._contents = contents
        self._by_value: dict[str, ModuleType] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> _Pickler:
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._by_value.values():
            cloudpickle.unregister_pickle_by_value(module)

    def reducer_override(self, thing: Any) -> Any:
        is_code = isinstance(thing, FunctionType | type)
        name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
        if is_code or isinstance(thing, ModuleType):
            self._look_at(name)
        if isinstance(thing, type):
            self._contents.classes.add(thing)
        reduced = super().reducer_override(thing)
        if isinstance(thing, FunctionType) and reduced is not NotImplemented:
            self._note_code(thing.__code__)
        elif (
            isinstance(name, str)
            and name not in self._by_value
            and (is_code or isinstance(thing, ModuleType))
        ):
            self._contents.modules.add(name)
        return reduced

    def _look_at(self, name: object) -> None:
        """Have the module's code pickled by value if tasks cannot import it. `__main__` always is."""
        if not isinstance(name, str) or name in self._seen or name == "__main__":
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        is_registered = name in cloudpickle.list_registry_pickle_by_value()
        if module is not None and not is_registered and not _is_importable(module):
            self._by_value[name] = module
            cloudpickle.register_pickle_by_value(module)

    def _note_code(self, code: CodeType) -> None:
        self._contents.modules.update(_imports_of(code))
        file = code.co_filename
        if (
            file not in self._contents.sources
            and not Path(file).exists()
            and (lines := linecache.getlines(file))
        ):
            self._contents.sources[file] = "".join(lines)


def _is_importable(module: ModuleType) -> bool:
    """Whether another process with the same sys.path imports this module by its name. A test module is not imported:
    that would run all of it, under pytest."""
    spec = getattr(module, "__spec__", None)
    if spec is None or type(spec.loader).__module__.startswith(_PYTEST):
        return False
    if spec.origin in ("built-in", "frozen") or module.__name__ in sys.stdlib_module_names:
        return True
    parent = sys.modules.get(module.__name__.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    for finder in sys.meta_path:
        if type(finder).__module__.startswith(_PYTEST) or not hasattr(finder, "find_spec"):
            continue
        found = finder.find_spec(module.__name__, path)
        if found is not None:
            return bool(found.origin == spec.origin)
    return False


def _imports_of(code: CodeType) -> Iterator[str]:
    """The modules that the import statements of a function name, with those of functions in it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_of(constant)


def name_of(function: object) -> str:
    """The function as it is named in messages: `train()`."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or type(inner).__name__
    return safe(f"{str(name).rpartition('<locals>.')[2]}()")


# -- naming what cannot be pickled


@dataclass(frozen=True)
class _Part:
    """A value, its name as in the code, and the function that uses it (empty for an argument)."""

    value: object
    name: str
    user: str = ""

    def __str__(self) -> str:
        kind = type(self.value)
        used = f" (used by {self.user})" if self.user else ""
        return f"{self.name}{used} is a {kind.__module__}.{kind.__qualname__}"

    def inner(self) -> Iterator[_Part]:
        """The parts of the value."""
        value = self.value
        if isinstance(value, functools.partial):
            yield _Part(value.func, name_of(value.func))
            yield from _Part((*value.args, *value.keywords.values()), f"{self.name}.args").inner()
        elif isinstance(value, MethodType):
            yield _Part(value.__self__, "self", name_of(value))
        elif isinstance(value, FunctionType):
            used = inspect.getclosurevars(value)
            for name, each in {**used.globals, **used.nonlocals}.items():
                yield _Part(each, name, name_of(value))
            yield from _Part(value.__defaults__ or (), "__defaults__", name_of(value)).inner()
        elif isinstance(value, dict):
            for key, each in value.items():
                yield _Part(each, f"{self.name}[{key!r:.40}]", self.user)
        elif isinstance(value, list | tuple | set | frozenset):
            for number, each in enumerate(value):
                yield _Part(each, f"{self.name}[{number}]", self.user)
        elif hasattr(value, "__dict__"):
            for name, each in vars(value).items():
                yield _Part(each, f"{self.name}.{name}", self.user)


def _culprit(function: object, args: Sequence[object], kwargs: Mapping[str, object]) -> _Part | None:
    """The innermost part that cannot be pickled; None if that cannot be told."""
    parts: Iterable[_Part] = (
        _Part(function, name_of(function)),
        *(_Part(each, f"argument {number}") for number, each in enumerate(args, start=1)),
        *(_Part(each, f"argument {key}") for key, each in kwargs.items()),
    )
    found = None
    for _ in range(_DEEPEST):
        deeper = next((part for part in parts if not _can_be_pickled(part.value)), None)
        if deeper is None:
            break
        found, parts = deeper, deeper.inner()
    return found


def _can_be_pickled(thing: object) -> bool:
    try:
        _dump(thing, io.BytesIO(), Contents())
    except Exception:
        return False
    return True


# -- what the tasks return


class NotImportedHere(Exception):
    """A value needs a library that this process has not imported."""


class ReturnUnpickler(pickle.Unpickler):
    """Unpickles what a task returned. The classes of this process stay as they are."""

    _HEAVY = frozenset({"tensorflow", "keras", "tf_keras"})

    def __init__(self, data: bytes, own: set[type]) -> None:
        super().__init__(io.BytesIO(data))
        self._own = own

    def find_class(self, module: str, name: str) -> Any:
        top = module.partition(".")[0]
        if top in self._HEAVY and top not in sys.modules:
            raise NotImportedHere(
                f"it holds an object of {top}, which this process has not imported: return numbers or NumPy arrays"
                f" (such as tensor.numpy()), or import {top} before"
            )
        found = super().find_class(module, name)
        if name == "_class_setstate":
            # cloudpickle would replace the methods of a class that was sent to the task by those that come back.
            return lambda thing, state: thing if thing in self._own else found(thing, state)
        return found
