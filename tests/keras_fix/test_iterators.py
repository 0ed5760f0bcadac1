"""Iterators end beside the script: dropped ones are let go of, living ones work, and it ends as it would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A busy machine may take several times as long as a free one.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("iterating.py")


def run(end: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), end],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def check(end: str, code: int) -> subprocess.CompletedProcess[str]:
    done = run(end)
    told = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == code, told
    assert "sum 5050" in done.stdout, told
    # One single iterator is alive; those of the loops are not.
    assert "held 1 next 0 1" in done.stdout, told
    assert "unflushed" in done.stdout, told
    assert ("the script's own atexit handler" in done.stdout) == (end != "_exit"), told
    return done


def test_dropped_iterators_are_let_go_and_the_exit_code_stays() -> None:
    check("exit", 7)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("return", 0), ("_exit", 9)])
def test_other_ends_are_as_they_would_be(end: str, code: int) -> None:
    check(end, code)


@pytest.mark.slow
def test_an_uncaught_exception_is_shown_and_ends_with_1() -> None:
    assert "RuntimeError: the script's own error" in check("raise", 1).stderr
