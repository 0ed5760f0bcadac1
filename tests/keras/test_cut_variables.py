"""A variable that is cut into parts is trained like a whole one, and saved in one piece."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("cut_program.py")
ROOT = PROGRAM.parents[2]
LONGEST_RUN_S = 180.0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_cut_variables_are_trained_like_whole_ones_and_saved_whole(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    env.pop("TF_CONFIG", None)
    command = [sys.executable, str(PROGRAM), str(tmp_path / "saved")]
    ended = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_RUN_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "equal"
