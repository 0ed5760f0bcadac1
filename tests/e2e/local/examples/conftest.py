"""A training of two workers, done once for several test files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Trained, names_in, run_workers


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Train with two workers and default options; the chief's progress is read at the end."""
    directory = tmp_path_factory.mktemp("trained")
    event_files = directory / "events"
    with run_workers(directory, 2, ["--tensorboard", str(event_files)], progress_of=0) as cluster:
        assert cluster.wait() == [0, 0], cluster.describe()
        yield Trained(
            cluster.outputs,
            cluster.checkpoints,
            event_files,
            [names_in(task.scratch) for task in cluster.tasks],
            cluster.read_progress(),
        )
