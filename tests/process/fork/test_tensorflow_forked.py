"""TensorFlow preloaded and forked: it trains, draws its own random numbers, and never hangs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_driving import Driver
from waiting import until

DRAW = """
import json, os, random
import tensorflow as tf
import keras
import numpy as np
from tensorflow.python.client import device_lib
layers = {
    "uniform": tf.random.uniform(()),
    "graph": tf.function(lambda: tf.random.normal(()))(),
    "stateful": tf.random.get_global_generator().normal(()),
    "keras": keras.random.uniform(()),
    "glorot": keras.initializers.GlorotUniform()((1, 1)),
    "he": tf.keras.initializers.HeNormal()((1, 1)),
    "dropout": tf.reduce_sum(keras.layers.Dropout(0.5)(tf.reshape(tf.range(1.0, 65.0) ** 1.5, (1, 64)), training=True)),
    "shuffle": [int(n) for n in tf.data.Dataset.range(30).shuffle(30)],
    "numpy": np.random.rand(),
    "numpy generator": np.random.default_rng().random(),
    "python": random.random(),
    "device": device_lib.list_local_devices()[0].incarnation,
}
drawn = {name: str(np.asarray(value).tolist()) for name, value in layers.items()}
tf.keras.utils.set_random_seed(7)
fixed = [float(tf.random.uniform(())), float(keras.random.uniform(())), np.random.rand(), random.random()]
fixed.append(float(np.asarray(keras.initializers.GlorotUniform()((1, 1)))[0][0]))
print("drawn", json.dumps([drawn, fixed]))
"""
STEP = """
import sys
import numpy as np
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 4), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)
(x @ np.ones((4, 300), "float32")).sum()
tf.linalg.matmul(tf.ones((300, 300)), tf.ones((300, 300)))
print("stepped")
"""


def drawn(agent: Driver, name: str) -> tuple[dict[str, str], list[float]]:
    ending = agent.ending(name)
    assert ending.exit_code == 0, ending.text
    (line,) = (line for line in ending.text.splitlines() if line.startswith("drawn "))
    found: Any = json.loads(line.removeprefix("drawn "))
    return found[0], found[1]


@pytest.mark.timeout(300)
def test_forked_siblings_draw_different_numbers_and_the_same_when_seeded(agent: Driver) -> None:
    agent.preload("tensorflow", "keras")
    agent.wait_until_preloaded()  # each wait has a separate limit
    for name in "ab":
        agent.run_task(name, ["-c", DRAW], fork=True)
    (first, fixed), (second, fixed_too) = drawn(agent, "a"), drawn(agent, "b")
    assert [agent.method_of(name) for name in "ab"] == ["fork", "fork"], agent.refusals()
    assert [key for key in first if first[key] == second[key]] == []
    assert fixed == fixed_too


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_forks_train_a_step(agent: Driver) -> None:
    """A lock that is held, or a thread that is missing, in a forked process shows as a task that never ends."""
    agent.preload("tensorflow", "keras")
    agent.wait_until_preloaded()
    for batch in range(0, 50, 5):
        names = [f"t{number}" for number in range(batch, batch + 5)]
        for name in names:
            agent.run_task(name, ["-c", STEP], fork=True)
        for name in names:
            ending = until(lambda name=name: agent.ending(name))  # type: ignore[misc]
            assert ending.exit_code == 0 and "stepped\n" in ending.text, ending.text
            assert agent.method_of(name) == "fork", agent.refusals()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_import_and_seeded_numbers_are_those_of_a_spawned_task(agent: Driver) -> None:
    program = (
        "import sys, warnings\nimport tensorflow as tf\n"
        "modules = [n for n in sys.modules if not n.startswith('_orch_')]\nimport json, os\n"
        "found = [modules, dict(os.environ), sorted(map(str, warnings.filters)),\n"
        "         len(os.listdir('/proc/self/task')), str(tf.__spec__), tf.__file__]\n"
    )
    agent.preload("tensorflow", "keras")
    for name in "ab":
        words = ["-c", f"{program}{DRAW}\nprint('found', json.dumps(found))"]
        agent.run_task(name, words, fork=name == "a", env={"ORCH_TASK": "x"})
    assert drawn(agent, "a")[1] == drawn(agent, "b")[1]
    assert agent.method_of("a") == "fork", agent.refusals()
    found = []
    for name in "ab":
        (line,) = (line for line in agent.ending(name).text.splitlines() if line.startswith("found"))
        found.append(json.loads(line.removeprefix("found ")))
    (modules, env, *others), (spawned_modules, spawned_env, *spawned_others) = found
    assert set(modules) ^ set(spawned_modules) == set()
    assert {name for name, _ in env.items() ^ spawned_env.items()} <= {"ORCH_PROGRESS_FD"}
    assert others == spawned_others
