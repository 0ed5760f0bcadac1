"""The command `orch prune`."""

from __future__ import annotations

from pathlib import Path

from orch_command import Orch
from run_making import ended_run, live_run

from orchestrator.client.view.amounts import size
from orchestrator.store.files import disk_bytes


def test_prune_reports_what_it_removes_and_keeps(orch: Orch) -> None:
    here = str(orch.directory)
    plain, saved = (ended_run(name=name, directory=here) for name in ("plain", "saved"))
    (saved.checkpoints / "ckpt").write_text("w")
    live = live_run(name="live", directory=here)
    asked = orch("prune")
    assert asked.code == 2 and "--older-than 7d" in asked.err
    assert orch("prune", "--older-than", "soon").code == orch("prune", "--max-size", "much").code == 2
    left = size(sum(disk_bytes(run) for run in orch.run_dirs()))
    assert orch("prune", "--older-than", "1h").out.endswith(f"freed 0 B of 0 runs; 3 runs left, {left}\n")

    planned = orch("prune", "--keep", "0", "--dry-run", "--json").document
    done = orch("prune", "--keep", "0", "--json").document
    assert planned["dry_run"] and {**planned, "dry_run": False} == done
    assert {run["name"]: bool(run["kept_checkpoints"]) for run in done["runs"]} == {
        "plain": False,
        "saved": True,
    }
    assert done["freed_bytes"] == sum(run["freed_bytes"] for run in done["runs"]) > 0

    assert (orch("status", "plain").code, orch("status", "saved").code) == (3, 0)
    states = {run["name"]: run["state"] for run in orch("ls", "--json").document["runs"]}
    assert states == {"saved": "failed", "live": "running"}
    assert orch("prune", "--keep", "0", "--checkpoints").out.startswith(f"removed {saved.run_id}")
    live.close()
    assert orch("prune", "--max-size", "0").out.startswith("removed live-")
    assert orch.run_dirs() == [] and not plain.root.exists()


def test_prune_is_limited_to_this_directory_without_all(orch: Orch, tmp_path: Path) -> None:
    for name in ("here", "there"):
        ended_run(name=name, directory=str(tmp_path / name))
    here = orch("prune", "--keep", "0", "--name", "there")
    assert "orch prune --all" in here.err and len(orch.run_dirs()) == 2
    orch("prune", "--keep", "0", "-q")
    assert [run.name.partition("-")[0] for run in orch.run_dirs()] == ["there"]
    orch("prune", "--keep", "0", "--all", "--name", "there")
    assert orch.run_dirs() == []
