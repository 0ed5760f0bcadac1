"""Preloaded modules, hidden from a forked task until the task imports them itself.

1. After the fork, hide() takes them out of sys.modules and puts this finder first in sys.meta_path.
2. The task's `import tensorflow` asks find_spec(), whose loader "executes" the module by restore().
3. restore() puts it back with all modules that its import would have brought, and repeats the effects of the import.

`_modules` are all preloaded modules, `_hidden` those not yet back. `_importers` says what each module imports.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, all_suffixes
from pathlib import Path
from types import ModuleType

from .after_import import run_callbacks
from .import_reads import READ_AT_IMPORT, READ_BY_TENSORFLOW
from .import_record import ImportRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # their import brings typing into forked tasks, by way of functools
    Loader = MetaPathFinder = object

_ATTRIBUTES = ("__name__", "__loader__", "__package__", "__spec__", "__path__", "__file__", "__cached__")
_READ_LATER = ("TF_CONFIG",)


@dataclass
class ImportEffects:
    """Effects of importing one preloaded root besides its modules. They are repeated when a task imports it."""

    root: str
    environ: Mapping[str, str]
    filters: Sequence[object]


class PreloadedModules(MetaPathFinder):
    """Finds the modules that were removed from sys.modules, each together with the modules that it imports.

    `are_frozen`: they are excluded from garbage collection."""

    are_frozen = True

    def __init__(
        self,
        record: ImportRecord,
        effects: Sequence[ImportEffects],
        search_path: Sequence[str],
        script_env: Mapping[str, str],
    ) -> None:
        """`script_env`: variables that the script is expected to set before it imports any of the modules."""
        self._modules = record.new_modules()
        self._hidden = dict(self._modules)
        self._importers = {
            name: [each for each in imported if each in self._hidden]
            for name, imported in record.importers.items()
            if name in self._hidden
        }
        imported = {name for names in record.importers.values() for name in names}
        for name in self._hidden.keys() - imported:
            # A module that its parent wrote into sys.modules itself, such as typing.io.
            self._importers.setdefault(name.rpartition(".")[0], []).append(name)
        self._effects = {effect.root: effect for effect in effects}
        # Computed once, before the fork: all tasks need these.
        self._closures = {effect.root: self._closure(effect.root) for effect in effects}
        self._known_path = set(search_path)
        self._script_env = dict(script_env)
        self._environ: dict[str, str] = {}
        self._on_return: dict[str, Callable[[], None]] = {}
        specs = {name: _own(module).get("__spec__") for name, module in self._modules.items()}
        self._specs = {name: spec for name, spec in specs.items() if isinstance(spec, ModuleSpec)}
        self._with_other_specs: list[str] = []
        self._log: Callable[[str], None] = lambda line: None
        # Not held during callbacks: those may import, and wait for another thread's import.
        self._lock = _thread.RLock()

    def hide(self, log: Callable[[str], None], on_return: Mapping[str, Callable[[], None]]) -> None:
        """Remove the modules from sys.modules. os.environ must be the task's own.
        `log` takes a line for the user; `on_return` maps a module's name to a call that its return causes."""
        self._log = log
        self._on_return = dict(on_return)
        self._environ = {**os.environ, **self._script_env}
        for name in self._hidden:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def shadowed_in(self, directory: str) -> list[str]:
        """Hidden modules that a file or package in `directory` would replace if `directory` came first."""
        found = {name: self._origin(name) for name in set(_importable(directory, self._hidden.keys()))}
        return sorted(name for name, file in found.items() if file and not file.startswith(f"{directory}/"))

    def shadowed_on(self, search_path: Sequence[str]) -> tuple[str, str] | None:
        """Return a directory of PYTHONPATH and a hidden module that it has, too: the file there would be imported
        instead of the preloaded one."""
        for place, entry in enumerate(search_path):
            before = tuple(f"{each}/" for each in search_path[:place])
            for name in self.shadowed_in(entry):
                if not self._origin(name).startswith(before):
                    return entry, name
        return None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        with self._lock:
            if path is None and fullname in self._hidden:
                self._check_new_entries()
            module = self._modules[fullname]
            # Another thread may have restored it since this thread found it missing.
            is_back = target is None and sys.modules.get(fullname) is module
            if fullname not in self._hidden and not is_back:
                return None
        return _spec(fullname, module, self._specs.get(fullname), self)

    def restore(self, name: str) -> None:
        """Put `name` into sys.modules, and all modules that its import would have put there."""
        with self._lock:
            wanted = self._closures.get(name) or self._closure(name)
            given = {each: self._hidden[each] for each in wanted if each in self._hidden}
            roots = [self._effects.pop(each) for each in list(self._effects) if each in given]
            called = [self._on_return.pop(each) for each in given.keys() & self._on_return.keys()]
            if roots:
                self._compare_environment(roots[0].root, "tensorflow" in given)
            self._prepare_for_threads(given)
            # In this order: another thread would import a module that is in neither a second time.
            sys.modules.update(given)
            for each in given:
                del self._hidden[each]
            if not self._hidden and self in sys.meta_path and not _thread._count():
                sys.meta_path.remove(self)
        for effect in roots:
            _repeat(effect)
        for call in called:
            call()
        # The import of `name` itself runs its own callbacks.
        run_callbacks([each for each in given if each != name])

    def _prepare_for_threads(self, given: Mapping[str, ModuleType]) -> None:
        # A thread that has found no such module may find it in sys.modules a moment later. Python then executes it
        # by the module's own spec.
        if _thread._count():
            for name in given:
                self.set_spec(name)
            return
        while self._with_other_specs:
            self.set_spec(self._with_other_specs.pop())

    def set_spec(self, name: str) -> bool:
        """Give the module its true spec; while there are threads, a spec that returns this module again.
        Return whether it has one: an object in sys.modules need not be a module."""
        true_spec = self._specs.get(name)
        if true_spec is None:
            return False
        with self._lock:
            module = self._modules[name]
            if _thread._count():
                self._with_other_specs.append(name)
                module.__spec__ = _spec(name, module, true_spec, self)
            else:
                module.__spec__ = true_spec
        return True

    def _closure(self, name: str) -> list[str]:
        """All modules that come back with `name`, in the order of their first import."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            found.add(each)
            if parent := each.rpartition(".")[0]:
                waiting.append(parent)
            # A module that is back already has restored what it imports.
            if each in self._hidden:
                waiting.extend(self._importers.get(each, ()))
        return [each for each in self._hidden if each in found]

    def _origin(self, name: str) -> str:
        """The file of the module; empty for a built-in or frozen one, which no file can replace."""
        spec = _own(self._hidden[name]).get("__spec__")
        return str(spec.origin) if isinstance(spec, ModuleSpec) and spec.has_location else ""

    def _check_new_entries(self) -> None:
        """Drop the hidden modules that a new directory replaces: one that the script has put in front in sys.path."""
        for place, entry in enumerate(sys.path):
            if entry in self._known_path:
                continue
            self._known_path.add(entry)
            behind = sys.path[:place]
            for name in self.shadowed_in(entry or "."):
                if not any(self._origin(name).startswith(f"{each}/") for each in behind):
                    del self._hidden[name]
                    self._log(
                        f"{entry}/{name} is another {name} than the preloaded modules use; see --start spawn"
                    )

    def _compare_environment(self, root: str, with_tensorflow: bool) -> None:
        """Log a variable that was changed too late. TensorFlow's own may change until TensorFlow is imported."""
        for name in sorted(self._environ.keys() | os.environ.keys()):
            if self._environ.get(name) == os.environ.get(name) or name in _READ_LATER:
                continue
            if name.startswith(READ_BY_TENSORFLOW) and not with_tensorflow:
                continue
            if name.startswith(READ_AT_IMPORT):
                self._log(
                    f"{name} was changed before {root} was imported, but {root} had been preloaded and may not"
                    " have seen the change; with --start spawn it does"
                )
                return


