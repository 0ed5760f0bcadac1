"""A script whose generators yield slices of NumPy arrays, in whose memory TensorFlow may compute. It prints for each
case which arrays have changed, and the losses. Its arguments name the cases."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

EXAMPLES, BATCH, FEATURES = 256, 32, 16
workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy() if workers > 1 else tf.distribute.get_strategy()


def placed(values):  # type: ignore[no-untyped-def]
    """The values in float32 at an address that TensorFlow uses without a copy."""
    memory = np.empty(values.size * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.size * 4].view(np.float32).reshape(values.shape)
    array[...] = values
    return array


def arrays():  # type: ignore[no-untyped-def]
    random = np.random.default_rng(3)
    x = random.normal(size=(EXAMPLES, FEATURES))
    return placed(x), placed(x.sum(axis=1, keepdims=True)), placed(random.uniform(0.5, 1.5, EXAMPLES))


def batch(parts, number):  # type: ignore[no-untyped-def]
    start = number % (EXAMPLES // BATCH) * BATCH
    return tuple(part[start : start + BATCH] for part in parts)


def endless(parts):  # type: ignore[no-untyped-def]
    number = 0
    while True:
        yield batch(parts, number)
        number += 1


def dataset(parts):  # type: ignore[no-untyped-def]
    specs = tuple(tf.TensorSpec((BATCH, *part.shape[1:]), tf.float32) for part in parts)
    return tf.data.Dataset.from_generator(lambda: endless(parts), output_signature=specs)


def model():  # type: ignore[no-untyped-def]
    keras = tf.keras
    keras.utils.set_random_seed(7)
    with strategy.scope():
        made = keras.Sequential([keras.layers.Rescaling(0.5), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    return made


def generator(parts, others):  # type: ignore[no-untyped-def]
    made = model()
    made.fit(endless(parts), steps_per_epoch=8, epochs=2, verbose=0)
    history = made.fit(
        dataset(parts), steps_per_epoch=8, validation_data=dataset(others), validation_steps=8, verbose=0
    ).history
    scores = [made.evaluate(endless(others), steps=8, verbose=0) for _ in range(2)]
    return [*history["loss"], *history["val_loss"], *scores]


def indexed(parts, _):  # type: ignore[no-untyped-def]
    class Batches(tf.keras.utils.Sequence):  # type: ignore[misc, name-defined]
        def __len__(self):  # type: ignore[no-untyped-def]
            return EXAMPLES // BATCH

        def __getitem__(self, number):  # type: ignore[no-untyped-def]
            return batch(parts, number)

    return model().fit(Batches(), epochs=2, shuffle=False, verbose=0).history["loss"]


def own_loop(parts, _):  # type: ignore[no-untyped-def]
    @tf.function
    def step(batches):  # type: ignore[no-untyped-def]
        return strategy.run(
            lambda parts: [tf.reduce_mean(part - 1.0) for part in parts], args=(next(batches),)
        )

    batches = iter(strategy.experimental_distribute_dataset(dataset(parts)))
    for _ in range(16):
        step(batches)


def pipeline(parts, _):  # type: ignore[no-untyped-def]
    x, y, weights = parts

    def pick(array, function, convert):  # type: ignore[no-untyped-def]
        def rows(start):  # type: ignore[no-untyped-def]
            return convert(array[int(start) : int(start) + BATCH])

        def half(start):  # type: ignore[no-untyped-def]
            return (
                tf.ensure_shape(function(rows, [start], tf.float32), (BATCH, *array.shape[1:]))[: BATCH // 2]
                - 1.0
            )

        return tf.data.Dataset.range(0, EXAMPLES, BATCH).map(half)

    for data in (
        pick(x, tf.numpy_function, lambda rows: rows),
        pick(weights, tf.py_function, tf.stop_gradient),
        dataset((y,)).take(8).map(lambda rows: rows[: BATCH // 2] - 1.0),
    ):
        for _ in data:
            pass


for case in sys.argv[1:]:
    everything = [arrays(), arrays()]
    before = [[part.copy() for part in parts] for parts in everything]
    losses = globals()[case](*everything)
    changed = [
        f"{where}{index}"
        for where, parts, copies in zip(("parts ", "others "), everything, before, strict=True)
        for index, (part, copy) in enumerate(zip(parts, copies, strict=True))
        if not np.array_equal(part, copy)
    ]
    print("found", json.dumps({"case": case, "changed": changed, "losses": losses}), flush=True)
