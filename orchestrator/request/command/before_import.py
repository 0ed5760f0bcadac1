"""Follow a command's source from its first line to its import of TensorFlow.

Only code on the lists of `allowed_names` may run before that import. Then a TensorFlow that the preloader has
imported earlier behaves the same. Modules, os.environ and sys.path cannot be stored or passed on before the import,
and nothing that the command itself defines can be used. Calls of local variables and of their methods therefore
need no check.
"""

from __future__ import annotations

import ast
import os.path
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from orchestrator.request.command import allowed_names as allowed
from orchestrator.request.command.source_tree import (
    TENSORFLOW,
    Source,
    SourceTree,
    called_name,
    constant_text,
    dotted_name,
)

# Expressions in which a container such as os.environ is only read.
_READING = ast.Compare | ast.comprehension | ast.Starred | ast.FormattedValue | ast.BinOp


class _Obstacle(Exception):
    """Its text names the place and the code."""


@dataclass
class _File:
    """`names`: what imported names stand for. `own`: names that the command defines, or imports from its own
    modules. `paths`: variables that hold known paths."""

    source: Source
    names: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    paths: dict[str, str] = field(default_factory=dict)

    def dotted(self, node: ast.AST) -> str:
        # The variable `environ` of any module is taken for that of os.
        is_environ = isinstance(node, ast.Attribute) and node.attr in ("environ", "environb")
        return "os.environ" if is_environ else dotted_name(node, self.names)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        place = "the code after -c" if self.source.shown == "-c" else self.source.shown
        raise _Obstacle(f"{place} line {getattr(node, 'lineno', 1)} {what}")


