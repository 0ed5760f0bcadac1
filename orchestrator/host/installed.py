"""Ask an interpreter for its packages: TensorFlow and its version, tf_keras, TensorBoard."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from orchestrator.core.job.spec import Command
from orchestrator.core.job.tensorboard import TensorBoard

TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-rocm")
TESTED_TENSORFLOW = ((2, 20), (2, 21))
_TENSORBOARD = "programs/serve_tensorboard.py"
# Seconds. It takes a tenth of a second on an idle machine.
_ANSWER_S = 10.0
# Under -I. The user's site and PYTHONPATH are added behind the standard library, so that no module of them is imported.
_QUESTION = """
import json, site, sys
from importlib import metadata, util
if sys.prefix == sys.base_prefix:
    site.addsitedir(site.getusersitepackages())
sys.path.extend(sys.argv[2:])
version = None
for name in json.loads(sys.argv[1]):
    try:
        version = metadata.version(name)
        break
    except metadata.PackageNotFoundError:
        pass
found = {name: util.find_spec(name) is not None for name in ("tf_keras", "tensorboard")}
print(json.dumps({"tensorflow": version, **found}))
"""


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
    """Ask the interpreter itself, unless it is orch's own. None if it does not answer.

    `environ` is the tasks'. Only its PYTHONPATH counts: other variables of it could make the interpreter run code.
    """
    if is_own(python):
        tf_keras, tensorboard = (
            importlib.util.find_spec(name) is not None for name in ("tf_keras", "tensorboard")
        )
        return Installed(tensorflow_version(), tf_keras, tensorboard)
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    output = _ask([python, "-I", "-c", _QUESTION, json.dumps(TENSORFLOW_DISTRIBUTIONS), *paths])
    try:
        answer = json.loads(output or b"")
        return Installed(answer["tensorflow"], answer["tf_keras"], answer["tensorboard"])
    except (ValueError, KeyError, TypeError):
        return None


def tensorflow_version() -> str | None:
    """The version that orch's own interpreter has, without importing it."""
    for distribution in TENSORFLOW_DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def untested_tensorflow() -> str | None:
    """A warning if the TensorFlow of orch's own interpreter is of a version that was not tested."""
    version = tensorflow_version()
    return None if version is None else version_warning(version)


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


def _ask(argv: list[str]) -> bytes | None:
    """The output of a command; None if it fails or takes too long."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
