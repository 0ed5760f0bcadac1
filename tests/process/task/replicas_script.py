"""A user's script without orch: Keras 3 under strategies of one process. It prints a JSON line for each case."""

import functools
import json
import sys

import keras
import numpy as np
import tensorflow as tf

DEVICES = [device.name for device in tf.config.list_logical_devices("CPU")]


# The collectives of two strategies of one kind would be mixed up in one process.
@functools.cache
def strategy(name):
    if name == "central-storage":
        return tf.distribute.experimental.CentralStorageStrategy(DEVICES)
    return tf.distribute.MirroredStrategy(DEVICES) if name == "mirrored" else tf.distribute.get_strategy()


def metrics(name):
    """Losses, metrics and the sum of all weights after `fit` and `evaluate`."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(32, 5)).astype("float32")
    y = (x.sum(1) > 0).astype("float32")[:, None]
    keras.utils.set_random_seed(7)
    with strategy(name).scope():
        model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.AUC(from_logits=True), keras.metrics.MeanSquaredError()],
        )
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    numbers = [value for values in history.values() for value in values]
    weights = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
    return [*numbers, *model.evaluate(x, y, batch_size=8, verbose=0), weights]


def overflow(name):
    """[weight, scale, steps] after each of three steps; in the second the last replica's gradient is infinite."""
    replicas = strategy(name)
    with replicas.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25), initial_scale=4.0)
        optimizer.build(model.trainable_variables)

    def one_replica(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(model(x)) / 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def step(x):
        replicas.run(one_replica, args=(x,))

    found = []
    for numbers in ([1.0, 1.0], [1.0, np.inf], [1.0, 1.0]):
        step(
            replicas.experimental_distribute_values_from_function(
                lambda context, numbers=numbers: tf.constant([[numbers[context.replica_id_in_sync_group]]])
            )
        )
        state = (model.get_weights()[0], optimizer.dynamic_scale, optimizer.iterations)
        found.append([float(np.squeeze(keras.ops.convert_to_numpy(value))) for value in state])
    return found


def late(name, is_scaled):
    """The losses of a loop whose optimizer was not built before its first step."""
    replicas = strategy(name)
    keras.utils.set_random_seed(1)
    with replicas.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        if is_scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)

    def one_replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2) / 8
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(x):
        return replicas.reduce("SUM", replicas.run(one_replica, args=(x,)), axis=None)

    data = tf.data.Dataset.from_tensor_slices(np.ones((24, 4), "float32")).batch(8)
    losses = [float(step(batch)) for batch in replicas.experimental_distribute_dataset(data)]
    return [*losses, int(optimizer.iterations.numpy())]


def outside(name, optimizer):
    """The losses and metrics of a model that is compiled outside of its strategy's scope."""
    keras.utils.set_random_seed(1)
    with strategy(name).scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer(), "mse", metrics=["mae", keras.metrics.MeanSquaredError()])
    x = np.random.default_rng(3).normal(size=(32, 4)).astype("float32")
    history = model.fit(x, x.sum(1), batch_size=8, epochs=3, shuffle=False, verbose=0).history
    numbers = [value for values in history.values() for value in values]
    return [*numbers, int(model.optimizer.iterations.numpy())]


CASES = {
    "metrics one": lambda: metrics("one"),
    "metrics central-storage": lambda: metrics("central-storage"),
    "overflow mirrored": lambda: overflow("mirrored"),
    "overflow central-storage": lambda: overflow("central-storage"),
    "late one": lambda: late("one", False),
    "late mirrored": lambda: late("mirrored", False),
    "late mirrored scaled": lambda: late("mirrored", True),
    "outside one": lambda: outside("one", lambda: "adam"),
    "outside mirrored": lambda: outside("mirrored", lambda: "adam"),
    "outside mirrored, made before": lambda: outside("mirrored", keras.optimizers.Adam),
}

for case in sys.argv[1:] or CASES:
    try:
        found = CASES[case]()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps({"case": case, "found": found}), flush=True)
