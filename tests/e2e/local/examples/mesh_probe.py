"""Run by a test: trains a mesh and the same Keras model step by step, and prints both as JSON."""

from __future__ import annotations

import json
import sys

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from worker.training.data.datasets import load_dataset
from worker.training.mesh.steps import Adam, Devices, Network, Steps
from worker.training.network import build_model, build_network
from worker.training.process.environment import Place
from worker.training.weights import weight_table

STEPS = 4
EXAMPLES = 24
RATE = 0.003


def main(batch: int, model: int) -> None:
    devices = Devices.join((batch, model), Place())
    data = load_dataset("digits", 7)
    keras.utils.set_random_seed(7)
    reference = build_model((8, 8, 1), data.classes, RATE)
    table = weight_table((8, 8, 1), data.classes, 1)
    network = Network(devices, table, reference.get_weights())
    steps = Steps(devices, network, Adam(devices, table, RATE))
    found, expected = [], []
    for step in range(STEPS):
        images = data.train_images[step * EXAMPLES : (step + 1) * EXAMPLES]
        labels = data.train_labels[step * EXAMPLES : (step + 1) * EXAMPLES]
        steps.reset_means()
        steps.train(images, labels)
        found.append(steps.means())
        reference.reset_metrics()
        expected.append(reference.train_on_batch(images, labels, return_dict=True))
    difference = 0.0
    for weight, value in zip(network.weights, reference.get_weights(), strict=True):
        whole = dtensor.relayout(weight.read_value(), devices.replicated_layout(len(weight.shape)))
        difference = max(difference, float(abs(whole.numpy() - value).max()))
    held = [
        [int(tf.size(part)) for part in dtensor.unpack(weight.read_value())] for weight in network.weights
    ]
    broadcast = devices.broadcast_from_chief(41, Place())
    print(
        json.dumps(
            {
                "found": [dict(values) for values in found],
                "expected": [{name: float(value) for name, value in values.items()} for values in expected],
                "difference": difference,
                "held": held,
                "broadcast": broadcast,
                "shapes": [list(weight.shape) for weight in build_network((12, 9, 3), 7, 2).get_weights()],
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
