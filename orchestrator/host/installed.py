"""The packages of an interpreter: TensorFlow, Keras, tf_keras and TensorBoard, found without importing them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.core.job.spec import Command
from orchestrator.core.job.tensorboard import TensorBoard

TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-rocm")
TESTED_TENSORFLOW = ((2, 20), (2, 21))
_TENSORBOARD = "programs/serve_tensorboard.py"
# A Python answers in 0.05 s; another program may never exit.
_PATIENCE_S = 10.0
_KERAS = ("keras", "keras-nightly")
_DISTRIBUTIONS = (*TENSORFLOW_DISTRIBUTIONS, *_KERAS, "tf_keras", "numpy", "nvidia-cudnn-cu12")
_MODULES = ("tensorflow", "keras", "tf_keras", "tensorboard")
# Runs on Python 3.8 and newer, under -I: no module of the current directory or PYTHONPATH is imported. The tasks use
# PYTHONPATH and the user's site, too, so packages are looked up there.
_PROGRAM = """
import json, site, sys
from importlib import machinery, metadata, util
if sys.prefix == sys.base_prefix and not sys.flags.no_site:
    site.addsitedir(site.getusersitepackages())
places = sys.argv[2:] + sys.path

def version(name):
    try:
        return next(iter(metadata.distributions(name=name, path=places))).version
    except Exception:
        return None

def can_import(name):
    try:
        found = machinery.PathFinder.find_spec(name, places) or util.find_spec(name)
    except Exception:
        return False
    return found is not None and found.origin is not None