@dataclass
class BeforeImport:
    """The effects of the script `start` before it surely imports a module in `until`. `known`: harmless modules.

    `obstacle`: the first thing that prevents a fork, such as "train.py line 3 sets A". `constants`: variables for
    TensorFlow alone that the script sets to constants. `first`: the module that brings TensorFlow.
    The private methods that return a bool return True once a module in `until` is surely imported.
    """

    tree: SourceTree
    start: Source
    environ: Mapping[str, str]
    known: frozenset[str]
    until: frozenset[str]
    obstacle: str | None = None
    constants: dict[str, str] = field(default_factory=dict)
    first: str | None = None
    _files: dict[str, _File] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            imported = any(self._module(source) for source in (*self.tree.before(self.start), self.start))
            if not imported and self.until == TENSORFLOW:
                self.obstacle = f"{self.start.shown} runs a function, or code under a condition,"
        except _Obstacle as obstacle:
            self.obstacle = str(obstacle)
        except RecursionError:
            self.obstacle = f"{self.start.shown} has code that is nested too deeply to be read"

    def _module(self, source: Source) -> bool:
        if source.module in self._files:
            return False
        file = self._files[source.module] = _File(source)
        if source.tree is None:
            file.refuse(ast.Pass(), "cannot be read by orch, and runs")
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                file.own.add(node.name)
            for name, dotted in source.names_of(node).items():
                if self._is_own(dotted):
                    file.own.add(name)
                if file.names.get(name, "").partition(".")[0] not in allowed.GUARDED_MODULES:
                    file.names[name] = dotted
        return self._block(source.tree.body, file)

    def _is_own(self, dotted: str) -> bool:
        """A module of the command's own, a name in it, or a module that orch does not know."""
        top = dotted.partition(".")[0]
        return top not in TENSORFLOW | self.known | sys.stdlib_module_names or self.tree.is_local(top)

    def _is_own_value(self, dotted: str) -> bool:
        """A variable of one of the command's modules that has been read: not a function, a class or a module."""
        module, _, name = dotted.rpartition(".")
        file = self._files.get(module)
        is_module = self.tree.find(dotted) is not None
        return not (
            file is None or is_module or name in file.own or name in file.names or name.startswith("__")
        )

    def _block(self, body: Iterable[ast.stmt], file: _File) -> bool:
        return any(self._statement(statement, file) for statement in body)

    def _statement(self, statement: ast.stmt, file: _File) -> bool:
        match statement:
            case ast.Import(names=names):
                return any(self._import(alias.name, (), statement, file) for alias in names)
            case ast.ImportFrom(level=level, module=module, names=names):
                origin = file.source.absolute("." * level + (module or "")) or ""
                taken = [alias.name for alias in names]
                imported = bool(origin) and self._import(origin, taken, statement, file)
                if (
                    "*" in taken
                    and not imported
                    and (self._is_own(origin) or origin in allowed.GUARDED_MODULES)
                ):
                    file.refuse(statement, f"imports all names of {origin}")
                return imported
            case ast.If(test=test, body=body, orelse=orelse):
                if ast.unparse(test) == "__name__ == '__main__'":
                    return self._block(body if file.source is self.start else orelse, file)
                if called_name(test) == "TYPE_CHECKING":
                    return self._block(orelse, file)
                self._expression(test, statement, file)
                return all([self._block(body, file), self._block(orelse, file)])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                if isinstance(body[0], ast.Import | ast.ImportFrom) and self._statement(body[0], file):
                    return True
                others = [handler for handler in handlers if not _ends_program(handler)]
                if self._block(body, file) and not others:
                    return True
                for handler in others:
                    self._block(handler.body, file)
                return self._block([*orelse, *finalbody], file)
            case ast.With(items=items, body=body):
                for item in items:
                    self._expression(item, statement, file)
                suppresses = any(called_name(item.context_expr) == "suppress" for item in items)
                return self._block(body, file) and not suppresses
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = filter(None, [*statement.args.defaults, *statement.args.kw_defaults])
                for expression in (*statement.decorator_list, *defaults):
                    self._expression(expression, statement, file)
                return False
        if file.source is self.start and self._keep_constant(statement, file):
            return False
        self._children(statement, file)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if path := self._path(value, file):
                file.paths[name] = path
        return False

    def _import(self, name: str, taken: Sequence[str], node: ast.AST, file: _File) -> bool:
        top = name.partition(".")[0]
        if self.tree.is_local(name, taken):
            items = (self.tree.module(f"{name}.{item}") for item in taken)
            return any(self._module(source) for source in (*self.tree.chain(name), *filter(None, items)))
        if top in self.until:
            self.first = top
            return True
        if self._is_own(top):
            file.refuse(node, f"imports {top}, which may do anything when it is imported,")
        return False

    def _children(self, node: ast.AST, file: _File) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self._statement(part, file)
            else:
                self._expression(part, node, file)

    def _expression(self, node: ast.AST, parent: ast.AST, file: _File) -> None:
        match node:
            case ast.Call(args=args, keywords=keywords) if self._is_allowed_call(node, file):
                for part in (*args, *keywords):
                    self._expression(part, node, file)
                return
            case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del() as ctx):
                if file.dotted(value) == "os.environ":
                    self._check_write("deletes" if isinstance(ctx, ast.Del) else "sets", key, file)
                    self._expression(key, node, file)
                    return
            case ast.Name(id=name):
                if not isinstance(node.ctx, ast.Load):
                    file.paths.pop(name, None)
                is_vars_of = name == "vars" and isinstance(parent, ast.Call) and parent.args
                if name in allowed.FORBIDDEN_BUILTINS and not is_vars_of:
                    file.refuse(node, f"uses {name}, which can run anything,")
                whole = file.dotted(parent) if isinstance(parent, ast.Attribute) else file.dotted(node)
                if name in file.own and not self._is_own_value(whole):
                    file.refuse(node, f"uses {whole or name}, which orch does not follow,")
                self._check_dotted(node, parent, file)
            case ast.Attribute():
                self._check_dotted(node, parent, file)
        self._children(node, file)

    def _check_dotted(self, node: ast.Name | ast.Attribute, parent: ast.AST, file: _File) -> None:
        dotted = file.dotted(node)
        if not dotted or isinstance(parent, ast.Attribute):
            return  # part of a longer name
        module, _, name = dotted.partition(".")
        container, method = ".".join(dotted.split(".")[:2]), name.partition(".")[2]
        names = allowed.GUARDED_MODULES.get(module)
        is_guarded = names is not None and not {name, name.partition(".")[0]} & names
        if container in allowed.CONTAINERS:
            if not method and not self._is_read(node, parent, file):
                file.refuse(node, f"changes {container}, or passes it on,")
            if method and method not in allowed.READING_METHODS:
                file.refuse(node, f"uses {dotted}")
        elif names is not None and not isinstance(node.ctx, ast.Load):
            file.refuse(node, f"replaces {dotted}")
        elif dotted == "sys.modules" and isinstance(parent, ast.Compare):
            return
        elif is_guarded or dotted in allowed.FORBIDDEN_NAMES:
            file.refuse(node, f"uses {dotted}")

    def _is_read(self, node: ast.AST, parent: ast.AST, file: _File) -> bool:
        match parent:
            case ast.Subscript(ctx=ast.Load()) | ast.keyword(arg=None):
                return True
            case ast.Dict(keys=keys, values=values):
                return any(key is None and value is node for key, value in zip(keys, values, strict=True))
            case ast.Call(func=func):
                return (file.dotted(func) or called_name(func)) in allowed.READING_FUNCTIONS
            case ast.For(iter=iterated):
                return iterated is node
        return isinstance(parent, _READING)

    def _is_allowed_call(self, call: ast.Call, file: _File) -> bool:
        """Whether a function that is not allowed as such is allowed with these arguments."""
        first = call.args[0] if call.args else None
        text = constant_text(first)
        match file.dotted(call.func):
            case "os.environ.pop" | "os.environ.setdefault" as dotted if first:
                self._check_write("removes" if dotted.endswith("pop") else "sets", first, file)
                return True
            case "sys.path.insert" | "sys.path.append" as dotted if first:
                path = self._path(call.args[-1], file)
                if path is None:
                    return False
                self.tree.add_root(Path(path), first=dotted == "sys.path.insert")
                return True
            case "importlib.import_module" if text:
                self._import(text, (), call, file)
                return True
            case "logging.getLogger":
                # A logger of the script's own, which TensorFlow's import does not use.
                top = text.partition(".")[0] if text else "root"
                return top not in allowed.IMPORT_LOGGERS or called_name(first) == "__name__"
            case "warnings.filterwarnings" | "warnings.simplefilter":
                action = next((each.value for each in call.keywords if each.arg == "action"), first)
                return constant_text(action) == "ignore"
        match call.func:
            # The level of a named logger does not change where messages go.
            case ast.Attribute(
                value=ast.Call(func=inner, args=[ast.Constant(value=str(name))]), attr="setLevel"
            ):
                return file.dotted(inner) == "logging.getLogger" and name not in ("", "root")
        return False

    def _check_write(self, verb: str, key: ast.expr, file: _File) -> None:
        """Refuse a write to os.environ, except of variables that TensorFlow's import does not read."""
        name = constant_text(key)
        if name is None or not name.startswith(allowed.READ_LATE):
            file.refuse(key, f"{verb} {name or 'a variable'}")

    def _keep_constant(self, statement: ast.stmt, file: _File) -> bool:
        """Note `os.environ["TF_X"] = "1"`, or the same by `setdefault`, at the top level of the script."""
        only_if_unset = isinstance(statement, ast.Expr)
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=holder, slice=key)], value=value):
                pass
            case ast.Expr(ast.Call(func=ast.Attribute(attr="setdefault", value=holder), args=[key, value])):
                pass
            case _:
                return False
        name, text = constant_text(key) or "", constant_text(value)
        is_other = name.startswith(allowed.READ_LATE) or (name == "KERAS_BACKEND" and text != "tensorflow")
        if file.dotted(holder) != "os.environ" or text is None or is_other:
            return False
        if not name.startswith(allowed.TENSORFLOWS_OWN) or statement not in file.source.tree.body:  # type: ignore[union-attr]
            return False
        if not (only_if_unset and (name in self.environ or name in self.constants)):
            self.constants[name] = text
        return True

    def _path(self, node: ast.expr, file: _File) -> str | None:
        """The path that `Path(__file__).parent / "lib"` and the like give; None if only the run shows it."""
        parts: list[ast.expr]
        match node:
            case ast.Constant(value=str(text)) if "\0" not in text:
                return text
            case ast.Name(id=variable):
                return str(file.source.path) if variable == "__file__" else file.paths.get(variable)
            case ast.Attribute(attr="pardir"):
                return ".."
            case ast.Call(func=ast.Attribute(attr="getcwd" | "cwd"), args=[]):
                return str(self.tree.cwd)
            case ast.Attribute(attr="parent", value=value):
                name, parts = "dirname", [value]
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                name, parts = "join", [left, right]
            case ast.Call(func=ast.Attribute(value=value, attr="resolve" | "absolute"), args=[]):
                name, parts = "abspath", [value]
            case ast.Call(func=func, args=[_, *_] as parts, keywords=[]):
                name = called_name(func)
            case _:
                return None
        texts = [folded for part in parts if (folded := self._path(part, file)) is not None]
        if len(texts) < len(parts):
            return None
        match name:
            case "join":
                return str(Path(*texts))
            case "dirname":
                return os.path.dirname(texts[0])  # noqa: PTH120 - what the script does
            case "abspath" | "realpath" | "normpath":
                return os.path.normpath(self.tree.cwd / texts[0])
            case "str" | "fspath" | "Path" | "PurePath":
                return texts[0]
        return None


def _ends_program(handler: ast.ExceptHandler) -> bool:
    """It handles Ctrl-C, raises, or exits: nothing is imported after it."""
    match handler:
        case (
            ast.ExceptHandler(type=ast.Name(id="KeyboardInterrupt"))
            | ast.ExceptHandler(body=[*_, ast.Raise()])
        ):
            return True
        case ast.ExceptHandler(body=[*_, ast.Expr(ast.Call(func=func))]):
            return called_name(func) in ("exit", "_exit")
    return False
