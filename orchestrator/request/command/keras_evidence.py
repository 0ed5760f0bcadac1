"""Where a command's source uses what only Keras 2 has. A name is evidence wherever it stands, unless the code around
it asks which Keras is installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from orchestrator.request.command import keras2_names as keras2
from orchestrator.request.command.keras2_names import METRIC, MODEL, OPTIMIZER
from orchestrator.request.command.source_tree import (
    Source,
    SourceTree,
    called_name,
    constant_text,
    dotted_name,
)

_KERAS = "tensorflow.keras."
_MODULE, _OTHER = "module", "other"
# Only files with one of these words are parsed.
_WORDS = re.compile(
    rb"reset_states|legacy|experimental|_generator|\blr\b|minimize|to_yaml|state_updates|save|ModelCheckpoint"
    rb"|ParameterServerStrategy|workers\b|use_multiprocessing|max_queue_size|reset_metrics|sample_weight_mode"
    rb"|variables\(|write_grads|fused|batch_input_shape|weights|gradients|tf\.Module|\bInput\(|"
    + b"|".join(sorted(name.rpartition(".")[2].encode() for name in keras2.MISSING_NAMES))
)
# A file that compares a version with one at which Keras changed is written for more than one Keras. The same holds
# for code under such a condition, and for code with a handler for such an error.
_COMPARES_VERSION = re.compile(rb"""[vV]ersion[^\n]{0,200}(?:2, *1[1-9]|2\.1[1-9]|["'(]3\b)""")
_ASKS_FOR_KERAS = re.compile(r"hasattr|getattr|version|platform|darwin", re.IGNORECASE)
_SWALLOWED = re.compile(r"ImportError|ModuleNotFoundError|AttributeError")
# The name of a file in which Keras 3 saves a model, in the source and in the command.
_KERAS_FILE = re.compile(rb"""(?:\.|["'])(?:keras|h5|hdf5)["']""")
_KERAS_FILE_WORD = re.compile(r"\.(?:keras|h5|hdf5)$")
# Names of Keras 3 that tf_keras does not have.
_OF_KERAS_3 = re.compile(rb"keras\.(?:ops|random|config|distribution|tree|quantizers|Variable)\b")
# Methods that nothing but a model has.
_OF_MODELS_ALONE = frozenset({"fit_generator", "evaluate_generator", "predict_generator"})


def find_evidence(tree: SourceTree, sources: Sequence[Source], words: Sequence[str] = ()) -> str | None:
    """The first sign, such as "train.py line 31 uses reset_states of a metric, which Keras 3 does not have". `words`:
    the command's. TooLarge if reading takes longer than a start may wait."""
    files = []
    for source in sources:
        if b"tensorflow" in source.text and _WORDS.search(source.text):
            tree.check_time()
            files.append(_File(source))
    defined = frozenset[str]().union(*(file.defined for file in files))
    found = [(file, node) for file in files for node in file.nodes]
    for file, node in found:
        if what := file.evidence(node, defined):
            return _line(file, node, what)
    strategies = [(file, node) for file, node in found if file.strategy(node)]
    names = {file.strategy(node) for file, node in strategies}
    if names == {"ParameterServerStrategy"} and any(file.is_fit(node) for file, node in found):
        return _line(*strategies[0], "uses ParameterServerStrategy with fit, which Keras 3 cannot do")
    saves = [(file, node) for file, node in found if file.saves_under_unknown_name(node)]
    if not saves or any(map(_KERAS_FILE_WORD.search, words)):
        return None
    if any(_KERAS_FILE.search(source.text) or _OF_KERAS_3.search(source.text) for source in sources):
        return None
    return _line(*saves[0], "saves a model, and the source names no .keras or .h5 file, which Keras 3 needs")


def _line(file: _File, node: ast.AST, what: str) -> str:
    return f"{file.source.shown} line {getattr(node, 'lineno', 1)} {what}"


class _File:
    """`nodes`: in the order of the source. `defined`: methods and attributes that the file defines itself."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # A name with two meanings has none here.
        names: dict[str, set[str]] = {}
        for node in source.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, set()).add("")
            for name, dotted in source.names_of(node).items():
                names.setdefault(name, set()).add(dotted)
        self._names = {name: min(meanings) for name, meanings in names.items() if len(meanings) == 1}
        classes = [node for node in source.nodes if isinstance(node, ast.ClassDef)]
        methods = (part for each in classes for part in each.body if isinstance(part, ast.FunctionDef))
        attributes = (node for node in source.nodes if isinstance(node, ast.Attribute))
        self.defined = {method.name for method in methods} | {
            node.attr for node in attributes if isinstance(node.ctx, ast.Store)
        }
        self._modules = {
            each.name for each in classes if "tensorflow.Module" in map(self._dotted, each.bases)
        }
        # The kinds of objects that variables hold, and their texts.
        self._kinds: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        for node in source.nodes:
            for name, value in _assignments(node):
                kind, text = self._kind_of(value), self._ending(value)
                self._kinds[name] = kind if self._kinds.get(name, kind) == kind else _OTHER
                self._texts[name] = text if self._texts.get(name, text) == text else None
        of_classes = {part for each in classes for part in each.body}
        functions = [
            node for node in source.nodes if isinstance(node, ast.FunctionDef) and node not in of_classes
        ]
        makers = {function.name for function in functions if any(map(self._returns_model, function.body))}
        for node in source.nodes:
            for name, value in _assignments(node):
                if (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Name)
                    and value.func.id in makers
                ):
                    self._kinds[name] = MODEL
        self.nodes: list[ast.AST] = []
        if source.tree and not _COMPARES_VERSION.search(source.text):
            self.nodes = list(_written_for_one_keras(source.tree))

    def evidence(self, node: ast.AST, defined: frozenset[str]) -> str | None:
        """The reason why Keras 3 cannot run this node. It continues "train.py line 3"."""
        match node:
            case ast.Attribute(ctx=ast.Load()) | ast.Name(ctx=ast.Load()):
                if missing := _below(self._keras(node), keras2.MISSING_NAMES):
                    return f"uses tf.keras.{missing}, which Keras 3 does not have"
                if isinstance(node, ast.Attribute) and (kind := self._lacks(node, defined)):
                    return f"uses {node.attr} of {kind}, which Keras 3 does not have"
            case ast.Call(func=func, keywords=keywords):
                name = self._keras(func)
                given = {keyword.arg for keyword in keywords if keyword.arg}
                if refused := _below(name, keras2.REFUSED_NAMES):
                    return f"uses tf.keras.{refused}, which Keras 3 refuses"
                if wrong := sorted(given & keras2.missing_arguments(name)):
                    return f"gives {wrong[0]} to {name.rpartition('.')[2]}, which Keras 3 does not take"
                if name in ("Sequential", "models.Sequential") and any(
                    self._kind(part) == _MODULE for part in ast.walk(node)
                ):
                    return "puts a tf.Module into Sequential, which Keras 3 refuses"
                if name in ("Input", "layers.Input") and isinstance(
                    _number(_argument(node, 0, "shape")), int
                ):
                    return "gives a number as shape to Input, which Keras 3 refuses"
                if isinstance(func, ast.Attribute) and func.attr not in defined:
                    return self._method(func, given) or self._path(node, func.attr, name, func.value)
                return self._path(node, "", name, func)
        return None

    def strategy(self, node: ast.AST) -> str:
        """The name of the distribution strategy that a call makes; "" for other nodes."""
        name = self._dotted(node.func) if isinstance(node, ast.Call) else ""
        last = name.rpartition(".")[2]
        return last if name.startswith("tensorflow.distribute.") and last.endswith("Strategy") else ""

    def is_fit(self, node: ast.AST) -> bool:
        func = node.func if isinstance(node, ast.Call) else None
        return isinstance(func, ast.Attribute) and func.attr == "fit" and self._is_model(func.value)

    def saves_under_unknown_name(self, node: ast.AST) -> bool:
        """Whether a model is saved under a name whose end the source does not show."""
        match node:
            case ast.Call(func=ast.Attribute(attr="save", value=owner)) if self._is_model(owner):
                path = _argument(node, 0, "filepath")
                return path is not None and self._ending(path) is None
        return False

    def _lacks(self, node: ast.Attribute, defined: frozenset[str]) -> str | None:
        """The kind of object that has the attribute in Keras 2, and not in Keras 3."""
        if node.attr in defined:
            return None
        kind = self._kind(node.value)
        if node.attr == "reset_states" and (kind != _OTHER or self._is_model(node.value)):
            return "a model" if self._is_model(node.value) else "a metric"
        is_of_model = isinstance(node.value, ast.Attribute) and node.value.attr == "optimizer"
        if kind == OPTIMIZER or (is_of_model and self._is_model(node.value.value)):  # type: ignore[attr-defined]
            return "an optimizer" if node.attr in keras2.MISSING_ATTRIBUTES[OPTIMIZER] else None
        is_model = node.attr in _OF_MODELS_ALONE or self._is_model(node.value)
        return "a model" if is_model and node.attr in keras2.MISSING_ATTRIBUTES[MODEL] else None

    def _method(self, func: ast.Attribute, given: set[str]) -> str | None:
        if func.attr == "variables" and self._kind(func.value) == OPTIMIZER:
            return "calls variables of an optimizer, which is not a function in Keras 3"
        for argument in sorted(given & keras2.MISSING_ARGUMENTS_OF_METHODS.get(func.attr, frozenset())):
            if argument != "workers" or self._is_model(func.value):
                return f"gives {argument} to {func.attr}, which Keras 3 does not take"
        return None

    def _path(self, call: ast.Call, method: str, name: str, owner: ast.expr) -> str | None:
        """The reason why Keras 3 refuses the path under which a model or its weights are saved."""
        endings: tuple[str, ...] = (".weights.h5",)
        if name == "callbacks.ModelCheckpoint":
            only = _argument(call, None, "save_weights_only")
            if not isinstance(only, ast.Constant | None):
                return None
            what, endings = "keeps checkpoints", endings if only and only.value else (".keras", ".h5")
        elif method == "save_weights":
            what = "saves weights"
        elif name == "models.save_model" or (method == "save" and self._is_model(owner)):
            if constant_text(_argument(call, None, "save_format")) == "tf":
                return 'saves with save_format="tf", which Keras 3 refuses'
            what, endings = "saves a model", (".keras", ".h5", ".hdf5")
        else:
            return None
        path = self._ending(_argument(call, 1 if name == "models.save_model" else 0, "filepath"))
        # The part of the path that the source does not show may begin with the first part of an ending.
        if path is None or any(path.endswith(each) or each.endswith(path) for each in endings):
            return None
        return f"{what} under a name that does not end in {' or '.join(endings[:2])}, which Keras 3 refuses"

    def _dotted(self, node: ast.AST) -> str:
        return dotted_name(node, self._names)

    def _keras(self, node: ast.AST) -> str:
        """The name below tf.keras; "" for anything else."""
        dotted = self._dotted(node).replace("tensorflow.compat.v2.", "tensorflow.")
        return dotted.removeprefix(_KERAS) if dotted.startswith(_KERAS) else ""

    def _kind(self, node: ast.AST) -> str | None:
        """The kind of object that an expression gives; None if that is not known."""
        return self._kind_of(node) if isinstance(node, ast.Call) else self._kinds.get(_variable(node))

    def _kind_of(self, value: ast.expr) -> str:
        name = self._keras(value.func) if isinstance(value, ast.Call) else ""
        group, _, last = name.rpartition(".")
        if group in ("metrics", "optimizers") and last[:1].isupper():
            return METRIC if group == "metrics" else OPTIMIZER
        if last in ("Model", "Sequential") or (group.startswith("applications") and last[:1].isupper()):
            return MODEL
        return _MODULE if isinstance(value, ast.Call) and called_name(value) in self._modules else _OTHER

    def _is_model(self, node: ast.expr) -> bool:
        """Whether it is a model of Keras, or a variable with that word in its name."""
        is_variable = isinstance(node, ast.Name | ast.Attribute)
        return self._kind(node) == MODEL or (is_variable and "model" in called_name(node).lower())

    def _returns_model(self, statement: ast.stmt) -> bool:
        return (
            isinstance(statement, ast.Return)
            and statement.value is not None
            and self._is_model(statement.value)
        )

    def _ending(self, node: ast.expr | None) -> str | None:
        """The text that a path ends in; None if the source does not show it."""
        match node:
            case ast.Name(id=name):
                return self._texts.get(name)
            case ast.JoinedStr(values=[*_, last]) | ast.BinOp(op=ast.Add(), right=last):
                return self._ending(last)
            case ast.Call(func=ast.Attribute(attr="join"), args=[_, *_, last]):
                return self._ending(last)
        return constant_text(node)


def _written_for_one_keras(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    match node:
        case ast.If(test=asking) | ast.IfExp(test=asking) | (ast.BoolOp() as asking):
            if _ASKS_FOR_KERAS.search(ast.unparse(asking)):
                return
        case ast.Try(handlers=handlers):
            if any(each.type and _SWALLOWED.search(ast.unparse(each.type)) for each in handlers):
                return
        case ast.With(items=items):
            if any(_SWALLOWED.search(ast.unparse(item)) for item in items):
                return
    for part in ast.iter_child_nodes(node):
        yield from _written_for_one_keras(part)


def _assignments(node: ast.AST) -> list[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [(name, value) for target in targets if (name := _variable(target))]
        case ast.AnnAssign() | ast.NamedExpr() if node.value and (name := _variable(node.target)):
            return [(name, node.value)]
    return []


def _variable(node: ast.AST) -> str:
    """`x`, and `.x` for `self.x`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return f".{attr}"
    return ""


def _argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    if position is not None and len(call.args) > position:
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _number(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _below(name: str, names: frozenset[str]) -> str | None:
    return next((each for each in names if name and f"{name}.".startswith(f"{each}.")), None)