question = json.loads(sys.argv[1])
print("\\n" + json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "versions": {name: found for name in question["distributions"] for found in [version(name)] if found},
    "modules": [name for name in question["modules"] if can_import(name)],
}))
"""
_QUESTION = json.dumps({"distributions": _DISTRIBUTIONS, "modules": _MODULES})


@dataclass(frozen=True)
class Interpreter:
    """The Python of the tasks, or the `error` that kept it from answering.

    `versions` by distribution; `modules`: those of tensorflow, keras, tf_keras and tensorboard that can be imported.
    `fault_in`: what kept it from answering, if not the program itself. `was_asked`: False if it was not started,
    because it may be any program.
    """

    path: str
    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    error: str | None = None
    fault_in: str = ""
    was_asked: bool = True

    @property
    def tensorflow(self) -> str | None:
        return self._version(TENSORFLOW_DISTRIBUTIONS)

    @property
    def tensorflow_warning(self) -> str | None:
        """Set if orch was not tested with this version of TensorFlow."""
        return None if self.tensorflow is None else version_warning(self.tensorflow)

    @property
    def keras(self) -> str | None:
        return self._version(_KERAS)

    @property
    def tf_keras(self) -> str | None:
        return self.versions.get("tf_keras")

    def _version(self, names: Sequence[str]) -> str | None:
        return next((self.versions[name] for name in names if name in self.versions), None)


def version_pair(version: str) -> tuple[int, int]:
    """(3, 15) for 3.15.1; (0, 0) for a text without such numbers."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def ask_interpreter(
    python: Sequence[str], environ: Mapping[str, str], directory: Path, patience_s: float = _PATIENCE_S
) -> Interpreter:
    """Ask `python` (the program and its own options) in `directory`. Never raises: `error` says what failed.

    `environ` is the tasks'. Only its PYTHONPATH counts: other variables of it could make the interpreter run code.
    """
    try:
        done = subprocess.run(
            question_words(python, environ, directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience_s,
            check=False,
        )
    except OSError as error:
        why = error.strerror or str(error)
        # Popen names the directory if it was not the program that failed.
        is_directory = str(error.filename) == str(directory)
        return Interpreter(
            python[0], error=why, fault_in=f"the directory {directory}" if is_directory else ""
        )
    except subprocess.TimeoutExpired:
        return Interpreter(python[0], error=f"no answer within {patience_s:g} s")
    out, errors = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
    return interpreter_of(python[0], done.returncode, out, errors)


def question_words(python: Sequence[str], environ: Mapping[str, str], directory: Path) -> list[str]:
    """The command that asks an interpreter, here or on another host."""
    search = "" if {"-E", "-I"} & set(python) else environ.get("PYTHONPATH", "")
    places = [str(directory / place) for place in search.split(os.pathsep) if place]
    return [*python, "-I", "-c", _PROGRAM, _QUESTION, *places]


def interpreter_of(path: str, exit_code: int, out: str, errors: str) -> Interpreter:
    """Read what question_words() printed."""
    try:
        # The last line: a sitecustomize may print something before it.
        found: dict[str, Any] = json.loads(out.rstrip().rpartition("\n")[2])
        return Interpreter(
            path,
            version=str(found["version"]),
            versions={str(name): str(version) for name, version in found["versions"].items()},
            modules=tuple(str(name) for name in found["modules"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        last = errors.strip().rpartition("\n")[2]
        return Interpreter(path, error=last or f"exit code {exit_code}")


@dataclass(frozen=True)
class Installed:
    """`tensorflow` is its version, None if it is not installed or unknown."""

    tensorflow: str | None
    tf_keras: bool
    tensorboard: bool = False

    @property
    def keras_is_3(self) -> bool:
        """tf.keras is Keras 3 since TensorFlow 2.16."""
        if self.tensorflow is None:
            return True
        numbers = self.tensorflow.split(".")[:2]
        return not all(number.isdecimal() for number in numbers) or tuple(map(int, numbers)) >= (2, 16)


# Installed, if an interpreter that was not started has everything.
ASSUMED = Installed(None, tf_keras=True, tensorboard=True)


def is_own(python: str) -> bool:
    """Whether it is orch's own interpreter, which need not be started."""
    # Not resolved: a virtual environment's python is a link to that of another.
    return Path(os.path.abspath(python)) == Path(os.path.abspath(sys.executable))  # noqa: PTH100


def installed_for(python: str, environ: Mapping[str, str]) -> Installed | None:
    """Ask the interpreter itself, unless it is orch's own. None if it does not answer. `environ` is the tasks'."""
    if is_own(python):
        tf_keras, tensorboard = (
            importlib.util.find_spec(name) is not None for name in ("tf_keras", "tensorboard")
        )
        return Installed(tensorflow_version(), tf_keras, tensorboard)
    found = ask_interpreter([python], environ, Path.cwd())
    if found.error is not None:
        return None
    return Installed(found.tensorflow, "tf_keras" in found.modules, "tensorboard" in found.modules)


def tensorflow_version() -> str | None:
    """The version that orch's own interpreter has, without importing it."""
    for distribution in TENSORFLOW_DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def version_warning(version: str) -> str | None:
    """A warning if a version such as `2.21.0` was not tested."""
    found = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = TESTED_TENSORFLOW
    if found and oldest <= (int(found[1]), int(found[2])) <= newest:
        return None
    tested = " to ".join(f"{major}.{minor}" for major, minor in TESTED_TENSORFLOW)
    return f"TensorFlow {version} was not tested with orch (tested: {tested}); it may work"


def has_tensorflow() -> bool:
    """Whether orch's own interpreter can import TensorFlow."""
    found = importlib.util.find_spec("tensorflow")
    # A directory of that name without an __init__.py has no origin.
    return found is not None and found.origin is not None


def find_tensorboard(
    commands: Iterable[Command],
    installed: Callable[[str], Installed | None],
    own: str | None = sys.executable,
) -> TensorBoard:
    """The first of the commands' interpreters that has the package, else orch's `own`, else an empty TensorBoard."""
    package = importlib.util.find_spec("worker")
    if package is None or package.origin is None:
        return TensorBoard()
    program = str(Path(package.origin).parent / _TENSORBOARD)
    for python in dict.fromkeys(each.interpreter[0] for each in commands if each.interpreter):
        if python != own and (has := installed(python)) is not None and has.tensorboard:
            return TensorBoard(python=python, program=program)
    if own is not None and importlib.util.find_spec("tensorboard") is not None:
        return TensorBoard(python=own, program=program)
    return TensorBoard()
