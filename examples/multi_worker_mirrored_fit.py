"""Keras fit on several workers: orch up --workers 2 -- examples/multi_worker_mirrored_fit.py"""

import os

import digits
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch = 32 * strategy.num_replicas_in_sync

(x_train, y_train), (x_test, y_test) = digits.load_data()
train = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(2000, seed=7).repeat().batch(global_batch)
)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
train = train.with_options(options)

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
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.003),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# The same path on every worker: the chief writes it (ORCH_CHECKPOINT_DIR is one directory for all).
backup = tf.keras.callbacks.BackupAndRestore(os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "backup"))
keep = tf.keras.callbacks.ModelCheckpoint(
    os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "best.weights.h5"), save_weights_only=True
)
history = model.fit(
    train, epochs=5, steps_per_epoch=len(x_train) // global_batch, callbacks=[backup, keep], verbose=2
)
print(f"accuracy {history.history['accuracy'][-1]:.3f}")
