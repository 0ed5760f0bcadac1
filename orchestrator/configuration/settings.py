"""Flags, ORCH_* variables and orch.toml to one checked request: flag over variable over file over default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from orchestrator.command.resolve import CommandOptions, Surroundings, resolve_command, untested_tensorflow
from orchestrator.configuration.request import DisplayOptions, UpRequest
from orchestrator.configuration.setting_table import DISPLAY_SETTINGS, SETTINGS, Setting, shown
from orchestrator.configuration.toml_file import read_toml
from orchestrator.errors import UsageError
from orchestrator.machine.cores import usable_cores
from orchestrator.spec import DEFAULT_WORKERS, Command, CommandKind, JobSpec, default_name
from orchestrator.tf_config import WORKER, TaskRef

# A task of a run finds ORCH_CHECKPOINT_DIR and more in its environment: they describe its own run, and are no
# settings for an `orch up` inside it.
_INSIDE_A_TASK = "ORCH_RUN_ID"
_OF_THE_COMMAND = ("start", "preload", "keras")
_PATHS = ("cwd", "checkpoint_dir", "log_dir")


@dataclass(frozen=True)
class Given:
    """A value somebody gave, and where: `--workers`, `ORCH_WORKERS`, `orch.toml, line 3: workers`."""

    value: Any
    source: str


def load(flags: Mapping[str, object], environ: Mapping[str, str], directory: Path) -> UpRequest:
    """The request of `flags` (setting name -> text or typed value; None: not given), `environ`, the file.

    `flags["command"]` is the sequence of words after `--`. Words that begin with `-` (other than `-m`) are
    options: they go to the command that a lower source names, else to the built-in program. `env` is merged
    name by name. UsageError names the source of what is wrong. Looks at the disk, starts and writes nothing.
    """
    directory = directory.absolute()
    layers = (_from_file(directory), _from_environ(environ), _from_flags(flags))
    given = {name: value for layer in layers for name, value in layer.items()}
    given |= _merged_env(layers) | _joined_command(layers) | _absolute_paths(given, directory)
    spec = _spec(given, environ, directory)
    return UpRequest(spec=spec, display=_display(given, spec), notices=_notices(spec))


def _from_file(directory: Path) -> dict[str, Given]:
    values = read_toml(directory)
    return {
        name: _read(f"{found.where}: {SETTINGS[name].key}", SETTINGS[name].reader.typed, found.value)
        for name, found in values.items()
    }


def _from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    """A variable set to nothing counts as not set."""
    if environ.get(_INSIDE_A_TASK):
        return {}
    return {
        setting.name: _read(setting.variable, setting.reader.text, environ[setting.variable])
        for setting in SETTINGS.values()
        if environ.get(setting.variable)
    }


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    layer = {}
    for name, value in flags.items():
        if name not in SETTINGS:
            raise UsageError(f"unknown option {shown(name)}; known: {', '.join(SETTINGS)}")
        if value is not None and value != () and value != []:
            layer[name] = _from_flag(SETTINGS[name], value)
    return layer


def _from_flag(setting: Setting, value: object) -> Given:
    source = "the command" if setting.name == "command" else setting.flag
    if isinstance(value, str):
        return _read(source, setting.reader.text, value)
    return _read(source, setting.reader.typed, value)


def _read(source: str, reader: Callable[[Any], object], value: object) -> Given:
    for text in _texts_in(value):
        _require_plain(text, source)
    try:
        return Given(reader(value), source)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str | PurePath):
        yield str(value)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from (*_texts_in(name), *_texts_in(entry))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts_in(entry)


def _require_plain(text: str, source: str) -> None:
    """Refuse what can reach neither a process nor a JSON document, before anything looks at it."""
    if "\0" in text or not _is_unicode(text):
        raise UsageError(f"{source}: {text!r} holds a NUL or bytes that are not UTF-8; write it without")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _merged_env(layers: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    found = [layer["env"] for layer in layers if "env" in layer]
    if not found:
        return {}
    merged = {name: value for given in found for name, value in given.value.items()}
    return {"env": Given(merged, " or ".join(given.source for given in found))}


def _joined_command(layers: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    words: tuple[str, ...] = ()
    source = "the command"
    for layer in layers:
        if "command" in layer:
            new = layer["command"].value
            words = (*words, *new) if new and new[0].startswith("-") and new[0] != "-m" else new
            source = layer["command"].source
    return {"command": Given(words, source)}


def _absolute_paths(given: Mapping[str, Given], directory: Path) -> dict[str, Given]:
    return {name: _absolute_path(given[name], directory) for name in _PATHS if name in given}


def _absolute_path(given: Given, directory: Path) -> Given:
    try:
        return Given(directory / Path(given.value).expanduser(), given.source)
    except RuntimeError as error:
        raise UsageError(f"{given.source}: {shown(given.value)}: {error}") from error


def _spec(given: Mapping[str, Given], environ: Mapping[str, str], directory: Path) -> JobSpec:
    _require_plain(str(directory), "the current directory")
    cwd = given.get("cwd", Given(directory, "the current directory"))
    _require_directory(cwd)
    fields: dict[str, Any] = {
        SETTINGS[name].field: found.value
        for name, found in given.items()
        if SETTINGS[name] not in DISPLAY_SETTINGS and name not in ("workers", "command")
    }
    fields |= {
        "roles": {WORKER: given["workers"].value if "workers" in given else DEFAULT_WORKERS},
        "command": _command(given, cwd.value, {**environ, **fields.get("env", {})}),
        "name": fields.get("name", default_name(directory)),
        "name_is_explicit": "name" in given,
        "directory": directory,
        "cwd": cwd.value,
        "inherited_tf_config": bool(environ.get("TF_CONFIG")),
        "cores": usable_cores(),
    }
    if "no_fixes" in given:
        fields["fixes"] = not given["no_fixes"].value
    try:
        return JobSpec(**fields)
    except ValidationError as error:
        raise _blame(error, given) from error


def _require_directory(given: Given) -> None:
    path: Path = given.value
    try:
        found = path.is_dir()
        exists = found or path.exists()
    except OSError as error:
        raise UsageError(f"{given.source}: {path}: {error.strerror}") from error
    if not exists:
        raise UsageError(f"{given.source}: {path} does not exist; name a directory that does, or make it")
    if not found:
        raise UsageError(f"{given.source}: {path} is not a directory")


def _command(given: Mapping[str, Given], cwd: Path, environ: Mapping[str, str]) -> Command:
    options = {name: given[name].value for name in _OF_THE_COMMAND if name in given}
    command = given["command"]
    try:
        return resolve_command(command.value, Surroundings(cwd, environ), CommandOptions(**options))
    except UsageError as error:
        # Words after `--` are before the user's eyes; those of a file or a variable may be forgotten.
        if command.source == "the command":
            raise
        raise UsageError(f"{command.source}: {error}") from error


def _blame(error: ValidationError, given: Mapping[str, Given]) -> UsageError:
    """The first problem of a JobSpec, with the name of the source it came from."""
    problem = error.errors(include_url=False)[0]
    field = str(problem["loc"][0]) if problem["loc"] else ""
    names = {setting.field: setting.name for setting in SETTINGS.values()} | {"roles": "workers"}
    source = given[names[field]].source if names.get(field) in given else field or "the request"
    cause = problem.get("ctx", {}).get("error")
    return UsageError(f"{source}: {cause if cause is not None else problem['msg']}")


def _display(given: Mapping[str, Given], spec: JobSpec) -> DisplayOptions:
    values = {s.field: given[s.name].value for s in DISPLAY_SETTINGS if s.name in given}
    if "tasks" in given:
        values["tasks"] = tuple(task.among(spec.roles) for task in given["tasks"].value)
        _require_tasks(given["tasks"].source, values["tasks"], spec)
    if "wait" in values:
        values["detach"] = True
    return DisplayOptions(**values)


def _require_tasks(source: str, tasks: tuple[TaskRef, ...], spec: JobSpec) -> None:
    for task in tasks:
        if task.index >= spec.roles.get(task.type, 0):
            has = ", ".join(_span(role, count) for role, count in spec.roles.items())
            raise UsageError(f"{source}: there is no {task} in this run; it has {has}")


def _span(role: str, count: int) -> str:
    return f"{role}:0" if count == 1 else f"{role}:0 to {role}:{count - 1}"


def _notices(spec: JobSpec) -> tuple[str, ...]:
    notices = []
    if spec.inherited_tf_config:
        notices.append("TF_CONFIG is set in this environment; each task gets its own instead")
    if spec.command.kind is CommandKind.BUILTIN and (warning := untested_tensorflow()):
        notices.append(warning)
    return (*notices, *spec.command.notes)
