"""Python, TensorFlow, Keras, and the variables that change what they do."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.job.spec import JobSpec
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, note, ok, problem, warning
from orchestrator.host.installed import Interpreter, version_pair
from orchestrator.host.strategies import FIXED_KERAS

# The Pythons that the tested TensorFlow has packages for.
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
# From this TensorFlow on, tf.keras is Keras 3.
_FIRST_WITH_KERAS_3 = (2, 16)
_LEGACY = "TF_USE_LEGACY_KERAS"
_TRUE = ("1", "true")


def runs_python(spec: JobSpec) -> bool:
    return bool(spec.command.interpreter)


def check_software(context: Context) -> Iterator[Finding]:
    python = context.python
    if python is None:
        return
    if not runs_python(context.spec):
        text = "not a Python program: its needs are not known"
        yield ok("command", text, str(context.spec.masked().command))
    elif not python.was_asked:
        text = f"{python.path} was not asked for its packages: it is not on your PATH, and may be any program"
        fix = f"activate its environment, or name it by its whole path: orch doctor -- {python.path} train.py"
        yield warning("python", text, fix=fix)
    elif python.error is not None and python.fault_in:
        text = f"{python.fault_in} cannot be entered: {python.error}"
        yield problem("directory", text, fix="change its permissions, or start orch in another directory")
    elif python.error is not None:
        fix = "name another Python before the script (-- /path/to/python train.py), or repair this one"
        yield problem("python", f"{python.path} does not answer: {python.error}", python.path, fix=fix)
    else:
        yield ok("python", f"Python {python.version} runs the tasks", python.path)
        yield _tensorflow(python, context)
        yield from _keras(python, context)
        yield _tf_keras(python, context)
        yield from _variables(context)


def _tensorflow(python: Interpreter, context: Context) -> Finding:
    version = python.tensorflow
    if "tensorflow" not in python.modules:
        if version is not None:
            text = f"TensorFlow {version} is incompletely installed: the module is missing"
            fix = f"{python.path} -m pip install --force-reinstall tensorflow"
            return problem("tensorflow", text, python.path, fix=fix)
        text, fix = "TensorFlow is not installed for this Python", _tensorflow_advice(python)
        if not context.serves:
            return note("tensorflow", text, python.path, fix=fix)
        report = problem if context.is_source_known else warning
        return report("tensorflow", text, python.path, fix=fix)
    if version is None:
        return note("tensorflow", "TensorFlow is installed from a build without a version", python.path)
    if python.tensorflow_warning is not None:
        fix = "if it fails, try a tested version"
        return warning("tensorflow", python.tensorflow_warning, python.path, fix=fix)
    return ok("tensorflow", f"TensorFlow {version}, tested with orch", python.path)


def _tensorflow_advice(python: Interpreter) -> str:
    if _OLDEST_PYTHON <= version_pair(python.version) <= _NEWEST_PYTHON:
        return f"{python.path} -m pip install tensorflow, or activate the environment that has it"
    span = f"{_version_text(_OLDEST_PYTHON)} to {_version_text(_NEWEST_PYTHON)}"
    return f"activate an environment with Python {span}: for {python.version} there are no packages of TensorFlow"


def _version_text(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _keras(python: Interpreter, context: Context) -> Iterator[Finding]:
    tensorflow = python.tensorflow
    needs_keras_3 = tensorflow is not None and version_pair(tensorflow) >= _FIRST_WITH_KERAS_3
    if python.keras is None:
        if needs_keras_3:
            text = "Keras is not installed, and this TensorFlow's tf.keras needs it"
            yield warning("keras", text, python.path, fix=f"{python.path} -m pip install keras")
        return
    version = version_pair(python.keras)
    first, beyond = FIXED_KERAS
    if first <= version < beyond:
        fixed = "; its `fit` fails with several workers, which orch fixes" if context.spec.workers > 1 else ""
        yield ok("keras", f"Keras {python.keras}{fixed}", python.path)
    elif version >= beyond:
        text = f"Keras {python.keras} is newer than what orch's fix for several workers was tested with: it stays off"
        fix = f"{python.path} -m pip install 'keras<{_version_text(beyond)}' if `fit` fails, or use tf_keras"
        yield warning("keras", text, python.path, fix=fix)
    elif needs_keras_3:
        text = f"Keras {python.keras} is too old for TensorFlow {tensorflow}, whose tf.keras is Keras 3"
        yield warning("keras", text, python.path, fix=f"{python.path} -m pip install -U keras")
    else:
        yield note("keras", f"Keras {python.keras}: orch's fixes are for Keras 3", python.path)
    backend = context.task_environ.get("KERAS_BACKEND", "")
    if backend not in ("", "tensorflow"):
        text = f"KERAS_BACKEND is {backend}: TensorFlow's strategies train Keras with its tensorflow backend only"
        fix = "unset KERAS_BACKEND, or --env KERAS_BACKEND=tensorflow"
        yield warning("keras", text, "KERAS_BACKEND", fix=fix)


def _tf_keras(python: Interpreter, context: Context) -> Finding:
    tensorflow, version = python.tensorflow, python.tf_keras
    is_wanted = context.task_environ.get(_LEGACY, "").lower() in _TRUE
    major, minor = version_pair(tensorflow or "")
    install = f"{python.path} -m pip install tf_keras" + (f"~={major}.{minor}.0" if tensorflow else "")
    if version is None and is_wanted:
        text = f"{_LEGACY} asks for tf_keras, which is not installed"
        return problem("tf_keras", text, python.path, fix=f"{install}, or unset {_LEGACY}")
    if version is None:
        text = "tf_keras is not installed: Keras 2 scripts and `fit` on parameter servers need it"
        return note("tf_keras", text, python.path, fix=f"{install}, if you have such a script")
    if tensorflow is not None and version_pair(version) != (major, minor):
        text = f"tf_keras {version} is made for another TensorFlow than {tensorflow}"
        return warning("tf_keras", text, python.path, fix=install)
    used = f"; {_LEGACY} makes it tf.keras" if is_wanted else ""
    return ok("tf_keras", f"tf_keras {version}{used}", python.path)


def _variables(context: Context) -> Iterator[Finding]:
    variables = context.task_environ
    if variables.get("TF_CONFIG"):
        text = "TF_CONFIG is set here; each task gets its own instead"
        yield note("environment", text, "TF_CONFIG", fix="unset TF_CONFIG")
    level = variables.get("TF_CPP_MIN_LOG_LEVEL", "")
    if level not in ("", "0") and context.spec.workers > 1:
        text = f"TF_CPP_MIN_LOG_LEVEL={level} hides which task TensorFlow waits for; `orch status` shows it"
        yield note("environment", text, "TF_CPP_MIN_LOG_LEVEL")
    reuse = variables.get("TF_GRPC_REUSE_PORT", "1")
    if reuse.lower() not in _TRUE:
        text = f"TF_GRPC_REUSE_PORT={reuse}: a program that sets SO_REUSEADDR could take a task's port before the task"
        yield note("environment", f"{text} listens", "TF_GRPC_REUSE_PORT", fix="unset TF_GRPC_REUSE_PORT")
