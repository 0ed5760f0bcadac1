"""Fork or spawn: whether a command's tasks can start with TensorFlow imported and behave the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core.job.choices import StartOption
from orchestrator.core.job.start_method import StartMethod
from orchestrator.host.shadowing import find_shadow
from orchestrator.request.command.allowed_names import HARMLESS
from orchestrator.request.command.before_import import BeforeImport
from orchestrator.request.command.program import Program, PythonLine
from orchestrator.request.command.source_tree import TENSORFLOW, Source, SourceTree, TooLarge

# Interpreter options with which a preloader behaves the same. Others change how modules are imported.
_HARMLESS_OPTIONS = frozenset("uPBOsqbR")
_HARMLESS_X = ("utf8", "frozen_modules", "no_debug_ranges", "int_max_str_digits", "warn_default_encoding")
# With these an import prints, or is measured. In the preloader it would do so elsewhere than in the task.
_IMPORT_VARIABLES = frozenset(
    {"PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME", "PYTHONINSPECT", "PYTHONDEVMODE", "PYTHONTRACEMALLOC"}
)


def choose_start(
    program: Program | None,
    environ: Mapping[str, str],
    asked: StartOption,
    preload: Sequence[str],
    legacy: bool,
) -> StartMethod:
    """How the tasks of a command are started, and why. In doubt they are spawned.

    `program`: None if it is not a Python program. `environ`: the tasks' environment. `preload`: modules that the user
    calls harmless. `legacy`: whether tf.keras is tf_keras.
    """
    if asked is StartOption.SPAWN:
        return spawned("--start spawn asks for it")
    if program is None:
        return spawned("it is not a Python program")
    if program.start is None:
        module = program.line.target.module
        return spawned(f"the source of {module} is not in this directory" if module else "it is not a script")
    if setting := import_setting(program.line, environ):
        return spawned(f"{setting} changes how modules are imported")
    try:
        return _by_source(program, program.start, environ, preload, legacy)
    except TooLarge:
        return spawned("its source is more than orch reads before a start")


def spawned(reason: str) -> StartMethod:
    return StartMethod(fork=False, reason=reason)


def _by_source(
    program: Program, start: Source, environ: Mapping[str, str], preload: Sequence[str], legacy: bool
) -> StartMethod:
    tree, roots = program.tree, program.tree.roots
    has_tensorflow = tree.imports_tensorflow(start)
    if not has_tensorflow and not preload:
        return spawned("it does not import tensorflow, so a fork would not be faster")
    goal = "tensorflow" if has_tensorflow else ", ".join(preload)
    tops = frozenset(name.partition(".")[0] for name in preload)
    if shadow := find_shadow([program.first] if program.first else [], tops):
        return spawned(f"{shadow} takes the place of a module that TensorFlow imports")
    before = BeforeImport(tree, start, environ, HARMLESS | tops, TENSORFLOW if has_tensorflow else tops)
    if before.obstacle:
        return spawned(f"{before.obstacle} before it imports {goal}")
    if shadow := find_shadow([root for root in tree.roots if root not in roots], tops):
        return spawned(f"{shadow} takes the place of a module that TensorFlow imports")
    modules = _modules(tree, start, before, environ, legacy) if has_tensorflow else []
    return StartMethod(
        fork=True,
        reason=f'nothing before "import {goal}" prevents it',
        modules=tuple(dict.fromkeys((*modules, *preload))),
        preload_env=tuple(before.constants.items()),
    )


def _modules(
    tree: SourceTree, start: Source, before: BeforeImport, environ: Mapping[str, str], legacy: bool
) -> list[str]:
    """The modules to preload, in the order of their first use."""
    # The word anywhere is enough: a Keras preloaded for nothing costs a second, once.
    uses_keras = any(b"keras" in source.text for source in tree.reachable(start))
    return tensorflow_modules({**environ, **before.constants}, legacy, uses_keras, before.first)


def tensorflow_modules(
    seen: Mapping[str, str], legacy: bool, uses_keras: bool, first: str | None = None
) -> list[str]:
    """`seen`: the environment during the imports. `first`: the one of them that is imported first."""
    keras = "tf_keras" if legacy or seen.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") else "keras"
    other_backend = seen.get("KERAS_BACKEND", "tensorflow") != "tensorflow"
    modules = ["tensorflow"] if other_backend else [first or "tensorflow", "tensorflow"]
    return [*modules, keras] if uses_keras and not (keras == "keras" and other_backend) else modules


def import_setting(line: PythonLine, environ: Mapping[str, str]) -> str | None:
    """The option or variable that changes how modules are imported."""
    for option in (
        *line.long_options,
        *(f"-{letter}" for letter in sorted(line.letters - _HARMLESS_OPTIONS)),
    ):
        return f"Python's option {option}"
    for letter, value in line.values:
        if not (value.startswith("ignore") if letter == "W" else value.startswith(_HARMLESS_X)):
            return f"Python's option -{letter} {value}"
    for name in sorted(_IMPORT_VARIABLES):
        if environ.get(name):
            return name
    filters = environ.get("PYTHONWARNINGS", "").split(",")
    is_loud = any(part and not part.strip().startswith("ignore") for part in filters)
    return "PYTHONWARNINGS" if is_loud else None
