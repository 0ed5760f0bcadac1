"""Notes which module imports which while the preloader imports, so that a task gets them back as it imports them."""

from __future__ import annotations

# Imports nothing: what is imported before the record begins is missing in it.
import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportRecord:
    """`importers` maps a module's name to the names it imported, in its own body or in its functions since.

    Modules in `at_start` were there before, as they are in any interpreter. Records within its `with`, as often
    as it is entered.
    """

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
        """Modules that `importer` brought, some of them perhaps by writing into sys.modules."""
        self.importers.setdefault(importer, set()).update(imported)

    def new_modules(self) -> dict[str, ModuleType]:
        """All modules imported since the start but orch's own, in the order in which they came."""
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
        module = self._import(name, globals, locals, fromlist or (), level)
        if globals is not None:
            found = _absolute(name, globals, level)
            imported = self.importers.setdefault(str(globals.get("__name__")), set())
            imported.add(found)
            imported.update(f"{found}.{part}" for part in fromlist or ())
        return module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds nothing, but sees what is imported otherwise than by a statement (importlib.import_module, C)."""
        frame = sys._getframe(1)
        while frame.f_back is not None:
            importer = str(frame.f_globals.get("__name__"))
            if importer != "importlib" and not importer.startswith(("importlib.", __name__)):
                self.importers.setdefault(importer, set()).add(fullname)
                break
            frame = frame.f_back
        return None


def _absolute(name: str, globals: Mapping[str, object], level: int) -> str:
    if level == 0:
        return name
    package = str(globals.get("__package__") or globals.get("__name__"))
    if not globals.get("__package__") and "__path__" not in globals:
        package = package.rpartition(".")[0]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base
