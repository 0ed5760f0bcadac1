"""Trains a model with whole variables and one with cut variables. A whole model reads the weights of the cut one."""

import sys

import keras
import numpy as np
import tensorflow as tf

from worker.bootstrap.keras_fix import variables

SHARDED = tf.__internal__.distribute.ShardedVariable
WORDS = np.random.default_rng(0).integers(0, 7, size=(24, 3)).astype("int32")
WANTED = WORDS.sum(1, keepdims=True).astype("float32") / 10
OPTIMIZERS = (
    lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    lambda: keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=0.01),
)


def model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.layers.Input((3,), dtype="int32"),
            keras.layers.Embedding(7, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            keras.layers.Dense(1),
        ]
    )


def cut(whole):
    for variable in whole.trainable_variables:
        value = variable.numpy()
        if len(value) > 1:
            first = (len(value) + 1) // 2
            parts = [tf.Variable(value[:first]), tf.Variable(value[first:])]
            variable._value = SHARDED(parts, name=variable.name)
    return whole


def trained(network, optimizer):
    optimizer.build(variables.by_parts(network.trainable_variables))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x) - y) ** 2)
        gradients = tape.gradient(loss, network.trainable_variables)
        # A generator, as Keras allows: it can be read only once.
        optimizer.apply(gradients, (variable for variable in network.trainable_variables))

    for _ in range(3):
        for first in range(0, len(WORDS), 8):
            step(WORDS[first : first + 8], WANTED[first : first + 8])
    return network


variables.train_cut_variables(keras, report=print)
for make_optimizer in OPTIMIZERS:
    whole, parts = trained(model(), make_optimizer()), trained(cut(model()), make_optimizer())
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
path = tf.train.Checkpoint(model=parts).write(sys.argv[1])
read = model()
tf.train.Checkpoint(model=read).read(path).assert_existing_objects_matched()
assert all(np.array_equal(a, b) for a, b in zip(parts.get_weights(), read.get_weights(), strict=True))
print("equal")
