"""Records which module imports which in the preloader, so that a task gets each back when it imports it."""

from __future__ import annotations

# Import no other module here: a module imported before the record begins is missing in it.
import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportRecord:
    """`importers` maps a module's name to the names that its body or its functions imported.
    `at_start` are the modules of any interpreter, which were imported before. The record grows within each `with`."""

    def __init__(self, at_start: frozenset[str]) -> None:
        self.at_start = at_start
        self.importers: dict[str, set[str]] = {}
        self._import = builtins.__import__

    def __enter__(self) -> ImportRecord:
        builtins.__import__ = self._recording_import
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        builtins.__import__ = self._import
        sys.meta_path.remove(self)

    def note(self, importer: str, imported: Iterable[str]) -> None:
        """Add modules that `importer` imported, or wrote into sys.modules itself."""
        self.importers.setdefault(importer, set()).update(imported)

    def new_modules(self) -> dict[str, ModuleType]:
        """All modules imported since the start except orch's own, in the order of their import."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name not in self.at_start and name.partition(".")[0] != "_orch_bootstrap"
        }

    def _recording_import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        # TensorFlow has 38,000 import statements. Without a generator and a new set for each, this takes half the time.
        module = self._import(name, globals, locals, fromlist or (), level)
        if globals is not None:
            found = _absolute(name, globals, level) if level else name
            importer = str(globals.get("__name__"))
            imported = self.importers.get(importer)
            if imported is None:
                imported = self.importers[importer] = set()
            imported.add(found)
            for part in fromlist or ():
                imported.add(f"{found}.{part}")
        return module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, but record imports that are not statements (importlib.import_module, C code)."""
        frame = sys._getframe(1)
        while frame.f_back is not None:
            importer = str(frame.f_globals.get("__name__"))
            if importer != "importlib" and not importer.startswith(("importlib.", __name__)):
                self.importers.setdefault(importer, set()).add(fullname)
                break
            frame = frame.f_back
        return None


def _absolute(name: str, globals: Mapping[str, object], level: int) -> str:
    package = str(globals.get("__package__") or globals.get("__name__"))
    if not globals.get("__package__") and "__path__" not in globals:
        package = package.rpartition(".")[0]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base
