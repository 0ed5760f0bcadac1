"""Collects the values that the user gave: flag over ORCH_* variable over file, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.job.hosts import parse_hosts_file
from orchestrator.core.job.tf_config import WORKER
from orchestrator.core.text.nearest import did_you_mean, nearest
from orchestrator.request.settings.declaration import VARIABLE_PREFIX, Kind, Option, Where
from orchestrator.request.settings.options import COMMAND, COUNT_OF, HOSTS, ROLE_OPTIONS, SETTINGS
from orchestrator.request.settings.readers import Reader, reader_of, shown
from orchestrator.request.settings.toml_file import (
    COUNT,
    ROLES_TABLE,
    decoded,
    entry_name,
    read_bounded,
    read_toml,
    role_entries,
)

# A task finds variables such as ORCH_CHECKPOINT_DIR in its environment. They describe its own run and are not options
# of an `orch up` that the task calls.
INSIDE_A_TASK = "ORCH_RUN_ID"
# Other programs may have variables with this prefix: only close misspellings are reported.
_MISSPELT = 0.85
COMMAND_SOURCE = "the command"


@dataclass(frozen=True)
class Given:
    """A value and its source: `--workers`, `ORCH_WORKERS`, `orch.toml, line 3: workers`."""

    value: Any
    source: str


def collect(flags: Mapping[str, object], environ: Mapping[str, str], directory: Path) -> dict[str, Given]:
    """Return the given values by option, and those of tables of roles by names such as `roles.ps.env`.

    `flags` are values or texts by option; None means not given. `env` is merged name by name. Words of a command that
    begin with `-` (except `-m`) are added to the command of the lower source. Raises UsageError with the source.
    """
    layers = (_from_file(directory), _from_environ(environ), _from_flags(flags))
    given = {name: value for layer in layers for name, value in layer.items()}
    given |= _merged_env(layers) | _joined_command(layers) | _absolute_paths(given, directory)
    return given | _read_hosts_files(given, directory)


def read_value(option: Option, text: str) -> Any:
    """Read the text of a flag; ValueError."""
    return _reader(option).text(text)


def misspelt_variables(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each variable that is probably a misspelt option."""
    known = {option.name.upper() for option in SETTINGS.values() if Where.VARIABLE in option.where}
    for name in names:
        word = name.removeprefix(VARIABLE_PREFIX)
        is_candidate = name.startswith(VARIABLE_PREFIX) and word not in known
        near = nearest(word, known, _MISSPELT) if is_candidate else None
        if near is not None:
            yield f"{name} is not an option of orch; did you mean {VARIABLE_PREFIX}{near}?"


def _reader(option: Option) -> Reader:
    return reader_of(option.kind, option.choices)


# -- the three sources


def _from_file(directory: Path) -> dict[str, Given]:
    layer: dict[str, Given] = {}
    for name, found in read_toml(directory).items():
        if name in SETTINGS:
            option = SETTINGS[name]
            given = _read(f"{found.where}: {option.key}", _reader(option).typed, found.value)
        else:
            name, given = _role_entry(name, found.where, found.value)
        if name in layer:
            raise UsageError(f"{given.source}: given already ({layer[name].source}); keep one of them")
        layer[name] = given
    return layer


def _role_entry(name: str, where: str, value: object) -> tuple[str, Given]:
    """Read an entry such as `roles.ps.env`, or `roles.ps` alone. A count becomes the value of the role's option."""
    _, role, *keys = name.split(".")
    if not keys:
        return name, Given(None, f"{where}: [{name}]")
    key = keys[0]
    count = Kind.WORKERS if role == WORKER else Kind.WHOLE_NUMBER
    reader = reader_of(count) if key == COUNT else _reader(ROLE_OPTIONS[key])
    given = _read(f"{where}: {key.replace('_', '-')} of {role}", reader.typed, value)
    return (COUNT_OF[role].name if key == COUNT else name), given


