"""The command `orch prune`."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_command import Orch
from run_making import ended_run


@pytest.mark.slow
def test_prune_and_other_commands_after_it(orch: Orch, tmp_path: Path) -> None:
    script = orch.script(
        "save.py", "import os\nopen(os.environ['ORCH_CHECKPOINT_DIR'] + '/ckpt', 'w').write('w')\n"
    )
    outside = tmp_path / "outside"
    assert orch("up", "--name", "plain", "--", "sh", "-c", "exit 3").code == 3
    assert orch("up", "--name", "saved", "--", script).code == 0
    assert orch("up", "--name", "elsewhere", "--checkpoint-dir", str(outside), "--", script).code == 0
    assert orch("up", "-d", "--name", "live", "--", "sleep", "600").code == 0

    asked = orch("prune")
    assert asked.code == 2 and "--older-than 7d" in asked.err
    assert orch("prune", "--older-than", "soon").code == orch("prune", "--max-size", "much").code == 2
    assert orch("prune", "--older-than", "1h").out.endswith(
        "freed 0 B of 0 runs; 4 runs left, " + _size(orch)
    )

    planned = orch("prune", "--keep", "0", "--dry-run", "--json").document
    done = orch("prune", "--keep", "0", "--json").document
    assert planned["dry_run"] and not done["dry_run"]
    assert {**planned, "dry_run": False} == done
    assert [run["name"] for run in done["runs"]] == ["plain", "saved", "elsewhere"]
    assert done["freed_bytes"] == sum(run["freed_bytes"] for run in done["runs"]) > 0
    assert [bool(run["kept_checkpoints"]) for run in done["runs"]] == [False, True, False]
    assert (outside / "ckpt").read_text() == "w"

    assert orch("status", "plain").code == 3
    saved = orch("status", "saved", "--json").document
    assert (saved["run"]["state"], saved["tasks"][0]["state"]) == ("succeeded", "succeeded")
    trimmed = orch("status", "saved")
    assert trimmed.code == 0 and "have been removed" in trimmed.err
    logs = orch("logs", "saved")
    assert (logs.code, logs.out) == (0, "") and "has removed its logs" in logs.err
    assert orch("wait", "saved").code == 0
    assert {run["name"]: run["state"] for run in orch("ls", "--json").document["runs"]} == {
        "saved": "succeeded",
        "live": "running",
    }
    assert orch("prune", "--keep", "0", "--checkpoints").out.startswith("removed saved-")
    assert orch("down", "live").code == 0
    assert orch("prune", "--max-size", "0").out.startswith("removed live-")
    assert [path.name for path in orch.run_dirs()] == []


def test_prune_is_limited_to_this_directory_without_all(orch: Orch, tmp_path: Path) -> None:
    for name in ("here", "there"):
        ended_run(name=name, directory=str(tmp_path / name))
    here = orch("prune", "--keep", "0", "--name", "there")
    assert "orch prune --all" in here.err and len(orch.run_dirs()) == 2
    orch("prune", "--keep", "0", "-q")
    assert [run.name.partition("-")[0] for run in orch.run_dirs()] == ["there"]
    orch("prune", "--keep", "0", "--all", "--name", "there")
    assert orch.run_dirs() == []


def _size(orch: Orch) -> str:
    """Return the size that prune should report for the remaining runs."""
    from orchestrator.client.view.amounts import size
    from orchestrator.store.files import disk_bytes

    return size(sum(disk_bytes(run) for run in orch.run_dirs())) + "\n"
