"""Every source of an option refuses the same values with the same sentence, and names itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from refusals import NOT_UTF8, REFUSALS, Refused
from spec_making import refusal, toml_value

from orchestrator.cli.app import app
from orchestrator.cli.parameters import Screen
from orchestrator.cli.up import flags_of
from orchestrator.client.launch import Cluster
from orchestrator.request.settings.declaration import Kind, Option, Where
from orchestrator.request.settings.options import COMMAND, SETTINGS
from orchestrator.request.settings.settings import load

_NUMBERS = (Kind.WHOLE_NUMBER, Kind.WORKERS, Kind.THREADS)
NOTHING: Mapping[str, str] = {}


def typed(option: Option, value: object) -> object:
    """The value as orch.toml and Python have it."""
    if not isinstance(value, str):
        return value
    if option.kind is Kind.ENVIRONMENT:
        return [value]
    return int(value) if option.kind in _NUMBERS and value.lstrip("-").isdecimal() else value


@pytest.fixture
def up() -> Any:
    """The command line of `orch up`."""
    verbs: Any = typer.main.get_command(app)
    return verbs.get_command(click.Context(verbs), "up")


class Sources:
    """Gives the value of a row by each source of its option, in a directory."""

    def __init__(self, directory: Path, up: Any) -> None:
        self._directory = directory
        self._up = up

    def refusals(self, row: Refused) -> Iterator[tuple[str, str]]:
        """Yield the name of each source, and the sentence with which it refuses the value."""
        option, value, file = SETTINGS[row.option], row.value, self._directory / "orch.toml"
        if isinstance(value, str):
            if Where.COMMAND_LINE in option.where and option.kind is not Kind.SWITCH:
                yield option.flag, refusal(self._load, row, self._words(option, value))
            if Where.VARIABLE in option.where and value and "\0" not in value:
                yield option.variable, refusal(self._load, row, environ={option.variable: value})
        if Where.FILE in option.where and value != NOT_UTF8:
            file.write_text(f"{option.key} = {toml_value(typed(option, value))}")
            yield f"orch.toml, line 1: {option.key}", refusal(self._load, row)
            file.unlink()
        # Without a source, the words of a command are those that the user has just typed.
        if Where.KEYWORD in option.where and option is not COMMAND and value != []:
            options: dict[str, Any] = {**row.beside, option.name: typed(option, value)}
            options = {"command": "/bin/true", "directory": self._directory, **options}
            yield option.flag, refusal(Cluster, **options)

    def _words(self, option: Option, value: str) -> dict[str, Any]:
        given = self._up.make_context("up", [f"{option.flag}={value}"]).params
        return flags_of(None, given, Screen(color=given["color"]))

    def _load(
        self, row: Refused, flags: Mapping[str, Any] = NOTHING, environ: Mapping[str, str] = NOTHING
    ) -> None:
        command = {} if SETTINGS[row.option] is COMMAND else {"command": ["/bin/true"]}
        load({**flags, **command, **row.beside}, environ, self._directory)


def test_all_sources_refuse_with_the_same_sentence(tmp_path: Path, up: Any) -> None:
    (tmp_path / "train.py").touch()
    sources = Sources(tmp_path, up)
    wrong = []
    for row in REFUSALS:
        found = list(sources.refusals(row))
        assert found, f"no source takes {row}"
        says = ".*".join(map(re.escape, row.says.split(" ... ")))
        wrong += [f"{row}: {said!r}" for at, said in found if not re.match(f"{re.escape(at)}: {says}", said)]
    assert not wrong, "\n".join(wrong)


def test_variables_say_how_they_are_written(tmp_path: Path) -> None:
    refused = {
        ("ORCH_ENV", "'"): '"\'" cannot be split into words',
        ("ORCH_DETACH", "maybe"): '"maybe" is neither true nor false; write 1 or 0',
    }
    for (name, value), says in refused.items():
        assert refusal(load, {}, {name: value}, tmp_path).startswith(f"{name}: {says}")


def test_an_empty_list_of_faults_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orch.toml").write_text("chaos = []")
    assert "0 faults" in refusal(load, {}, {}, tmp_path)
