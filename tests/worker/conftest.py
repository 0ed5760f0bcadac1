"""What several files look at: a training of two workers, done once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import run_workers
from finished import Trained, names_in


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Two workers, default options, with a progress pipe on the chief that nobody reads until the end."""
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
