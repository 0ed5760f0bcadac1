"""A training of two workers, done once for several test files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import TRAINED_EPOCHS, Trained, names_in, run_workers
from forks import ForkServer


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Trained]:
    """Train a short time with two workers; the chief's progress is read at the end."""
    directory = tmp_path_factory.mktemp("trained")
    event_files = directory / "events"
    words = ["--epochs", str(TRAINED_EPOCHS), "--tensorboard", str(event_files)]
    with run_workers(directory, 2, words, progress_of=0, forks=forks) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        yield Trained(
            cluster.outputs,
            cluster.checkpoints,
            event_files,
            [names_in(task.scratch) for task in cluster.tasks],
            cluster.read_progress(),
        )
