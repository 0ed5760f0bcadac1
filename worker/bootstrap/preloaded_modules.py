"""What has been preloaded, kept out of a forked task's sight until the task imports it itself."""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, all_suffixes
from pathlib import Path
from types import ModuleType

from .after_import import came_back
from .import_record import ImportRecord

_ATTRIBUTES = ("__name__", "__loader__", "__package__", "__spec__", "__path__", "__file__", "__cached__")
# Variables that TensorFlow, Keras, NumPy and the libraries below them look at while they are imported.
_READ_BY_TENSORFLOW = ("TF_", "TF2_", "KERAS_", "XLA_", "TPU_", "GRPC_", "ABSL_", "PROTOCOL_BUFFERS_")
_READ_AT_IMPORT = (
    *_READ_BY_TENSORFLOW,
    *("CUDA_", "NVIDIA_"),
    *("OMP_", "OPENBLAS_", "GOTO_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "NUMPY_", "NPY_", "HDF5_", "LD_"),
)
_READ_LATER = ("TF_CONFIG",)


@dataclass
class ImportEffects:
    """What the import of one preloaded root did beside making modules: to be done again when a task imports it."""

    root: str
    environ: dict[str, str] = field(default_factory=dict)
    filters: Sequence[object] = ()


class PreloadedModules(MetaPathFinder):
    """Finds the modules taken out of sys.modules, and with each what its import would have brought with it."""

    def __init__(
        self,
        record: ImportRecord,
        effects: Sequence[ImportEffects],
        search_path: Sequence[str],
        script_env: Mapping[str, str],
    ) -> None:
        """`script_env`: variables that the script is expected to set before it imports any of them."""
        self._modules = record.new_modules()
        self._kept = dict(self._modules)
        self._importers = {
            name: [each for each in imported if each in self._kept]
            for name, imported in record.importers.items()
            if name in self._kept
        }
        imported = {name for names in record.importers.values() for name in names}
        for name in self._kept.keys() - imported:
            # One that its parent wrote into sys.modules itself, such as typing.io.
            self._importers.setdefault(name.rpartition(".")[0], []).append(name)
        self._effects = {effect.root: effect for effect in effects}
        # What all tasks are going to ask for is worked out once.
        self._closures = {effect.root: self._closure(effect.root) for effect in effects}
        self._known_path = set(search_path)
        self._script_env = dict(script_env)
        self._environ: dict[str, str] = {}
        self._on_return: dict[str, Callable[[], None]] = {}
        specs = {name: _own(module).get("__spec__") for name, module in self._modules.items()}
        self._specs = {name: spec for name, spec in specs.items() if isinstance(spec, ModuleSpec)}
        self._with_other_specs: list[str] = []
        self._say: Callable[[str], None] = lambda line: None
        # Around what is noted here only: whoever is called back may import, and wait for another thread's import.
        self._lock = _thread.RLock()

    def hide(self, say: Callable[[str], None], on_return: Mapping[str, Callable[[], None]]) -> None:
        """Take them out of sys.modules. `say` takes a line for the user; `on_return` is called by module name when
        that module comes back. os.environ must be the task's own."""
        self._say = say
        self._on_return = dict(on_return)
        self._environ = {**os.environ, **self._script_env}
        for name in self._kept:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, self)

    def shadowed_in(self, directory: str) -> list[str]:
        """Modules in whose place a file or package of `directory` would have been imported, had it come first."""
        found = {name: self._origin(name) for name in set(_importable(directory, self._kept.keys()))}
        return sorted(name for name, file in found.items() if file and not file.startswith(f"{directory}/"))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        with self._lock:
            if path is None and fullname in self._kept:
                self._look_at_new_entries()
            module = self._modules[fullname]
            # Another thread may have given it back since this one saw that it has to be imported.
            is_back = target is None and sys.modules.get(fullname) is module
            if fullname not in self._kept and not is_back:
                return None
        return _spec(fullname, module, self._specs.get(fullname), self)

    def give_back(self, name: str) -> None:
        """Put `name` into sys.modules, and what importing it would have put there too."""
        with self._lock:
            wanted = self._closures.get(name) or self._closure(name)
            given = {each: self._kept[each] for each in wanted if each in self._kept}
            roots = [self._effects.pop(each) for each in list(self._effects) if each in given]
            called = [self._on_return.pop(each) for each in given.keys() & self._on_return.keys()]
            if roots:
                self._compare_environment(roots[0].root, "tensorflow" in given)
            self._prepare_for_threads(given)
            # In this order: what is in neither would be imported a second time by another thread.
            sys.modules.update(given)
            for each in given:
                del self._kept[each]
            if not self._kept and self in sys.meta_path and not _thread._count():
                sys.meta_path.remove(self)
        for effect in roots:
            _repeat(effect)
        for call in called:
            call()
        # Whoever imports `name` itself calls back for it.
        came_back([each for each in given if each != name])

    def _prepare_for_threads(self, given: Mapping[str, ModuleType]) -> None:
        """A thread that is about to import one of `given` finds it in sys.modules right after having found its spec.
        Python then loads it by the spec that the module itself has: that must not execute it again."""
        if _thread._count():
            for name in given:
                self.set_spec(name)
            return
        while self._with_other_specs:
            self.set_spec(self._with_other_specs.pop())

    def has_spec(self, name: str) -> bool:
        """Whether the module has a spec of its own: what stands in sys.modules need not be a module."""
        return name in self._specs

    def set_spec(self, name: str) -> None:
        """Let the module have its true spec; while there are threads, the one that brings this very module again."""
        true_spec = self._specs.get(name)
        if true_spec is None:
            return
        with self._lock:
            module = self._modules[name]
            if _thread._count():
                self._with_other_specs.append(name)
                module.__spec__ = _spec(name, module, true_spec, self)
            else:
                module.__spec__ = true_spec

    def _closure(self, name: str) -> list[str]:
        """What comes back with `name`, in the order in which it once came."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            found.add(each)
            if parent := each.rpartition(".")[0]:
                waiting.append(parent)
            # One that this task has imported already has brought what it imports.
            if each in self._kept:
                waiting.extend(self._importers.get(each, ()))
        return [each for each in self._kept if each in found]

    def _origin(self, name: str) -> str:
        """The file it came from; empty for what is built in or frozen, which no file can stand in for."""
        spec = _own(self._kept[name]).get("__spec__")
        return str(spec.origin) if isinstance(spec, ModuleSpec) and spec.has_location else ""

    def _look_at_new_entries(self) -> None:
        """The script has put directories on sys.path: their modules come first if the script says so."""
        for place, entry in enumerate(sys.path):
            if entry in self._known_path:
                continue
            self._known_path.add(entry)
            behind = sys.path[:place]
            for name in self.shadowed_in(entry or "."):
                if not any(self._origin(name).startswith(f"{each}/") for each in behind):
                    del self._kept[name]
                    self._say(
                        f"{entry}/{name} is another {name} than the preloaded modules use; see --start spawn"
                    )

    def _compare_environment(self, root: str, with_tensorflow: bool) -> None:
        """What TensorFlow alone reads may still be set when numpy comes before it."""
        names = sorted(self._environ.keys() | os.environ.keys())
        for name in names:
            if self._environ.get(name) == os.environ.get(name) or name in _READ_LATER:
                continue
            if name.startswith(_READ_BY_TENSORFLOW) and not with_tensorflow:
                continue
            if name.startswith(_READ_AT_IMPORT):
                self._say(
                    f"{name} was changed before {root} was imported, but {root} had been preloaded and may not"
                    " have seen that; with --start spawn it does"
                )
                return


class _GivingLoader(Loader):
    """Returns the preloaded module as it is; for all else, the loader that it really has."""

    def __init__(self, name: str, module: ModuleType, modules: PreloadedModules) -> None:
        self._name = name
        self._module = module
        self._modules = modules
        self._attributes: dict[str, object] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._attributes = {name: value for name, value in _own(self._module).items() if name in _ATTRIBUTES}
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import has written into the module what is true of this loader only.
        for name in _ATTRIBUTES:
            if name == "__spec__" and self._modules.has_spec(self._name):
                continue  # below
            if name in self._attributes:
                setattr(module, name, self._attributes[name])
            elif name in _own(module):
                delattr(module, name)
        self._modules.set_spec(self._name)
        self._modules.give_back(self._name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module.__loader__, name)


def _own(module: ModuleType) -> dict[str, object]:
    # Not vars(): what stands in sys.modules need not be a module.
    return getattr(module, "__dict__", {})


def _spec(
    name: str, module: ModuleType, true_spec: ModuleSpec | None, modules: PreloadedModules
) -> ModuleSpec:
    """As the module's own was, but for the loader."""
    loader = _GivingLoader(name, module, modules)
    if true_spec is None:
        return ModuleSpec(name, loader)
    spec = ModuleSpec(
        name, loader, origin=true_spec.origin, is_package=true_spec.submodule_search_locations is not None
    )
    spec.submodule_search_locations = true_spec.submodule_search_locations
    spec.cached = true_spec.cached
    spec.has_location = true_spec.has_location
    return spec


