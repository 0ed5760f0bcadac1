"""The built-in program's options are refused before any worker starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.machine.preflight import check_builtin_options
from orchestrator.spec import Command, CommandKind


def _builtin(*words: str) -> Command:
    argv = (sys.executable, "-P", "-m", "worker", *words)
    return Command(kind=CommandKind.BUILTIN, words=words, argv=argv, serves=True)


def test_right_options_pass(tmp_path: Path) -> None:
    check_builtin_options(_builtin("--epochs", "3"), tmp_path)


def test_wrong_ones_are_refused_with_the_programs_own_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the built-in program: .*--epochs.*nonsense.*orch up -- --help"):
        check_builtin_options(_builtin("--epochs", "nonsense"), tmp_path)


def test_unknown_ones_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-such-option"):
        check_builtin_options(_builtin("--no-such-option"), tmp_path)
