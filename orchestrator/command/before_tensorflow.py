"""What a command does before it imports TensorFlow, followed through its source in the order it would run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.command.environment_writes import (
    EnvironmentWrite,
    EnvironNames,
    constant_write,
    environment_write,
)
from orchestrator.command.known_modules import HARMLESS, TENSORFLOW
from orchestrator.command.path_expressions import folded_path
from orchestrator.command.source_tree import Source, SourceTree, absolute_module

# Set before the strategy is made, by scripts that make their own cluster; no import looks at it.
_READ_LATE = frozenset({"TF_CONFIG"})
# Read by TensorFlow and what it brings alone, so that what else is imported before need not be looked at.
_TENSORFLOWS_OWN = ("TF_", "CUDA_", "XLA_", "GRPC_", "NVIDIA_", "NCCL_", "TPU_", "KERAS_", "ABSL_")
_STARTS_OTHERS = frozenset(
    [
        "Thread", "Timer", "Process", "Pool", "ThreadPool", "ThreadPoolExecutor", "ProcessPoolExecutor",
        "start_new_thread", "fork", "forkpty", "posix_spawn",
    ]
)  # fmt: skip
_UNREADABLE_CALLS = frozenset(
    {"exec", "eval", "__import__", "run_path", "run_module", "exec_module", "reload"}
)
_INTERPRETER_STATE = frozenset({"modules", "meta_path", "path_hooks"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Hazard:
    """Something a preloaded TensorFlow would not see, or see too late: `what` continues "train.py line 3"."""

    source: Source
    line: int
    what: str

    def __str__(self) -> str:
        place = "the code after -c" if self.source.shown == "-c" else self.source.shown
        return f"{place} line {self.line} {self.what}"


@dataclass
class Prelude:
    """`hazards` in the order they would come; `constants` are the variables set to plain texts meanwhile; `first`
    is the module by which TensorFlow comes in, None where that cannot be told."""

    hazards: list[Hazard] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    first: str | None = None


def read_prelude(
    tree: SourceTree,
    start: Source,
    environ: Mapping[str, str],
    vouched: Iterable[str],
    until: frozenset[str] = TENSORFLOW,
) -> Prelude:
    """What `start` does until it imports one of `until`. Where that cannot be told, it counts as done before."""
    walk = _Walk(tree, start, environ, frozenset(vouched) | HARMLESS, until)
    try:
        if not any(walk.module(source) for source in (*tree.before(start), start)):
            walk.what_may_be_called()
    except RecursionError:
        walk.prelude.hazards.append(Hazard(start, 1, "is nested too deeply to be read, and it is run"))
    return walk.prelude


@dataclass
class _Scope:
    """One file while it is followed."""

    source: Source
    environ: EnvironNames = field(default_factory=EnvironNames)
    paths: dict[str, Path] = field(default_factory=dict)


class _Walk:
    def __init__(
        self,
        tree: SourceTree,
        start: Source,
        environ: Mapping[str, str],
        known: frozenset[str],
        until: frozenset[str],
    ) -> None:
        self.prelude = Prelude()
        self._tree = tree
        self._start = start
        self._environ = environ
        self._known = known
        self._until = until
        self._entered: set[Path] = set()
        self._functions: dict[str, list[tuple[_Scope, _Function | ast.ClassDef]]] = {}
        self._called: dict[int, bool] = {}

    def module(self, source: Source) -> bool:
        """Follow a file as it is imported; True once TensorFlow surely is."""
        if source.path in self._entered:
            return False
        self._entered.add(source.path)
        if source.tree is None:
            self._hazard(source, 1, "is no source that orch can read, and it is run")
            return False
        scope = _Scope(source)
        self._register(source.tree.body, scope)
        return self._statements(source.tree.body, scope, sure=True)

    def what_may_be_called(self) -> None:
        """TensorFlow is imported in some function, if at all: any other may have been called before."""
        for found in list(self._functions.values()):
            for scope, definition in found:
                self._call(scope, definition)

    def _register(self, body: Iterable[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(statement.name, []).append((scope, statement))
            elif isinstance(statement, ast.ClassDef):
                self._functions.setdefault(statement.name, []).append((scope, statement))
                self._register(statement.body, scope)
            else:
                for inner in _blocks(statement):
                    self._register(inner, scope)

    def _statements(self, body: Iterable[ast.stmt], scope: _Scope, *, sure: bool) -> bool:
        return any(self._statement(statement, scope, sure) for statement in body)

    def _statement(self, statement: ast.stmt, scope: _Scope, sure: bool) -> bool:
        match statement:
            case ast.Import(names=names):
                # A list: every name is imported, also those after TensorFlow's; only the first matters here.
                return any(self._import(alias.name, (), statement, scope, sure) for alias in names)
            case ast.ImportFrom():
                scope.environ.imported(statement)
                origin = absolute_module(
                    "." * statement.level + (statement.module or ""), scope.source.package
                )
                taken = [alias.name for alias in statement.names]
                return origin is not None and self._import(origin, taken, statement, scope, sure)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branches(test, body, orelse, scope, sure)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._definition(statement, scope, sure)
            case (
                ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody)
                | ast.TryStar(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody)
            ):
                if self._statements(body, scope, sure=sure):
                    return True
                for handler in handlers:
                    self._statements(handler.body, scope, sure=False)
                return self._statements([*orelse, *finalbody], scope, sure=sure)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                if any(self._expression(item.context_expr, item, scope, sure) for item in items):
                    return True
                return self._statements(body, scope, sure=sure)
            case ast.For() | ast.AsyncFor() | ast.While() | ast.Match():
                for part in ast.iter_child_nodes(statement):
                    if isinstance(part, ast.expr):
                        self._expression(part, statement, scope, False)
                for block in _blocks(statement):
                    self._statements(block, scope, sure=False)
                return False
            case _:
                return self._plain(statement, scope, sure)

    def _branches(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], scope: _Scope, sure: bool
    ) -> bool:
        if _names(test) == {"TYPE_CHECKING"}:
            return self._statements(orelse, scope, sure=sure)
        if _is_main_test(test):
            chosen = body if scope.source is self._start else orelse
            return self._statements(chosen, scope, sure=sure)
        if self._expression(test, None, scope, sure):
            return True
        first = self._statements(body, scope, sure=False)
        return self._statements(orelse, scope, sure=False) and first

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: _Scope, sure: bool
    ) -> bool:
        for decorator in node.decorator_list:
            self._expression(decorator, None, scope, False)
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *(keyword.value for keyword in node.keywords)):
                self._expression(base, None, scope, False)
            return self._statements(node.body, scope, sure=sure)
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value)):
            self._expression(default, None, scope, False)
        return False

    def _plain(self, statement: ast.stmt, scope: _Scope, sure: bool) -> bool:
        """A simple statement: its own words, then a write of a constant or of sys.path, which can be kept."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if folded := self._folded(value, scope):
                    scope.paths[name] = folded
            case ast.Expr(value=ast.Call() as call) if _is_sys_path_change(call):
                self._sys_path(call, scope)
                return False
        if sure and scope.source is self._start and self._constants(statement, scope):
            return False
        done = False
        for part in ast.iter_child_nodes(statement):
            done = self._expression(part, statement, scope, sure) or done
        return done

    def _constants(self, statement: ast.stmt, scope: _Scope) -> bool:
        if statement not in scope.source.tree.body:  # type: ignore[union-attr]
            return False
        found = False
        for name, value, only_if_unset in constant_write(statement, scope.environ):
            if not name.startswith(_TENSORFLOWS_OWN) or name in _READ_LATE:
                return False
            if name == "KERAS_BACKEND" and value != "tensorflow":
                return False
            if not (only_if_unset and (name in self._environ or name in self.prelude.constants)):
                self.prelude.constants[name] = value
            found = True
        return found

    def _import(self, name: str, taken: Iterable[str], node: ast.stmt, scope: _Scope, sure: bool) -> bool:
        top = name.partition(".")[0]
        if self._tree.is_local(top):
            done = [self.module(source) for source in self._tree.chain(name)]
            done += [
                self.module(source)
                for item in taken
                if (source := self._tree.module(f"{name}.{item}")) is not None
            ]
            return sure and any(done)
        if top in self._until:
            if sure:
                self.prelude.first = top
            return True
        if top in TENSORFLOW or top in self._known or top in sys.stdlib_module_names or not top:
            return False
        self._hazard(scope.source, node.lineno, f"imports {top}, which may do anything when it is imported,")
        return False

    def _expression(self, node: ast.AST, parent: ast.AST | None, scope: _Scope, sure: bool) -> bool:
        """Look at all of an expression; True if calling one of the command's own functions imports TensorFlow."""
        if write := environment_write(node, parent, scope.environ):
            self._write(write, node, scope)
        done = False
        match node:
            case ast.Lambda() | ast.IfExp() | ast.BoolOp() | ast.comprehension() | ast.GeneratorExp():
                sure = False
            case ast.Call(func=func, args=args):
                self._suspicious(node, func, args, scope)
            case ast.Attribute(value=ast.Name(id="sys"), attr=attr) if attr in _INTERPRETER_STATE:
                if not _only_looks(parent):
                    self._hazard(scope.source, node.lineno, f"reaches into sys.{attr}")
            case ast.Attribute(value=ast.Name(id="sys"), attr="path", ctx=ast.Store() | ast.Del()):
                self._hazard(scope.source, node.lineno, "changes sys.path")
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), ctx=ast.Store() | ast.Del()
            ):
                self._hazard(scope.source, node.lineno, "changes sys.path")
        for part in ast.iter_child_nodes(node):
            done = self._expression(part, node, scope, sure) or done
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in self._functions:
            found = self._functions[name]
            results = [self._call(*entry) for entry in found]
            is_called = isinstance(parent, ast.Call) and parent.func is node
            if sure and is_called and len(found) == 1 and isinstance(node, ast.Name):
                done = results[0] or done
        return done and sure

    def _call(self, scope: _Scope, definition: _Function | ast.ClassDef) -> bool:
        """The body of a function (all methods of a class), once."""
        key = id(definition)
        if key not in self._called:
            self._called[key] = False
            if isinstance(definition, ast.ClassDef):
                for method in definition.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        self._call(scope, method)
            elif not isinstance(definition, ast.Lambda):
                self._register(definition.body, scope)
                self._called[key] = self._statements(definition.body, scope, sure=True)
        return self._called[key]

    def _suspicious(self, node: ast.Call, func: ast.expr, args: list[ast.expr], scope: _Scope) -> None:
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if name == "import_module" or name == "__import__":
            if args and isinstance(args[0], ast.Constant) and isinstance(args[0].value, str):
                self._import(args[0].value, (), ast.Expr(node, lineno=node.lineno), scope, False)
            else:
                self._hazard(scope.source, node.lineno, "imports a module whose name only the run shows")
        elif name in _UNREADABLE_CALLS and (isinstance(func, ast.Name) or name.startswith(("run_", "exec_"))):
            self._hazard(scope.source, node.lineno, f"calls {name}, which may run anything,")
        elif name in _STARTS_OTHERS:
            self._hazard(scope.source, node.lineno, f"may start a thread or a process ({name})")
        elif name == "sched_setaffinity":
            self._hazard(scope.source, node.lineno, "chooses its CPUs")
        elif _is_sys_path_change(node) or name == "addsitedir":
            self._sys_path(node, scope)

    def _sys_path(self, call: ast.Call, scope: _Scope) -> None:
        """`sys.path.insert(0, X)` and `append(X)` add a directory of the command's own, if X can be told."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        wanted = {"insert": 2, "append": 1}.get(name)
        folded = self._folded(call.args[-1], scope) if wanted == len(call.args) else None
        if folded is None:
            self._hazard(scope.source, call.lineno, "changes sys.path")
        else:
            self._tree.add_root(folded, first=name == "insert")

    def _folded(self, node: ast.expr, scope: _Scope) -> Path | None:
        return folded_path(node, scope.source.path, self._tree.cwd, scope.paths)

    def _write(self, write: EnvironmentWrite, node: ast.AST, scope: _Scope) -> None:
        if write.name not in _READ_LATE:
            self._hazard(scope.source, getattr(node, "lineno", 1), write.what)

    def _hazard(self, source: Source, line: int, what: str) -> None:
        self.prelude.hazards.append(Hazard(source, line, what))


def _blocks(statement: ast.stmt) -> Iterable[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield handler.body


def _is_main_test(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
        ):
            return True
    return False


def _only_looks(parent: ast.AST | None) -> bool:
    match parent:
        case ast.Compare() | ast.Subscript(ctx=ast.Load()) | ast.Attribute(attr="get" | "keys" | "copy"):
            return True
    return False


def _names(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.attr} if isinstance(node, ast.Attribute) else set()


def _is_sys_path_change(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), attr=attr):
            return attr in ("insert", "append", "extend", "remove", "pop", "clear", "reverse", "sort")
    return False
