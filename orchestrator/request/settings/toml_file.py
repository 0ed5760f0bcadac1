"""Reads orch.toml, or the table [tool.orch] of pyproject.toml: values, each with its line."""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.job.tf_config import ROLES
from orchestrator.core.text.nearest import did_you_mean
from orchestrator.host.programs import open_without_waiting
from orchestrator.request.settings.declaration import Where
from orchestrator.request.settings.options import ROLE_OPTIONS, SETTINGS
from orchestrator.request.settings.readers import shown
from orchestrator.store.ownership import is_own_user

_ROOT = 0
_FILE, _PROJECT_FILE = "orch.toml", "pyproject.toml"
_PROJECT_TABLE = ("tool", "orch")
# A pyproject.toml without this word is not parsed: it has no settings of orch, and its mistakes are not orch's.
_MENTION = re.compile(rb"\borch\b")
ROLES_TABLE = "roles"
# The key of a role's table that gives the number of its tasks.
COUNT = "count"
_KNOWN_KEYS = [option.key for option in SETTINGS.values() if Where.FILE in option.where]
_ROLE_KEYS = [COUNT, *(option.key for option in ROLE_OPTIONS.values())]
_MAX_BYTES = 1 << 20
_ERROR_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")
_HEADER = re.compile(r"\s*\[+(?P<name>[^\[\]]+)\]")
_KEY = re.compile(r"\s*(?P<key>\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)\s*[.=]")


@dataclass(frozen=True)
class FileValue:
    """A value as TOML has it. `where` is text such as `orch.toml, line 3` for messages."""

    value: object
    where: str


@dataclass(frozen=True)
class _Lines:
    """The lines of a file's tables and keys, such as ("roles", "ps", "count"); () is the table of all settings."""

    file: str
    numbers: Mapping[tuple[str, ...], int]

    def where(self, *places: tuple[str, ...]) -> str:
        """The line of the first of these places that was found."""
        number = next((self.numbers[place] for place in (*places, ()) if place in self.numbers), None)
        return self.file if number is None else f"{self.file}, line {number}"


def read_toml(directory: Path) -> dict[str, FileValue]:
    """Return the settings in the directory's orch.toml or pyproject.toml by option, and those of tables of roles by
    names such as `roles.ps.env`. Empty if neither has any.

    Keys may be written `log-dir` or `log_dir`. UsageError names the line of the mistake.
    """
    own, project = _own_table(directory), _project_table(directory)
    if own is not None and project is not None:
        raise UsageError(
            f"{project[1].where()}: [tool.orch] is in the same directory as {_FILE}; keep the settings in one of them"
        )
    found = own or project
    return {} if found is None else _values(*found)


def _own_table(directory: Path) -> tuple[Mapping[str, object], _Lines] | None:
    found = read_bounded(directory / _FILE)
    if found is None:
        return None
    data, owner = found
    _refuse_planted(directory / _FILE, owner)
    text = decoded(data, _FILE)
    return _parse(text, _FILE), _Lines(_FILE, _line_numbers(text))


def _project_table(directory: Path) -> tuple[Mapping[str, object], _Lines] | None:
    found = read_bounded(directory / _PROJECT_FILE)
    if found is None or not _MENTION.search(found[0]):
        return None
    data, owner = found
    text = decoded(data, _PROJECT_FILE)
    table: object = _parse(text, _PROJECT_FILE)
    for key in _PROJECT_TABLE:
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is None:
        return None
    _refuse_planted(directory / _PROJECT_FILE, owner)
    depth = len(_PROJECT_TABLE)
    numbers = _line_numbers(text).items()
    lines = _Lines(_PROJECT_FILE, {at[depth:]: line for at, line in numbers if at[:depth] == _PROJECT_TABLE})
    if not isinstance(table, Mapping):
        raise UsageError(
            f"{lines.where()}: tool.orch is {shown(table)}, not a table; write [tool.orch] and below it workers = 4"
        )
    return table, lines


