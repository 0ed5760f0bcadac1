"""After a stop, files that the script left open contain all that it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("stopped_with_open_files.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_files_opened_before_the_import_are_flushed_too(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True
    ) as script:
        try:
            assert script.stdout is not None
            assert script.stdout.readline() == "ready\n"
            script.terminate()
            assert script.wait(120) == 143
        finally:
            script.kill()
    assert (tmp_path / "before").read_text() == "before\nfinally\n"
    assert (tmp_path / "after").read_text() == "after\nfinally\n"
