"""A user's script for parameter servers, without orch.

It counts steps, and trains an embedding that is cut over the servers. Its chief prints the result as a JSON line.
"""

import json

import keras
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()

strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((3,), dtype="int32"),
            keras.layers.Embedding(9, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_constraint=keras.constraints.NonNeg()),
        ]
    )
    optimizer = keras.optimizers.Adam(0.05)
    mean = keras.metrics.Mean()

words = np.random.default_rng(0).integers(0, 9, size=(64, 3)).astype("int32")
wanted = words.sum(1, keepdims=True).astype("float32") / 10


def examples():
    return tf.data.Dataset.from_tensor_slices((words, wanted)).repeat().batch(8)


@tf.function
def step(iterator):
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(loss)
        return loss

    return strategy.reduce("SUM", strategy.run(one_replica, args=next(iterator)), axis=None)


iterator = iter(coordinator.create_per_worker_dataset(examples))
losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(60)]
coordinator.join()
losses = [float(loss.fetch()) for loss in losses]

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
before = model.get_weights()
path = checkpoint.save("saved")
model.set_weights([weight * 0 for weight in before])
checkpoint.restore(path)
after = model.get_weights()
found = {
    "first": float(np.mean(losses[:5])),
    "last": float(np.mean(losses[-5:])),
    "steps": int(optimizer.iterations.numpy()),
    "counted": float(mean.count.numpy()),
    "lowest": float(after[1].min()),
    "restored": all(np.array_equal(one, other) for one, other in zip(before, after, strict=True)),
    "parts": len(model.trainable_variables[0].value.variables),
}
print(json.dumps(found), flush=True)
