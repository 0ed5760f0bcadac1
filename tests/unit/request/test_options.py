"""Declared options: agreement with the job, the documentation and the help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from spec_making import Load

from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import StrategyChoice
from orchestrator.request.settings.declaration import Kind, Option, Part, Where
from orchestrator.request.settings.options import GROUPS, ROLE_OPTIONS, SETTINGS, UP_OPTIONS
from orchestrator.request.settings.readers import reader_of
from orchestrator.request.settings.request import DisplayOptions

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/tools"))

from options_table import PAGE, page_with_table  # noqa: E402

FIELDS = {
    Part.JOB: set(JobSpec.model_fields),
    Part.START: set(JobSpec.model_fields),
    Part.STRATEGY: set(StrategyChoice.__dataclass_fields__),
    Part.DISPLAY: set(DisplayOptions.__dataclass_fields__),
    Part.SCREEN: set(DisplayOptions.__dataclass_fields__),
}


# Options of any text whose default is described in words.
WORDS_AS_DEFAULT = ("name", "cwd", "checkpoint_dir", "log_dir", "gpus", "interface", "remote_python")


def _id(option: Option) -> str:
    return option.name


def test_table_in_the_documentation_is_current() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "run scripts/tools/options"


def test_names_and_letters_are_unique() -> None:
    assert len({option.name for option in UP_OPTIONS}) == len(UP_OPTIONS)
    letters = [option.letter for option in UP_OPTIONS if option.letter]
    assert len(set(letters)) == len(letters)


def test_help_has_the_groups_of_the_contract() -> None:
    assert list(GROUPS) == [
        "Common",
        "Roles and strategy",
        "Failure",
        "Resources",
        "Hosts",
        "Start",
        "Debugging",
        "Output",
    ]


@pytest.mark.parametrize("option", SETTINGS.values(), ids=_id)
def test_value_has_a_field(option: Option) -> None:
    if option.part in FIELDS and option.name != "no_fixes":
        assert option.field in FIELDS[option.part]


@pytest.mark.parametrize("option", SETTINGS.values(), ids=_id)
def test_value_has_a_reader(option: Option) -> None:
    assert reader_of(option.kind, option.choices)
    assert (option.kind is Kind.CHOICE) <= bool(option.choices)


@pytest.mark.parametrize("option", [o for o in UP_OPTIONS if o.part in (Part.JOB, Part.START)], ids=_id)
def test_declared_default_is_that_of_the_job(option: Option, load_here: Load) -> None:
    """A default in words, such as `the directory's`, is not a value of the option."""
    try:
        declared = reader_of(option.kind, option.choices).text(option.default_text)
    except ValueError:
        return
    if option.default is not None and option.name not in WORDS_AS_DEFAULT:
        assert getattr(load_here().spec, option.field) == declared


@pytest.mark.parametrize("option", UP_OPTIONS, ids=_id)
def test_option_is_a_flag_of_up_where_declared(option: Option, up_help: str) -> None:
    assert (f" {option.flag}" in up_help) == (Where.COMMAND_LINE in option.where)


@pytest.fixture(scope="module")
def up_help() -> str:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "up", "--help"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("verb", ["up", "logs", "kill"])
def test_help_has_no_notes_of_the_option_parser(verb: str) -> None:
    """typer adds Python types and limits in its own syntax; defaults are a sentence of the help."""
    text = subprocess.run(
        [sys.executable, "-m", "orchestrator", verb, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"<\w+\[|\[x[<>]|\[default:", text)


def test_table_of_a_role_takes_its_options_only() -> None:
    assert set(ROLE_OPTIONS) == {"command", "env", "gpus", "hosts", "on_failure"}


def test_list_of_verbs_has_whole_sentences() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    verbs = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(verbs) >= 13
    assert [line for line in verbs if not line.endswith(".")] == []
    assert [line for line in verbs if line.endswith("...")] == []
