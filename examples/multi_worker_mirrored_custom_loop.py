"""A custom loop on several workers: orch up --workers 2 -- examples/multi_worker_mirrored_custom_loop.py"""

import os

import digits
import tensorflow as tf

EPOCHS, PER_WORKER_BATCH = 5, 32

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
is_chief = resolver.task_type in (None, "chief") or resolver.task_id == 0
global_batch = PER_WORKER_BATCH * strategy.num_replicas_in_sync

(x_train, y_train), (x_test, y_test) = digits.load_data()
steps = len(x_train) // global_batch


def dataset_fn(context):
    """Each worker reads its own part of the examples."""
    data = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.shuffle(2000, seed=7).repeat().batch(context.get_per_replica_batch_size(global_batch))


train = iter(strategy.distribute_datasets_from_function(dataset_fn))

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.003)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    per_example = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(iterator):
    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.compute_average_loss(per_example(labels, logits), global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, logits)
        return loss

    losses = strategy.run(replica_step, args=next(iterator))
    return strategy.reduce("SUM", losses, axis=None)


# Every worker takes part in saving; only the chief's file is kept.
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
directory = os.environ["ORCH_CHECKPOINT_DIR" if is_chief else "ORCH_SCRATCH_DIR"]
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)

for epoch in range(1, EPOCHS + 1):
    total = sum(train_step(train) for _ in range(steps))
    print(f"epoch {epoch}: loss {total / steps:.4f}, accuracy {accuracy.result():.3f}", flush=True)
    accuracy.reset_state()
    manager.save()
