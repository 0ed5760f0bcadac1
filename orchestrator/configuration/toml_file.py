"""Reads orch.toml: its values, each with the line it stands on."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from orchestrator.configuration.setting_table import SETTINGS
from orchestrator.errors import UsageError

FILE_NAME = "orch.toml"
_MAX_BYTES = 1 << 20
_ERROR_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")
_HEADER = re.compile(r"\s*\[+\s*(?P<name>[^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*(?P<key>\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*[.=]")


@dataclass(frozen=True)
class FileValue:
    """A value as TOML has it, and `orch.toml, line 3` for messages about it."""

    value: object
    where: str


def read_toml(directory: Path) -> dict[str, FileValue]:
    """The settings in the directory's orch.toml by their snake-case names; empty without such a file.

    Keys may be written `log-dir` or `log_dir`. UsageError names the line of what is wrong.
    """
    text = _read(directory / FILE_NAME)
    if text is None:
        return {}
    values: dict[str, FileValue] = {}
    for key, value in _parse(text).items():
        where = _where(text, key)
        name = key.replace("-", "_")
        if name not in SETTINGS:
            raise UsageError(f"{where}: unknown key {_quoted(key)}{_suggestion(name)}")
        if name in values:
            raise UsageError(f"{where}: {_quoted(key)} is given twice, once with - and once with _; keep one")
        values[name] = FileValue(value, where)
    return values


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); mend or remove it") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path}: longer than 1 MiB, so it is not a file of settings")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{FILE_NAME}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def _parse(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _ERROR_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else max(1, len(text.rstrip().splitlines()))
        problem = _ERROR_LINE.sub("", str(error))
        raise UsageError(f"{FILE_NAME}, line {line}: not valid TOML: {problem}") from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or tables nested thousands deep.
        raise UsageError(f"{FILE_NAME}: not valid TOML: {error}") from error


def _where(text: str, key: str) -> str:
    """The first line that gives this top-level key, as near as can be told without parsing TOML again."""
    in_table = False
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            in_table = True
            if header["name"].split(".")[0].strip().strip("\"'") == key:
                return f"{FILE_NAME}, line {number}"
        found = None if in_table else _KEY.match(line)
        if found is not None and found["key"].strip("\"'") == key:
            return f"{FILE_NAME}, line {number}"
    return FILE_NAME


def _quoted(key: str) -> str:
    return f'"{key}"' if key.isprintable() else repr(key)


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, SETTINGS, n=1)
    if near:
        return f'; did you mean "{SETTINGS[near[0]].key}"?'
    return f"; known: {', '.join(setting.key for setting in SETTINGS.values())}"
