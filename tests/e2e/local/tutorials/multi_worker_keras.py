"""The TensorFlow documentation's "Multi-worker training with Keras", as one script: the same calls in the same order.

The launcher sets TF_CONFIG. Files are written below OUTPUT (by default here). EPOCHS and STEPS make it shorter.
"""

# The style is that of the documentation.
# ruff: noqa: PTH118, PTH120

import json
import os

import mnist_setup
import tensorflow as tf

per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
output = os.environ.get("OUTPUT", ".")
epochs = int(os.environ.get("EPOCHS", "3"))
steps_per_epoch = int(os.environ.get("STEPS", "70"))

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
multi_worker_dataset = multi_worker_dataset.with_options(options)

with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()

# Fault tolerance: every worker saves its state in its own directory.
backup_dir = os.path.join(output, f"backup-{tf_config['task']['index']}")
callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=backup_dir)]
history = multi_worker_model.fit(
    multi_worker_dataset, epochs=epochs, steps_per_epoch=steps_per_epoch, callbacks=callbacks
)

# Saving: all workers take part, and only the chief's files are kept.
task_type = strategy.cluster_resolver.task_type
task_id = strategy.cluster_resolver.task_id
cluster_spec = strategy.cluster_resolver.cluster_spec()

model_path = os.path.join(output, "keras-model.keras")
write_model_path = mnist_setup.write_filepath(model_path, task_type, task_id, cluster_spec)
multi_worker_model.save(write_model_path)
if not mnist_setup.is_chief(task_type, task_id, cluster_spec):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

# The same with a checkpoint.
checkpoint_dir = os.path.join(output, "ckpt")
checkpoint = tf.train.Checkpoint(model=multi_worker_model)
write_checkpoint_dir = mnist_setup.write_filepath(checkpoint_dir, task_type, task_id, cluster_spec)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
checkpoint_manager.save()
if not mnist_setup.is_chief(task_type, task_id, cluster_spec):
    tf.io.gfile.rmtree(write_checkpoint_dir)

if mnist_setup.is_chief(task_type, task_id, cluster_spec):
    loaded_model = tf.keras.models.load_model(model_path)
    loaded_model.fit(mnist_setup.mnist_dataset(64), epochs=1, steps_per_epoch=2, verbose=0)
    checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
print("losses", *(f"{loss:.4f}" for loss in history.history["loss"]))
