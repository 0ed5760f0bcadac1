"""A real training as a function of a script, twice in a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import orchestrator

def train(epochs):
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((32, 4), "f4"), np.ones((32, 1), "f4"))).batch(8).repeat()
    history = model.fit(data, epochs=epochs, steps_per_epoch=3, verbose=0)
    return history.history["loss"], strategy.num_replicas_in_sync

def started():
    # How the tasks of the last run were started, and whether it waited for imports.
    lines = map(json.loads, orchestrator.find().view.paths.events.read_text().splitlines())
    events = [event for event in lines if event["type"] in ("task_started", "preload")]
    known = [event for event in events if event.get("seconds") is not None or "method" in event]
    return {event.get("method") or event["seconds"] > 0 for event in known}

def tensor():
    import tensorflow as tf
    return tf.constant([1.0, 2.0])

with orchestrator.Session() as session:
    for epochs in (1, 2):
        one, other = session.run(train, (epochs,), workers=2)
        assert one == other and len(one[0]) == epochs and one[1] == 2, (one, other)
        assert started() == {"fork", epochs == 1}, started()
    assert "tensorflow" not in sys.modules
    try:
        session.run(tensor)
    except orchestrator.TaskFailed as error:
        print(error)
    import tensorflow as tf
    print(session.run(tensor)[0].numpy().tolist())
"""


@pytest.mark.slow
def test_training_twice_in_a_session(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False
    )
    assert script.returncode == 0, script.stderr
    refused, tensor = script.stdout.splitlines()
    assert "tensorflow, which this process has not imported" in refused
    assert tensor == "[1.0, 2.0]"