class _RestoringLoader(Loader):
    """Returns the preloaded module unchanged; other attributes are those of the module's true loader."""

    def __init__(self, name: str, module: ModuleType, modules: PreloadedModules) -> None:
        self._name = name
        self._module = module
        self._modules = modules
        self._attributes: dict[str, object] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._attributes = {name: value for name, value in _own(self._module).items() if name in _ATTRIBUTES}
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        has_spec = self._modules.set_spec(self._name)
        # The import has written this loader's attributes into the module.
        for name in _ATTRIBUTES:
            if name == "__spec__" and has_spec:
                continue
            if name in self._attributes:
                setattr(module, name, self._attributes[name])
            elif name in _own(module):
                delattr(module, name)
        self._modules.restore(self._name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module.__loader__, name)


def _own(module: ModuleType) -> dict[str, object]:
    # Not vars(): an object in sys.modules need not be a module.
    return getattr(module, "__dict__", {})


def _spec(
    name: str, module: ModuleType, true_spec: ModuleSpec | None, modules: PreloadedModules
) -> ModuleSpec:
    """A copy of the module's own spec with another loader."""
    loader = _RestoringLoader(name, module, modules)
    if true_spec is None:
        return ModuleSpec(name, loader)
    spec = ModuleSpec(name, loader, origin=true_spec.origin)
    spec.submodule_search_locations = true_spec.submodule_search_locations
    spec.cached = true_spec.cached
    spec.has_location = true_spec.has_location
    return spec


def _importable(directory: str, names: Container[str]) -> Iterator[str]:
    """Modules in `names` that a directory or zip file has, except namespace packages: Python prefers any other."""
    suffixes = tuple(all_suffixes())
    for file in _files_in(directory, names):
        name, _, rest = file.partition("/")
        for suffix in suffixes:
            if not rest and name.endswith(suffix) and name.removesuffix(suffix) in names:
                yield name.removesuffix(suffix)
            elif rest == f"__init__{suffix}" and name in names:
                yield name


def _files_in(directory: str, names: Container[str]) -> Iterator[str]:
    """The files in a directory or zip file, and in its directories, that may belong to the modules `names`."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                # A script's directory may hold many thousands of other files.
                if entry.name.partition(".")[0] in names:
                    yield entry.name
                    if entry.name in names and entry.is_dir():
                        yield from (f"{entry.name}/{file.name}" for file in Path(entry.path).iterdir())
    except NotADirectoryError:
        from zipfile import BadZipFile, ZipFile

        try:
            with ZipFile(directory) as archive:
                yield from archive.namelist()
        except (OSError, BadZipFile):
            return
    except OSError:
        return


def _repeat(effect: ImportEffects) -> None:
    for name, value in effect.environ.items():
        os.environ.setdefault(name, value)
    if effect.filters:
        import warnings

        warnings.filters[:0] = [each for each in effect.filters if each not in warnings.filters]  # type: ignore[index]
        getattr(warnings, "_filters_mutated", lambda: None)()
