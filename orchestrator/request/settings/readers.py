"""Reads the values of options, from text and from typed data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from orchestrator.core.job.fault import MOST_FAULTS, Fault, parse_chaos
from orchestrator.core.job.gpus import GpuChoice, parse_gpus
from orchestrator.core.job.hosts import Host, parse_hosts
from orchestrator.core.job.profiled_steps import ProfiledSteps
from orchestrator.core.job.roles import WorkerRange
from orchestrator.core.job.strategy import Mesh, parse_device, parse_strategy
from orchestrator.core.job.tf_config import TaskRef
from orchestrator.core.text.durations import check_duration, parse_duration
from orchestrator.core.text.nearest import did_you_mean, listed
from orchestrator.core.text.sizes import check_size, parse_size
from orchestrator.request.settings.declaration import Kind
from orchestrator.request.settings.request import DEFAULT_WARM_S, WATCH_SOURCES, TimeFormat

_WHOLE = re.compile(r"[+-]?\d{1,15}\Z", re.ASCII)
_AUTO = "auto"
ALL_TASKS = "all"
_NO_LIMIT = "off"
_GROW = "grow"
# Bytes. Smaller amounts of GPU memory were probably written without their unit.
_LEAST_GPU_MEMORY = 1 << 20
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Reader:
    """Reads one kind of value: `text` from a flag or a variable, `typed` from TOML or Python. Raises ValueError."""

    text: Callable[[str], object]
    typed: Callable[[object], object]


def shown(value: object) -> str:
    """Return the value for a message: on one line, text in quotes, at most 80 characters."""
    if isinstance(value, str | PurePath):
        text = json.dumps(str(value), ensure_ascii=not str(value).isprintable())
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:76] + " ..."


def _whole_text(text: str) -> int:
    if not _WHOLE.match(text.strip()):
        raise ValueError(f"{shown(text)} is not a whole number")
    return int(text)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a whole number{_unquoted_hint(value, _whole_text)}")
    return _whole_text(str(value)) if abs(value) < 10**15 else _too_big(value)


def _too_big(value: int) -> int:
    raise ValueError(f"a number of {value.bit_length()} bits is too big")


def _workers_text(text: str) -> int | WorkerRange:
    return WorkerRange.parse(text) if ".." in text else _whole_text(text)


def _workers(value: object) -> int | WorkerRange:
    """Read a number, or a text such as 2..4."""
    return WorkerRange.parse(value) if isinstance(value, str) and ".." in value else _whole(value)


def _threads_text(text: str) -> int | None:
    return None if text.strip().lower() == _AUTO else _whole_text(text)


def _threads(value: object) -> int | None:
    if value == _AUTO:
        return None
    try:
        return _whole(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write {_AUTO}") from None


def _duration(value: object) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a duration; write 30, 1.5 or a text such as 1h30m")
    try:
        return check_duration(float(value))
    except OverflowError:
        return check_duration(float("inf"))


def _limit_text(text: str) -> float | None:
    return None if text.strip().lower() == _NO_LIMIT else parse_duration(text)


def _limit(value: object) -> float | None:
    return _limit_text(value) if isinstance(value, str) else _duration(value)


def _size(value: object) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a size; write a text such as 2GiB or 512MB")
    return check_size(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text; put it in quotes")
    return value


def _path(value: object) -> str:
    if isinstance(value, PurePath):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a path; put it in quotes")
    if not value:
        raise ValueError("the path is empty; name one, or leave it out")
    return value


def _gpu_memory(value: object) -> str | int:
    if value == _GROW:
        return _GROW
    size = _size(value)
    if size < _LEAST_GPU_MEMORY:
        raise ValueError(f"{shown(value)} is too little to train in; write 4GiB, or {_GROW}")
    return size


def _mesh(value: object) -> Mesh:
    """Read a text, or a table of the dimensions."""
    if isinstance(value, Mapping):
        value = ",".join(f"{name}={size}" for name, size in value.items())
    return value if isinstance(value, Mesh) else Mesh.parse(_text(value))


def _gpus(value: object) -> GpuChoice:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f'{value} may be a name or a number of GPUs; write "{value}" or "per-task {value}"')
    return value if isinstance(value, GpuChoice) else parse_gpus(_text(value))


def _hosts_text(text: str) -> tuple[Host, ...] | Path:
    """Read hosts, or the path of a file of hosts: `@FILE`, or a text with a slash, which no host has."""
    text = text.strip()
    if text.startswith("@") or ("/" in text and "://" not in text):
        return Path(_path(text.removeprefix("@")))
    return parse_hosts(text)


def _hosts(value: object) -> tuple[Host, ...] | Path:
    if isinstance(value, list | tuple):
        for entry in value:
            if not isinstance(entry, str):
                raise ValueError(f"{shown(entry)} is not a host; put it in quotes")
        return parse_hosts(",".join(value))
    return _hosts_text(_text(value))


def _parsed_by(parse: Callable[[str], object]) -> Reader:
    return Reader(text=parse, typed=lambda value: parse(_text(value)))


def _switch_text(text: str) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(f"{shown(text)} is neither true nor false; write 1 or 0")
    return word in _TRUE


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false{_unquoted_hint(value, _switch_text)}")
    return value


def _unquoted_hint(value: object, read: Callable[[str], object]) -> str:
    if not isinstance(value, str):
        return ""
    try:
        read(value)
    except ValueError:
        return ""
    return "; remove the quotes"


def _one_of(choices: Sequence[str]) -> Reader:
    def read(value: object) -> str:
        word = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for choice in choices:
            if choice == word:
                return choice
        meant = did_you_mean(str(word), choices, f"write {listed(choices)}")
        raise ValueError(f"{shown(value)} is not known; {meant}")

    return Reader(text=read, typed=read)


def _pairs(words: Sequence[object]) -> dict[str, str]:
    env = {}
    for word in words:
        name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if not equals or not name:
            raise ValueError(f"{shown(word)} is not NAME=VALUE")
        env[name] = value
    return env


def _env(value: object) -> dict[str, str]:
    """Read a table, or a list of NAME=VALUE. Numbers become text; nested lists and tables are refused."""
    if isinstance(value, list | tuple):
        return _pairs(value)
    if not isinstance(value, Mapping):
        raise ValueError(f'{shown(value)} is not a table; write env = {{ NAME = "value" }}')
    env = {}
    for name, entry in value.items():
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise ValueError(f"{name} is {shown(entry)}; a variable's value is text: put it in quotes")
        env[str(name)] = entry if isinstance(entry, str) else _number_text(entry)
    return env


def _number_text(number: float) -> str:
    if isinstance(number, int) and number.bit_length() > 4096:
        _too_big(number)
    return str(number)


def _words_text(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{shown(text)} cannot be split into words: {error}") from None


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return _words_text(value)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{shown(value)} is not a command; write a text or a list of texts")
    for word in value:
        if not isinstance(word, str | PurePath):
            raise ValueError(f"{shown(word)} is not text; put each word of the command in quotes")
    return tuple(str(word) for word in value)


def _modules(value: object) -> tuple[str, ...]:
    """Read names of modules, separated by commas or blanks, or a list of them. Returns each once, in order."""
    entries: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    modules: dict[str, None] = {}
    for entry in entries:
        if not isinstance(entry, str):
            raise ValueError(f"{shown(entry)} is not the name of a module; put it in quotes")
        modules.update(dict.fromkeys(entry.replace(",", " ").split()))
    if not modules:
        raise ValueError("no module is named; write numpy or leave it out")
    return tuple(modules)


def _tasks(value: object) -> tuple[TaskRef, ...]:
    """Read `0,2`, `worker:1`, or a list of words, indices and TaskRefs. Returns each task once, in order."""
    entries: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    tasks: dict[TaskRef, None] = {}
    for entry in entries:
        if isinstance(entry, TaskRef):
            tasks[entry] = None
        elif isinstance(entry, str) or (isinstance(entry, int) and not isinstance(entry, bool)):
            for word in _number_text(entry).split(",") if isinstance(entry, int) else entry.split(","):
                tasks[_task(word.strip())] = None
        else:
            raise ValueError(f"{shown(entry)} is not a task; write worker:0 or 0")
    if not tasks:
        raise ValueError("no task is named; write 0,2 or leave it out to see all of them")
    return tuple(tasks)


def _debugged(value: object) -> tuple[TaskRef, ...] | str:
    """Read tasks, or `all`."""
    is_all = isinstance(value, str) and value.strip().lower() == ALL_TASKS
    return ALL_TASKS if is_all else _tasks(value)


def _task(word: str) -> TaskRef:
    if len(word) > 64:
        raise ValueError(f"{shown(word)} is not a task; write worker:0 or 0")
    return TaskRef.parse(word)


def _faults(value: object) -> tuple[Fault, ...]:
    """Read a text of faults separated by semicolons, or a list of such texts and Faults."""
    entries: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    faults: list[Fault] = []
    for entry in entries:
        if not isinstance(entry, str | Fault):
            raise ValueError(f"{shown(entry)} is not a fault; write a text such as kill worker:1 at step 20")
        faults += [entry] if isinstance(entry, Fault) else parse_chaos(entry)
    if not 1 <= len(faults) <= MOST_FAULTS:
        raise ValueError(f"{len(faults)} faults are planned; write 1 to {MOST_FAULTS}, or leave it out")
    return tuple(faults)


def _timestamps(value: object) -> TimeFormat | None:
    """Read a format, or a switch: true means HH:MM:SS."""
    if isinstance(value, str) and value.strip().lower() not in (*_TRUE, *_FALSE):
        return TimeFormat.parse(value)
    return TimeFormat.TIME if (_switch_text(value) if isinstance(value, str) else _switch(value)) else None


def _warm(value: object) -> float:
    """Read how long processes stay after a run: a duration, or a switch. 0 means that none stays."""
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE)):
        is_on = _switch_text(value) if isinstance(value, str) else value
        return DEFAULT_WARM_S if is_on else 0.0
    return _duration(value)


def _watch(value: object) -> str:
    """Read a pattern of files, or a switch: true means the sources alone."""
    if isinstance(value, str) and value.strip().lower() not in (*_TRUE, *_FALSE):
        if not value.strip():
            raise ValueError("the pattern is empty; write one such as *.yaml, or leave it out")
        return value
    is_on = _switch_text(value) if isinstance(value, str) else _switch(value)
    return WATCH_SOURCES if is_on else ""


_READERS: Mapping[Kind, Reader] = {
    Kind.SWITCH: Reader(text=_switch_text, typed=_switch),
    Kind.TEXT: Reader(text=str, typed=_text),
    Kind.PATH: Reader(text=_path, typed=_path),
    Kind.WORDS: Reader(text=_words_text, typed=_words),
    Kind.WHOLE_NUMBER: Reader(text=_whole_text, typed=_whole),
    Kind.WORKERS: Reader(text=_workers_text, typed=_workers),
    Kind.THREADS: Reader(text=_threads_text, typed=_threads),
    Kind.DURATION: Reader(text=parse_duration, typed=_duration),
    Kind.LIMIT: Reader(text=_limit_text, typed=_limit),
    Kind.SIZE: Reader(text=parse_size, typed=_size),
    Kind.GPU_MEMORY: Reader(text=_gpu_memory, typed=_gpu_memory),
    Kind.ENVIRONMENT: Reader(text=lambda text: _pairs(_words_text(text)), typed=_env),
    Kind.MODULES: Reader(text=_modules, typed=_modules),
    Kind.TASKS: Reader(text=_tasks, typed=_tasks),
    Kind.DEBUGGED: Reader(text=_debugged, typed=_debugged),
    Kind.FAULTS: Reader(text=_faults, typed=_faults),
    Kind.STRATEGY: _parsed_by(parse_strategy),
    Kind.DEVICE: _parsed_by(parse_device),
    Kind.MESH: Reader(text=Mesh.parse, typed=_mesh),
    Kind.GPUS: Reader(text=parse_gpus, typed=_gpus),
    Kind.HOSTS: Reader(text=_hosts_text, typed=_hosts),
    Kind.WATCH: Reader(text=_watch, typed=_watch),
    Kind.WARM: Reader(text=_warm, typed=_warm),
    Kind.STEPS: _parsed_by(ProfiledSteps.parse),
    Kind.TIMESTAMPS: Reader(text=_timestamps, typed=_timestamps),
}


def reader_of(kind: Kind, choices: Sequence[str] = ()) -> Reader:
    """The reader of an option's values. `choices` are those of Kind.CHOICE."""
    return _one_of(choices) if kind is Kind.CHOICE else _READERS[kind]
