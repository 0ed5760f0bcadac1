"""Clusters of the training program; one training of two workers is done once for several test files."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import TRAINED_EPOCHS, Cluster, Clusters
from forks import ForkServer


@pytest.fixture
def clusters(tmp_path: Path, forks: ForkServer) -> Clusters:
    return Clusters(tmp_path, forks)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Cluster:
    """A short training of two workers, with the chief's progress; its event files are in checkpoints/../events."""
    directory = tmp_path_factory.mktemp("trained")
    words = ["--epochs", str(TRAINED_EPOCHS), "--tensorboard", str(directory / "cluster-1" / "events")]
    return Clusters(directory, forks).train(2, *words)
