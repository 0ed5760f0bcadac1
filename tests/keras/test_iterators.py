"""Iterators are destroyed in the background. Live ones work, and the exit of the script is unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A busy machine may take several times as long as an idle one.
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
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == code, output
    assert "sum 5050" in done.stdout, output
    # A single iterator is alive: those of the loops are destroyed.
    assert "held 1 next 0 1" in done.stdout, output
    assert "unflushed" in done.stdout, output
    assert ("the script's own atexit handler" in done.stdout) == (end != "_exit"), output
    return done


def test_dropped_iterators_are_destroyed_and_the_exit_code_is_the_same() -> None:
    check("exit", 7)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("return", 0), ("_exit", 9)])
def test_other_exits_are_the_same(end: str, code: int) -> None:
    check(end, code)


@pytest.mark.slow
def test_an_uncaught_exception_is_printed_and_the_exit_code_is_1() -> None:
    assert "RuntimeError: the script's own error" in check("raise", 1).stderr
