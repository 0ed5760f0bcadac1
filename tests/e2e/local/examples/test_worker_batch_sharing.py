"""Global batches that the replicas cannot share are refused, before the start if the replicas are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.training.options.checks import batch_problem, find_contradiction
from worker.training.options.fields import Options

TWO = {"ORCH_TRAINERS": "2"}


@pytest.mark.parametrize(
    ("options", "environment", "says"),
    [
        (Options(global_batch=1), TWO, "no example for some of 2 replicas: take at least 2"),
        (Options(global_batch=3, input="function"), TWO, "cannot be shared evenly by 2 replicas"),
        (Options(global_batch=3, auto_shard="off"), TWO, "cannot be shared evenly by 2 replicas"),
        (
            Options(global_batch=3, strategy="mirrored", replicas=4, loop="custom"),
            {},
            "for some of 4 replicas",
        ),
        (Options(global_batch=6, strategy="central-storage", replicas=4), {}, "take a multiple of 4"),
    ],
)
def test_global_batch_that_replicas_cannot_share_is_refused(
    options: Options, environment: dict[str, str], says: str
) -> None:
    found = find_contradiction(options, environment)
    assert found is not None and says in found


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (Options(global_batch=3), TWO),
        (Options(global_batch=3, last_batch="short"), TWO),
        (Options(global_batch=1), {}),
        # A user's setting for orch, not the number of this run.
        (Options(global_batch=1), {"ORCH_WORKERS": "2"}),
        (Options(global_batch=6, strategy="mirrored", replicas=4, loop="custom"), {}),
        (Options(global_batch=1, strategy="one-device"), TWO),
        (Options(global_batch=1, strategy="parameter-server", loop="custom"), TWO),
    ],
)
def test_global_batch_that_replicas_can_share_is_accepted(
    options: Options, environment: dict[str, str]
) -> None:
    assert find_contradiction(options, environment) is None


@pytest.mark.parametrize(("files", "refused"), [(1, False), (2, True)])
def test_auto_shards_by_file_only_with_enough_files(files: int, refused: bool, tmp_path: Path) -> None:
    names = ["test.tfrecord", "dataset.json", *(f"train-{number}.tfrecord" for number in range(files))]
    for name in names:
        (tmp_path / name).touch()
    options = Options(dataset=str(tmp_path), auto_shard="auto", global_batch=3)
    assert (find_contradiction(options, TWO) is not None) is refused
    assert find_contradiction(options, {}) is None


def test_replicas_of_workers_with_several_devices_are_counted() -> None:
    options = Options(global_batch=6, input="function")
    assert find_contradiction(options, TWO) is None
    found = batch_problem(options, 4, 2, global_batch=6, own_streams=False)
    assert found is not None and "by 4 replicas" in found
