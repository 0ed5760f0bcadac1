"""Turn the words after `--` into a Command: which program they name, how to start it, which Keras it gets."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import KerasOption, StartOption, Strategy
from orchestrator.core.job.spec import Command, CommandKind
from orchestrator.host import programs
from orchestrator.host.installed import ASSUMED, Installed, has_tensorflow, installed_for, is_own
from orchestrator.request.command.examples import LOOPS, PARAMETER_SERVER_FIT, example_of, examples_directory
from orchestrator.request.command.keras_choice import choose_keras
from orchestrator.request.command.program import Program, find_program, python_line
from orchestrator.request.command.start_choice import choose_start

# Modules of Python that run a program which they are given.
_RUNNERS = frozenset({"cProfile", "doctest", "pdb", "profile", "runpy", "timeit", "trace", "unittest"})


@dataclass(frozen=True)
class CommandPlace:
    """Where a command is looked up: the tasks' working directory and environment.

    `may_start` says which interpreters may be started to ask them for their packages.
    """

    cwd: Path
    environ: Mapping[str, str]
    may_start: Callable[[str], bool] = lambda python: True

    @property
    def path(self) -> str:
        return self.environ.get("PATH") or os.defpath

    def installed(self, python: str) -> Installed | None:
        """The packages of an interpreter; those of one that may not be started are assumed."""
        return installed_for(python, self.environ) if self.asks(python) else ASSUMED

    def asks(self, python: str) -> bool:
        return is_own(python) or self.may_start(python)


@dataclass(frozen=True)
class CommandOptions:
    """The user's options about the command. `preload`: modules to import before forking. `strategy`: of the example."""

    start: StartOption = StartOption.AUTO
    preload: tuple[str, ...] = ()
    keras: KerasOption = KerasOption.AUTO
    strategy: Strategy | None = None


def resolve_command(
    words: Sequence[str], place: CommandPlace, options: CommandOptions | None = None
) -> Command:
    """Find the program that `words` name. UsageError says what was looked for, where, and what to do.

    * `train.py ...` runs under the user's Python: that of the active virtual environment, else orch's own if it has
      TensorFlow, else the first `python3` or `python` on PATH.
    * `-m pkg.mod ...` is a module, under the same Python.
    * Anything else is an executable: a path, relative to the working directory, or a name on PATH. If its first line
      names a Python, that Python runs it.
    * No words, or words that begin with `-`: the example of the strategy and its options, under orch's own Python.
    """
    options = options or CommandOptions()
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        return _example(words, place, options)
    first, *rest = words
    if first == "-m" or first.endswith(".py"):
        if first != "-m":
            programs.require_file(first, place.cwd, "script")
        elif not rest:
            raise UsageError("-m needs the name of a module: -m pkg.mod")
        kind = CommandKind.MODULE if first == "-m" else CommandKind.SCRIPT
        argv = (programs.user_python(place.environ, place.path), *words)
        return _python_command(kind, words, argv, place, options)
    program = programs.find_executable(first, place.cwd, place.path)
    if programs.PYTHON.match(Path(first).name):
        line = python_line(rest)
        if line.reads_stdin:
            raise UsageError(
                f"{' '.join(words)}: Python would read the program from standard input, which is empty for tasks;"
                f" {programs.SAVE_PROGRAM}"
            )
        target = line.target
        if target.script is not None:
            programs.require_script(target.script, place.cwd)
        kinds = ((target.script, CommandKind.SCRIPT), (target.module, CommandKind.MODULE))
        kind = next((kind for word, kind in kinds if word is not None), CommandKind.EXECUTABLE)
        return _python_command(kind, words, (program, *rest), place, options)
    if python := programs.shebang_python(Path(program), place.path):
        return _python_command(CommandKind.EXECUTABLE, words, (*python, program, *rest), place, options)
    programs.require_interpreter(Path(program), place.cwd)
    if options.keras is KerasOption.LEGACY:
        raise UsageError("--keras legacy: the command is not a Python program")
    start = choose_start(None, place.environ, options.start, options.preload, legacy=False)
    argv = (program, *rest)
    return Command(kind=CommandKind.EXECUTABLE, words=tuple(words), argv=argv, serves=False, start=start)


def _example(words: Sequence[str], place: CommandPlace, options: CommandOptions) -> Command:
    if not has_tensorflow():
        raise UsageError(
            f"the examples need TensorFlow, which orch's Python ({sys.executable}) does not have:"
            " pip install 'tf-orch[tensorflow]', or name a program: -- train.py"
        )
    loop, rest = _loop_of(words)
    script = example_of(options.strategy, loop)
    if script == PARAMETER_SERVER_FIT and options.keras is KerasOption.AUTO:
        options = replace(options, keras=KerasOption.LEGACY)  # Keras 3 does not support it
    argv = (sys.executable, str(examples_directory() / script), *rest)
    return _python_command(CommandKind.EXAMPLE, words, argv, place, options)


def _loop_of(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of --loop, None without it, and the other words."""
    parser = argparse.ArgumentParser(
        prog="orch up --", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    parser.add_argument("--loop", choices=LOOPS)
    try:
        found, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error.argument_name}: {error.message}") from error
    return found.loop, rest


def _python_command(
    kind: CommandKind,
    words: Sequence[str],
    argv: tuple[str, ...],
    place: CommandPlace,
    options: CommandOptions,
) -> Command:
    python, environ = argv[0], place.environ
    program = find_program(argv[1:], place.cwd, environ)
    keras = choose_keras(program, python, environ, options.keras, lambda: place.installed(python), argv[1:])
    notes = [keras.note] if keras.note else []
    if keras.legacy and not place.asks(python):
        notes.append(not_asked_note(python, "tf_keras"))
    return Command(
        kind=kind,
        words=tuple(words),
        argv=argv,
        serves=_serves(program),
        interpreter=(python, *program.line.options),
        start=choose_start(program, environ, options.start, options.preload, keras.legacy),
        legacy_keras=keras.legacy,
        notes=tuple(notes),
    )


def not_asked_note(python: str, package: str) -> str:
    return f"{python} may lack {package}: orch started no interpreter that is not on your PATH"


def _serves(program: Program) -> bool:
    """Whether tasks are expected to open TensorFlow's port.

    A script too large to be read counts, and an installed module, unless it is one of Python's that runs no program.
    """
    if program.start is None:
        module = program.line.target.module
        if module is None:
            return program.line.target.script is not None
        return module.partition(".")[0] not in sys.stdlib_module_names - _RUNNERS
    return program.tree.imports_tensorflow(program.start)


def program_directory(command: Command, cwd: Path) -> Path:
    """The directory that a Python program has first on its path: that of its script, else the working directory."""
    words = command.argv[len(command.interpreter) :]
    script = (cwd / words[0]).resolve() if words else cwd
    if not words or words[0].startswith("-") or not script.exists():
        return cwd
    return script if script.is_dir() else script.parent
