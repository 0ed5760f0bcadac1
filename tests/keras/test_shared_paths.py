"""All workers save to one path: none fails, the chief's complete files stay, and all restore the same state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_runs import run_cases

from worker.bootstrap.keras_fix import saves
from worker.bootstrap.keras_fix.callbacks import Saver

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_checkpoints_and_logs_of_all_workers_on_one_path(tmp_path: Path) -> None:
    outcome = run_cases(tmp_path, 2, ["every_checkpoint", "averaged_often", "logged", "checkpoint_manager"])
    saved = outcome.of_all("every_checkpoint")
    for name in [name for name in saved if name.startswith("weight")]:
        np.testing.assert_array_equal(saved[name], saved[f"whole {name}"])
    outcome.of_all("averaged_often")
    for rank, values in enumerate(outcome.of("logged")):
        assert values["lines"] == 5  # a header and a line an epoch, once
        assert values["on the chief's path"] == (rank == 0)
    for values in outcome.of("checkpoint_manager"):
        np.testing.assert_array_equal(values["restored"], np.full(1000, 5.0))
        np.testing.assert_array_equal(values["written"], np.full(1000, 5.0))
    shared = [*tmp_path.glob("*.files/shared")]
    assert len(shared) == 4
    assert not [hidden for directory in shared for hidden in directory.rglob(".*")]


@pytest.mark.slow
def test_a_restart_continues_from_one_state(tmp_path: Path) -> None:
    outcome = run_cases(tmp_path, 2, ["restored", "started_apart"])
    values = outcome.of_all("restored")
    assert values["had backup"]
    assert values["epochs"].tolist() == [2, 3]
    for name in [name for name in values if name.startswith("weight")]:
        np.testing.assert_allclose(values[name], values[f"uninterrupted {name}"], rtol=1e-6, atol=1e-7)
    assert outcome.of_all("started_apart")["epochs"].tolist() == [1, 2]
    assert not (tmp_path / "restored.files" / "shared" / "backup").exists()


@pytest.fixture
def as_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Saves `text` to `path` as the given worker of two would."""
    counts: dict[int, dict[str, int]] = {0: {}, 1: {}}

    def save(rank: int, path: Path, text: str) -> None:
        scratch = tmp_path / "scratch" / str(rank)
        scratch.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("ORCH_SCRATCH_DIR", str(scratch))
        monkeypatch.setenv(
            "TF_CONFIG",
            f'{{"cluster": {{"worker": ["a:1", "b:1"]}}, "task": {{"type": "worker", "index": {rank}}}}}',
        )
        monkeypatch.setattr(saves, "_saved", counts[rank])
        beside = path.with_name(f".{rank}")
        beside.write_text(text)
        saves.put_in_place(path, [(beside, path)])
        beside.unlink(missing_ok=True)

    return save


def test_the_chiefs_file_stays_in_any_order_of_saves(tmp_path: Path, as_worker) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "model.keras"
    # Each: the worker that saves, its text, and the text of the file then.
    for rank, text, then in (
        (1, "other 1", "other 1"),
        (0, "chief 1", "chief 1"),
        (0, "chief 2", "chief 2"),
        (1, "other 2", "chief 2"),
        (1, "other 3", "other 3"),
        (0, "chief 3", "chief 3"),
    ):
        as_worker(rank, path, text)
        assert path.read_text() == then, text


def test_a_worker_writes_another_path_and_a_removed_file(tmp_path: Path, as_worker) -> None:  # type: ignore[no-untyped-def]
    chief, other = tmp_path / "chief.keras", tmp_path / "other.keras"
    as_worker(0, chief, "chief")
    as_worker(1, other, "other")
    assert other.read_text() == "other"
    as_worker(0, tmp_path / "model.keras", "chief")
    (tmp_path / "model.keras").unlink()
    as_worker(1, tmp_path / "model.keras", "other")
    assert (tmp_path / "model.keras").read_text() == "other"


def test_savers_count_batches_as_the_callbacks_do() -> None:
    plain = Saver(every=3, seen=0, last=-1)
    assert [plain.is_due(batch) for batch in (0, 1, 2, 3, 4, 5)] == [False, False, True, False, False, True]
    # Four batches an epoch, two at a time.
    pairs = Saver(every=3, seen=0, last=-1)
    assert [pairs.is_due(batch) for batch in (1, 3, 1, 3)] == [False, True, False, True]