def _importable(directory: str, names: Container[str]) -> Iterator[str]:
    """Those of the top-level modules `names` that a directory or zip file has as a module or package (not as a
    namespace package: they come last)."""
    suffixes = tuple(all_suffixes())
    for entry in _listing(directory, names):
        name, _, rest = entry.partition("/")
        for suffix in suffixes:
            if not rest and entry.endswith(suffix) and entry.removesuffix(suffix) in names:
                yield entry.removesuffix(suffix)
            elif rest == f"__init__{suffix}" and name in names:
                yield name


def _listing(directory: str, names: Container[str]) -> Iterator[str]:
    """The files in it, and in its directories, that may be the modules or packages `names`."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                # There may be many thousands of others beside a script.
                if entry.name.partition(".")[0] not in names:
                    continue
                yield entry.name
                if entry.name in names and entry.is_dir():
                    yield from (f"{entry.name}/__init__{suffix}" for suffix in _init_suffixes(entry.path))
    except NotADirectoryError:
        from zipfile import BadZipFile, ZipFile

        try:
            with ZipFile(directory) as archive:
                yield from archive.namelist()
        except (OSError, BadZipFile):
            return
    except OSError:
        return


def _init_suffixes(package: str) -> list[str]:
    return [suffix for suffix in all_suffixes() if Path(package, f"__init__{suffix}").exists()]


def _repeat(effect: ImportEffects) -> None:
    for name, value in effect.environ.items():
        os.environ.setdefault(name, value)
    if effect.filters:
        import warnings

        warnings.filters[:0] = [each for each in effect.filters if each not in warnings.filters]  # type: ignore[index]
        getattr(warnings, "_filters_mutated", lambda: None)()
