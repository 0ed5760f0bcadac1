"""What names stand for in one file of a TensorFlow program: imported names, and variables that hold Keras objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.command.keras2_names import METRIC, MISSING_ATTRIBUTES, MODEL, OPTIMIZER

_KERAS = "tensorflow.keras"
_MODEL_MAKERS = frozenset({"Model", "Sequential", "models.Model", "models.Sequential", "models.clone_model"})
_VERSION_WORDS = frozenset(
    {"hasattr", "version", "Version", "VERSION", "__version__", "version_info", "parse"}
)


@dataclass
class SourceNames:
    """What names mean in one file: `names` to dotted paths, `guarded` the nodes that run only if a check allows."""

    nodes: list[ast.AST]
    names: dict[str, str] = field(default_factory=dict)
    guarded: set[int] = field(default_factory=set)
    returned: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, set[str | None]] = field(default_factory=dict)
    _assigned: dict[str, list[ast.expr | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in self.nodes:
            if isinstance(node, ast.Try) and node.handlers:
                self._guard(*node.body)
            elif isinstance(node, ast.If | ast.IfExp) and _asks_for_version(node.test):
                parts = (*node.body, *node.orelse) if isinstance(node, ast.If) else (node.body, node.orelse)
                self._guard(*parts)
            else:
                self._assignments(node)
        for name, values in self._assigned.items():
            self.texts[name] = {value.value if is_text(value) else None for value in values}  # type: ignore[union-attr]
        kinds = self.kinds({})
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                found = {self.kind(value.value, kinds, {}) for value in _returns(node)}
                self.returned[node.name] = found.pop() if len(found) == 1 else None
            elif isinstance(node, ast.ClassDef):
                self.returned[node.name] = self._kind_of_class(node)

    def dotted(self, node: ast.AST) -> str:
        """`tensorflow.keras.layers.Dense` for whatever the file calls it; "" for what is no imported name."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute):
            inner = self.dotted(node.value)
            return f"{inner}.{node.attr}" if inner else ""
        return ""

    def keras(self, node: ast.AST) -> str:
        """The name below tf.keras; "" for anything else."""
        dotted = self.dotted(node).replace("tensorflow.compat.v2.", "tensorflow.")
        return dotted[len(_KERAS) + 1 :] if dotted.startswith(f"{_KERAS}.") else ""

    def kinds(self, makers: Mapping[str, str]) -> dict[str, str]:
        """Variables (`x`, and `self.x` as `.x`) that are always assigned things of one kind."""
        kinds: dict[str, str] = {}
        for name, values in self._assigned.items():
            found = {self.kind(value, {}, makers) if value is not None else None for value in values}
            if len(found) == 1 and (kind := found.pop()):
                kinds[name] = kind
        return kinds

    def kind(self, value: ast.expr | None, kinds: Mapping[str, str], makers: Mapping[str, str]) -> str | None:
        """What a call makes, or a variable holds."""
        if isinstance(value, ast.Name):
            return kinds.get(value.id)
        if isinstance(value, ast.Attribute):
            return kinds.get(f".{value.attr}")
        if not isinstance(value, ast.Call):
            return None
        name = self.keras(value.func)
        if name.startswith("metrics.") and name.count(".") == 1 and name[8:9].isupper():
            return METRIC
        if name.startswith("optimizers.") and name.count(".") == 1 and name[11:12].isupper():
            return OPTIMIZER
        if name in _MODEL_MAKERS or (
            name.startswith("applications.") and name.rpartition(".")[2][:1].isupper()
        ):
            return MODEL
        called = value.func
        return makers.get(
            called.id
            if isinstance(called, ast.Name)
            else called.attr
            if isinstance(called, ast.Attribute)
            else ""
        )

    def _kind_of_class(self, node: ast.ClassDef) -> str | None:
        for base in node.bases:
            name = self.keras(base)
            # A class of the user's own may have what Keras 3 lacks: only if it does not define it.
            if name in _MODEL_MAKERS and not _defines(node, MISSING_ATTRIBUTES[MODEL] | {"save", "fit"}):
                return MODEL
        return None

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    self.names[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    self.names[top] = top
        elif not node.level and node.module:
            for alias in node.names:
                self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _guard(self, *parts: ast.AST) -> None:
        for part in parts:
            self.guarded.update(id(node) for node in ast.walk(part))

    def _assignments(self, node: ast.AST) -> None:
        targets: list[ast.expr]
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                targets = [target]
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._unknown(target)
                return
            case ast.AugAssign(target=target):
                self._unknown(target)
                return
            case ast.withitem(optional_vars=ast.expr() as target):
                self._unknown(target)
                return
            case ast.arg(arg=name):
                # An argument of the same name may be anything.
                self._assigned.setdefault(name, []).append(None)
                return
            case _:
                return
        for target in targets:
            if key := _key(target):
                self._assigned.setdefault(key, []).append(value)
            else:
                self._unknown(target)

    def _unknown(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.expr) and (key := _key(node)):
                self._assigned.setdefault(key, []).append(None)


def is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _key(target: ast.expr) -> str | None:
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return f".{attr}"
    return None


def _returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Return))


def _defines(node: ast.ClassDef, names: frozenset[str]) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name in names for part in node.body)


def _asks_for_version(test: ast.expr) -> bool:
    return any(_last_name(node) in _VERSION_WORDS for node in ast.walk(test))


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