def _values(table: Mapping[str, object], lines: _Lines) -> dict[str, FileValue]:
    values: dict[str, FileValue] = {}
    for key, value in table.items():
        where = lines.where((key,))
        name = key.replace("-", "_")
        if name == ROLES_TABLE:
            values |= _role_values(lines, value)
            continue
        if name.replace("_", "-") not in _KNOWN_KEYS:
            raise UsageError(f"{where}: unknown key {_quoted(key)}{_hint(name, [*_KNOWN_KEYS, ROLES_TABLE])}")
        if name in values:
            raise UsageError(f"{where}: {_quoted(key)} is given twice, once with - and once with _; keep one")
        values[name] = FileValue(value, where)
    return values


def entry_name(role: str, key: str = "") -> str:
    """The name of a role's value among the others: `roles.ps.env`; of the table itself: `roles.ps`."""
    return f"{ROLES_TABLE}.{role}.{key}" if key else f"{ROLES_TABLE}.{role}"


def role_entries(table: object) -> Iterator[tuple[str, str, object]]:
    """Yield (role, key, value) for each entry of the table [roles], and (role, "", None) before a role's entries.

    Raises ValueError for anything else than a table of such entries."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{shown(table)} is not a table; write [roles.ps] and below it count = 2")
    for role, settings in table.items():
        if role not in ROLES:
            raise ValueError(f"unknown role {shown(role)}{_hint(str(role), ROLES)}")
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"{role} is {shown(settings)}, not a table; write [roles.{role}] and below it count = 1"
            )
        yield role, "", None
        for key, value in settings.items():
            if str(key).replace("_", "-") not in _ROLE_KEYS:
                raise ValueError(f"{role} has an unknown key {shown(key)}{_hint(str(key), _ROLE_KEYS)}")
            yield role, str(key).replace("-", "_"), value


def _hint(word: str, known: Collection[str]) -> str:
    return "; " + did_you_mean(word, known, f"known: {', '.join(known)}")


def _role_values(lines: _Lines, table: object) -> dict[str, FileValue]:
    values: dict[str, FileValue] = {}
    try:
        for role, key, value in role_entries(table):
            own = (ROLES_TABLE, role)
            where = lines.where((*own, key), (*own, key.replace("_", "-")), own, (ROLES_TABLE,))
            name = entry_name(role, key)
            if name in values:
                raise ValueError(
                    f"{role}: {_quoted(key)} is given twice, once with - and once with _; keep one"
                )
            values[name] = FileValue(value, where)
    except ValueError as error:
        raise UsageError(f"{lines.where((ROLES_TABLE,))}: [{ROLES_TABLE}]: {error}") from error
    return values


def read_bounded(path: Path) -> tuple[bytes, int] | None:
    """Return the contents and the owner of a file; None if it does not exist."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path}: is not a regular file; fix or remove it")
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise UsageError(
                f"{path}: is a link to {path.readlink()}, which does not exist; fix or remove it"
            ) from None
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); fix or remove it") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path}: longer than 1 MiB; orch reads no larger file of settings")
    return data, status.st_uid


def _refuse_planted(path: Path, owner: int) -> None:
    """Raise UsageError for a file or link that another user put into a directory of all users, such as /tmp."""
    if not path.parent.stat().st_mode & stat.S_IWOTH:
        return
    for user in (owner, path.lstat().st_uid):
        if user != _ROOT and not is_own_user(user):
            raise UsageError(
                f"{path}: belongs to the user {user}, and all users may write in {path.parent}; start orch in another"
                " directory, or remove the file"
            )


def decoded(data: bytes, name: str) -> str:
    try:
        # Editors on Windows write a byte order mark, which TOML does not allow.
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def _parse(text: str, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _ERROR_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else max(1, len(text.rstrip().splitlines()))
        problem = _ERROR_LINE.sub("", str(error))
        raise UsageError(f"{name}, line {line}: not valid TOML: {problem}") from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, and thousands of nested tables.
        raise UsageError(f"{name}: not valid TOML: {error}") from error


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """Return the first line of each table and key, such as ("roles", "ps", "count").

    A guess from the shape of lines, since TOML's parser reports no lines."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = tuple(part.strip(" \t\"'") for part in header["name"].split("."))
            for depth in range(len(table)):
                found.setdefault(table[: depth + 1], number)
        elif key := _KEY.match(line):
            found.setdefault((*table, key["key"].strip("\"'")), number)
    return found


def _quoted(key: str) -> str:
    return f'"{key}"' if key.isprintable() else repr(key)
