"""Cases: own loops."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from case import (
    BATCH,
    EXAMPLES,
    FEATURES,
    UNEVEN,
    Place,
    Run,
    Values,
    cross_entropy,
    data,
    mlp,
    numbers,
    outcome,
    topic,
)

case = topic("own loops")


def distributed(place: Place, examples: int = EXAMPLES) -> Any:
    batches = tf.data.Dataset.from_tensor_slices(data(examples)).batch(BATCH)
    return place.strategy.experimental_distribute_dataset(batches)


def looped(
    optimizer: Any,
    *,
    examples: int = EXAMPLES,
    many: bool = False,
    eager: bool = False,
    built: bool = True,
) -> Run:
    """Return a case that trains as TensorFlow's tutorial does: strategy.run, a loss for the global batch,
    the gradients summed."""

    def train(place: Place) -> Values:
        with place.scope():
            model = mlp()
            descent = optimizer()
            if built:
                descent.build(model.trainable_variables)
            entropy = cross_entropy(reduction=None)
            accuracy = keras.metrics.SparseCategoricalAccuracy()

        def step(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = tf.nn.compute_average_loss(entropy(y, y_pred), global_batch_size=BATCH)
            variables = model.trainable_variables
            descent.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            accuracy.update_state(y, y_pred)
            return loss

        def all_step(batch: Any) -> Any:
            return place.strategy.reduce("SUM", place.strategy.run(step, args=(batch,)), axis=None)

        def all_steps(batches: Any) -> Any:
            total = tf.constant(0.0)
            for batch in batches:
                total += all_step(batch)
            return total

        run = all_step if eager else tf.function(all_steps if many else all_step)
        losses: list[float] = []
        batches = distributed(place, examples)
        for _ in range(2):
            losses += [float(run(batches))] if many else [float(run(batch)) for batch in batches]
        return outcome(model, losses=losses)

    return train


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
case("loop with strategy.run", looped(lambda: SGD(0.1, momentum=0.9)), three=True, quick=True)
case("loop that builds its optimizer in the first step", looped(lambda: SGD(0.1, momentum=0.9), built=False))
case("loop with strategy.run, not in a tf.function", looped(lambda: SGD(0.1), eager=True))
case("loop within one tf.function", looped(lambda: SGD(0.1), many=True))
case("loop with a smaller last batch", looped(lambda: SGD(0.1), examples=UNEVEN), three=True)
case("loop with Adam and clipping", looped(lambda: Adam(0.05, global_clipnorm=0.05)), three=True)
case("loop with gradient accumulation", looped(lambda: SGD(0.5, gradient_accumulation_steps=2)))
case("loop with a schedule", looped(lambda: SGD(keras.optimizers.schedules.CosineDecay(0.5, 6))))


@case("loop without Keras (tf.Module, assign_sub)", three=True)
def module_loop(place: Place) -> Values:
    with place.scope():
        weights = tf.Variable(numbers(FEATURES, 1, seed=7))

    def step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            errors = tf.square(tf.matmul(x, weights)[:, 0] - tf.cast(y, tf.float32))
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce("SUM", tape.gradient(loss, weights))
        weights.assign_sub(0.05 * gradient)
        return loss

    @tf.function
    def all_step(batch: Any) -> Any:
        return place.strategy.reduce("SUM", place.strategy.run(step, args=(batch,)), axis=None)

    losses = [float(all_step(batch)) for batch in distributed(place)]
    return {"weights": weights.numpy(), "losses": losses}


@case("loop from distribute_datasets_from_function")
def shares_loop(place: Place) -> Values:
    def mine(context: Any) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(data())
        batches = batches.batch(context.get_per_replica_batch_size(BATCH))
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    with place.scope():
        total = tf.Variable(tf.zeros([FEATURES]), aggregation=tf.VariableAggregation.SUM)

    def step(batch: Any) -> Any:
        return tf.reduce_sum(batch[0], axis=0)

    for batch in place.strategy.distribute_datasets_from_function(mine):
        total.assign_add(place.strategy.reduce("SUM", place.strategy.run(step, args=(batch,)), axis=None))
    return {"total": total.numpy()}


@case("strategy.gather and reduce over an axis", three=True)
def gathered(place: Place) -> Values:
    found = []
    for batch in distributed(place, UNEVEN):
        doubled = place.strategy.run(lambda pair: pair[0] * 2.0, args=(batch,))
        found.append(place.strategy.gather(doubled, axis=0).numpy())
        found.append(place.strategy.reduce("MEAN", doubled, axis=0).numpy()[None])
    return {f"part {index}": part for index, part in enumerate(found)}


@case("loop of evaluation with metrics, uneven batches")
def evaluating_loop(place: Place) -> Values:
    with place.scope():
        model = mlp()
        found = [keras.metrics.SparseCategoricalAccuracy(), keras.metrics.SparseCategoricalCrossentropy()]

    @tf.function
    def step(batch: Any) -> None:
        def one(pair: Any) -> None:
            x, y = pair
            for metric in found:
                metric.update_state(y, tf.nn.softmax(model(x)))

        place.strategy.run(one, args=(batch,))

    for batch in distributed(place, UNEVEN):
        step(batch)
    return {metric.name: float(metric.result()) for metric in found}
