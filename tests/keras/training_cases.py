"""Small trainings with the same result in one process and on several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from case_program import Place
from tensorflow.python.eager import context

Values = dict[str, Any]
EXAMPLES, BATCH, FEATURES, CLASSES = 64, 16, 6, 3


def data(examples: int = EXAMPLES) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    x = random.normal(size=(examples, FEATURES)).astype(np.float32)
    y = random.integers(0, CLASSES, size=examples)
    return x, y


def classifier(**layer: Any) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(8, activation="tanh", **layer),
            keras.layers.Dense(CLASSES, dtype="float32"),
        ]
    )


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(
    place: Place, make: Callable[[], Any] = classifier, optimizer: Any = "adam", **options: Any
) -> Any:
    """A compiled model. `optimizer` may be a function that creates one within the scope."""
    with place.scope():
        model = make()
        chosen = optimizer() if callable(optimizer) else optimizer
        model.compile(**{"optimizer": chosen, "loss": loss(), "metrics": ["accuracy"], **options})
    return model


def outcome(model: Any, history: Any = None, **more: Any) -> Values:
    values: Values = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    if history is not None:
        values |= {f"history {name}": numbers for name, numbers in history.history.items()}
    return values | more


def fit(place: Place, model: Any, **options: Any) -> Values:
    x, y = data()
    history = model.fit(x, y, **{"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False, **options})
    return outcome(model, history)


def plain_adam(place: Place) -> Values:
    return fit(place, compiled(place))


def evaluate_and_predict(place: Place) -> Values:
    model = compiled(place, optimizer="sgd")
    x, y = data()
    fit(place, model)
    scores = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    weighted = model.evaluate(x, y, sample_weight=np.arange(EXAMPLES) / 9.0, batch_size=BATCH, verbose=0)
    uneven = model.evaluate(*data(37), batch_size=BATCH, verbose=0)
    return outcome(
        model,
        predicted=model.predict(x, batch_size=BATCH, verbose=0),
        predicted_unevenly=model.predict(data(37)[0], batch_size=BATCH, verbose=0),
        uneven=uneven,
        weighted=weighted,
        **{f"score {name}": value for name, value in scores.items()},
    )


def momentum(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))
    return fit(place, model)


def shuffled(place: Place) -> Values:
    return fit(place, compiled(place), shuffle=True)


def shuffled_without_a_seed(place: Place) -> Values:
    """The weights do not change: the loss is that of all data if each example is used once an epoch."""
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.0))
    context.set_global_seed(None)
    return fit(place, model, shuffle=True)


def class_weights(place: Place) -> Values:
    return fit(place, compiled(place), class_weight={0: 1.0, 1: 3.0, 2: 0.5})


def sample_weights(place: Place) -> Values:
    model = compiled(place, weighted_metrics=["accuracy", "sparse_categorical_crossentropy"])
    return fit(place, model, sample_weight=np.linspace(0.1, 2.0, EXAMPLES).astype(np.float32))


def validation_data(place: Place) -> Values:
    return fit(place, compiled(place), validation_data=data(29), epochs=3)


def validation_split(place: Place) -> Values:
    return fit(place, compiled(place), validation_split=0.25)


def regularisers(place: Place) -> Values:
    def make() -> Any:
        return classifier(
            kernel_regularizer=keras.regularizers.L2(0.05), activity_regularizer=keras.regularizers.L1(0.01)
        )

    return fit(place, compiled(place, make, optimizer="sgd"))


def uneven_last_batch(place: Place) -> Values:
    x, y = data(52 + 5)
    model = compiled(place, lambda: classifier(kernel_regularizer="l2"), optimizer="sgd")
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, shuffle=False)
    return outcome(model, history)


def lonely_example(place: Place) -> Values:
    """A last batch smaller than the number of workers."""
    x, y = data(BATCH * 2 + 1)
    model = compiled(place, optimizer="sgd")
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return outcome(model, history)


def odd_batches(place: Place) -> Values:
    """A global batch that cannot be divided equally."""
    return fit(place, compiled(place, optimizer="sgd"), batch_size=7)


def several_steps_an_execution(place: Place) -> Values:
    model = compiled(place, steps_per_execution=3)
    values = fit(place, model)
    x, y = data()
    return values | {
        "score": model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "predicted": model.predict(x, batch_size=BATCH, verbose=0),
    }


def several_steps_without_end(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    model = compiled(place, steps_per_execution=2)
    return outcome(model, model.fit(batches, steps_per_epoch=4, epochs=2, verbose=0))


def finite_batches(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data(57)).batch(BATCH)
    model = compiled(place, optimizer="sgd")
    return outcome(model, model.fit(batches, epochs=2, verbose=0, validation_data=batches))


def endless_then_finite(place: Place) -> Values:
    batches = tf.data.Dataset.from_tensor_slices(data(57)).batch(BATCH)
    model = compiled(place, optimizer="sgd")
    model.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0)
    return outcome(model, model.fit(batches, epochs=2, verbose=0))


def bfloat16(place: Place) -> Values:
    keras.config.set_dtype_policy("mixed_bfloat16")
    return fit(place, compiled(place, optimizer="sgd"))


def float16_with_loss_scaling(place: Place) -> Values:
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.1))
    values = fit(place, model)
    return values | {"scale": float(model.optimizer.dynamic_scale.numpy())}


def loss_scaling_with_overflow(place: Place) -> Values:
    """The half batch of a single worker overflows: all workers must skip the step."""
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(0.1))
    x, y = data()
    x[BATCH] = 60000.0
    history = model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    return outcome(model, history) | {"scale": float(model.optimizer.dynamic_scale.numpy())}


def early_stopping(place: Place) -> Values:
    model = compiled(place, optimizer=lambda: keras.optimizers.SGD(3.0))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    return fit(place, model, validation_data=data(32), epochs=12, callbacks=[stop])


def clipped_gradients(place: Place) -> Values:
    return fit(place, compiled(place, optimizer=lambda: keras.optimizers.SGD(1.0, clipnorm=0.05)))


def globally_clipped_gradients(place: Place) -> Values:
    return fit(place, compiled(place, optimizer=lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.05)))


def accumulated_gradients(place: Place) -> Values:
    optimizer = lambda: keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)  # noqa: E731
    return fit(place, compiled(place, optimizer=optimizer))


def decayed_averaged_weights(place: Place) -> Values:
    def optimizer() -> Any:
        return keras.optimizers.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3)

    return fit(place, compiled(place, optimizer=optimizer))


def on_single_batches(place: Place) -> Values:
    model = compiled(place)
    x, y = data(BATCH)
    trained = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
    weighted = model.train_on_batch(x, y, sample_weight=np.linspace(0, 1, BATCH), return_dict=True)
    tested = model.test_on_batch(x, y, return_dict=True)
    return outcome(
        model,
        predicted=model.predict_on_batch(x),
        **{f"trained {name}": [one[name] for one in trained] for name in trained[0]},
        **{f"weighted {name}": value for name, value in weighted.items()},
        **{f"tested {name}": value for name, value in tested.items()},
    )


def generator(place: Place) -> Values:
    x, y = data()

    def batches() -> Any:
        while True:
            for start in range(0, EXAMPLES, BATCH):
                yield x[start : start + BATCH], y[start : start + BATCH]

    model = compiled(place)
    return outcome(model, model.fit(batches(), steps_per_epoch=4, epochs=2, verbose=0))


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x, y = data(57)
        part = slice(index * BATCH, (index + 1) * BATCH)
        return x[part], y[part]


def py_dataset(place: Place) -> Values:
    model = compiled(place, optimizer="sgd")
    return outcome(model, model.fit(Batches(), epochs=2, verbose=0, shuffle=False))


def eagerly(place: Place) -> Values:
    return fit(place, compiled(place, run_eagerly=True), epochs=1)


def summed_loss(place: Place) -> Values:
    def summed() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    return fit(place, compiled(place, optimizer=lambda: keras.optimizers.SGD(0.01), loss=summed()))