def _from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    """An empty variable counts as not set."""
    if environ.get(INSIDE_A_TASK):
        return {}
    return {
        option.name: _read(option.variable, _reader(option).text, environ[option.variable])
        for option in SETTINGS.values()
        if Where.VARIABLE in option.where and environ.get(option.variable)
    }


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    layer: dict[str, Given] = {}
    for name, value in flags.items():
        if name not in (*SETTINGS, ROLES_TABLE):
            keywords = [option.name for option in SETTINGS.values() if Where.KEYWORD in option.where]
            known = f"known: {', '.join((*keywords, ROLES_TABLE))}"
            raise UsageError(f"unknown option {shown(name)}; {did_you_mean(name, SETTINGS, known)}")
        if name != ROLES_TABLE and value is not None and value != () and value != []:
            layer[name] = _from_flag(SETTINGS[name], value)
    tables = {} if flags.get(ROLES_TABLE) is None else _role_flags(flags[ROLES_TABLE])
    for twice in tables.keys() & layer.keys():
        raise UsageError(f"{tables[twice].source}: given already ({layer[twice].source}); keep one of them")
    return layer | tables


def _role_flags(table: object) -> dict[str, Given]:
    """Read the table as Python gives it: `roles={"ps": {"count": 2}}`."""
    try:
        found = [*role_entries(table)]
    except ValueError as error:
        raise UsageError(f"{ROLES_TABLE}: {error}") from error
    return dict(_role_entry(entry_name(role, key), ROLES_TABLE, value) for role, key, value in found)


def _from_flag(option: Option, value: object) -> Given:
    source = COMMAND_SOURCE if option is COMMAND else option.flag
    reader = _reader(option)
    return _read(source, reader.text if isinstance(value, str) else reader.typed, value)


def _read(source: str, read: Callable[[Any], object], value: object) -> Given:
    for text in _texts_in(value):
        require_plain(text, source)
    try:
        return Given(read(value), source)
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


def require_plain(text: str, source: str) -> None:
    """Refuse text that can be passed neither to a process nor in a JSON document."""
    try:
        text.encode()
    except UnicodeEncodeError:
        is_plain = False
    else:
        is_plain = "\0" not in text
    if not is_plain:
        raise UsageError(f"{source}: {text!r} contains a NUL or bytes that are not UTF-8; remove them")


# -- options whose value depends on more than the highest source


def _merged_env(layers: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    found = [layer["env"] for layer in layers if "env" in layer]
    if not found:
        return {}
    merged = {name: value for given in found for name, value in given.value.items()}
    return {"env": Given(merged, " or ".join(given.source for given in found))}


def _joined_command(layers: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    words: tuple[str, ...] = ()
    source = COMMAND_SOURCE
    for layer in layers:
        if COMMAND.name in layer:
            words = join_command(words, layer[COMMAND.name].value)
            source = layer[COMMAND.name].source
    return {COMMAND.name: Given(words, source)}


def join_command(lower: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command. Options alone (`--role ps`) are added to those of the lower source."""
    is_options = bool(words) and words[0].startswith("-") and words[0] != "-m"
    return (*lower, *words) if is_options else words


def _absolute_paths(given: Mapping[str, Given], directory: Path) -> dict[str, Given]:
    return {
        name: _absolute_path(value, directory)
        for name, value in given.items()
        if name in SETTINGS and SETTINGS[name].kind is Kind.PATH
    }


def _absolute_path(given: Given, directory: Path) -> Given:
    try:
        return Given(directory / Path(given.value).expanduser(), given.source)
    except RuntimeError as error:
        raise UsageError(f"{given.source}: {shown(given.value)}: {error}") from error


def _read_hosts_files(given: Mapping[str, Given], directory: Path) -> dict[str, Given]:
    """Read the files that options about hosts name instead of hosts."""
    return {
        name: _hosts_of(value, directory)
        for name, value in given.items()
        if name.rpartition(".")[2] == HOSTS.name and isinstance(value.value, Path)
    }


def _hosts_of(given: Given, directory: Path) -> Given:
    file = _absolute_path(given, directory).value
    found = read_bounded(file)
    if found is None:
        raise UsageError(f"{given.source}: {file} does not exist; name a file with one host a line")
    try:
        return Given(parse_hosts_file(decoded(found[0], str(file)), str(file)), given.source)
    except ValueError as error:
        raise UsageError(f"{given.source}: {error}") from error
