"""The files of orch are replaced during a run, as `pip install --upgrade` does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from orch_command import Orch
from waiting import PATIENCE_S

ROOT = Path(__file__).parents[4]


def test_failure_after_an_update_of_orch_uses_no_restarts(cold_orch: Orch, tmp_path: Path) -> None:
    """The task asks for a restart, which would mix two versions."""
    copy, go = tmp_path / "copy", tmp_path / "go"
    for package in ("orchestrator", "worker"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    script = f"echo attempt $ORCH_ATTEMPT; until [ -e {go} ]; do sleep 0.1; done; exit 42"
    words = ("up", "--max-restarts", "3", "--", "sh", "-c", script)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "orchestrator", *words],
        cwd=cold_orch.directory,
        env=cold_orch.environ({"PYTHONPATH": str(copy)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "worker:0 | attempt 1\n"
        module = copy / "worker/bootstrap/install.py"
        shutil.copy(module, module.with_suffix(".new"))
        module.with_suffix(".new").rename(module)
        go.touch()
        _, said = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 42
    assert "not restarted  orch was updated during this run; start it again" in said
    assert cold_orch.result()["attempts"] == 1
