"""A script that asks TensorFlow's SlurmClusterResolver gets the cluster that all other scripts get."""

from __future__ import annotations

import json
from pathlib import Path

from tasks import finished

_NODES = 12
_SCRIPT = """
import json
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=9000)
cluster = resolver.cluster_spec().as_dict()
print("found", json.dumps([cluster, resolver.get_task_info(), resolver.master()]))
"""


def test_resolver_answers_from_tf_config(tmp_path: Path) -> None:
    """Slurm's variables describe the agent of the node. Sorted by text, n10 would be the second node."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    cluster = {"worker": [f"n{number}:{4000 + number}" for number in range(1, _NODES + 1)]}
    environ = {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}),
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NODELIST": "n2",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    }
    task = finished(tmp_path, ["script.py"], env=environ)
    (line,) = [line for line in task.output.splitlines() if line.startswith("found ")]
    assert json.loads(line.removeprefix("found ")) == [cluster, ["worker", 1], "grpc://n2:4002"]
