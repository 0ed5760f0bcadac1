"""Trains data and model parallel by DTensor: each device holds a part of each layer.

orch up --mesh batch=2,model=2 --workers 2        # runs this file: 2 processes with 2 logical devices each
orch example dtensor                              # writes it here, to edit
"""

import argparse
import os

import common
import tensorflow as tf
from tensorflow.experimental import dtensor

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10, help="in total, with those of earlier runs")
parser.add_argument("--steps-per-epoch", type=int, help="default: one pass over the examples")
parser.add_argument("--batch-size", type=int, default=64, help="examples of all devices in a step")
parser.add_argument("--learning-rate", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--dataset", default="digits", help="digits, mnist, FILE.npz, DIR of TFRecord files")
options = parser.parse_args()

# orch describes the processes in DTENSOR_CLIENT_ID, DTENSOR_JOBS and so on.
kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
sizes = {"batch": 1, "model": 1} | dict(part.split("=") for part in os.environ["ORCH_MESH"].split(","))
dtensor.initialize_accelerator_system(kind)
mesh = dtensor.create_distributed_mesh([(name, int(size)) for name, size in sizes.items()], device_type=kind)
print(
    f"client {dtensor.client_id()} of {dtensor.num_clients()}, {mesh.num_local_devices()} devices of {mesh.size}",
    flush=True,
)

digits = common.load(options.dataset, options.seed)
steps = options.steps_per_epoch or max(1, digits.examples // options.batch_size)
pixels, hidden = int(tf.reduce_prod(digits.shape)), 256
replicated = dtensor.Layout.replicated(mesh, rank=2)
by_batch = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)


def variable(shape, spec, seed):
    value = tf.random.stateless_normal(shape, seed=(options.seed, seed)) * shape[0] ** -0.5
    value = dtensor.relayout(dtensor.copy_to_mesh(value, replicated), dtensor.Layout(spec, mesh))
    return dtensor.DVariable(value)


# The first layer is cut by columns, the second by rows.
w1 = variable((pixels, hidden), [dtensor.UNSHARDED, "model"], 1)
w2 = variable((hidden, digits.classes), ["model", dtensor.UNSHARDED], 2)
done = dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(0), dtensor.Layout.replicated(mesh, rank=0)))


def forward(images):
    return tf.matmul(tf.nn.relu(tf.matmul(images, w1)), w2)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        losses = tf.nn.softmax_cross_entropy_with_logits(labels, forward(images))
        loss = tf.reduce_sum(losses) / options.batch_size
    for weight, gradient in zip([w1, w2], tape.gradient(loss, [w1, w2]), strict=True):
        weight.assign_sub(options.learning_rate * gradient)
    return loss


@tf.function
def hits(images, labels):
    found = tf.equal(tf.argmax(forward(images), axis=1), tf.argmax(labels, axis=1))
    return tf.reduce_sum(tf.cast(found, tf.float32))


def shared(images, labels):
    """Cut the whole batch, which every process has, over the devices."""
    flat = tf.reshape(images, [-1, pixels]), tf.one_hot(labels, digits.classes)
    return [dtensor.relayout(dtensor.copy_to_mesh(each, replicated), by_batch) for each in flat]


# Each process writes the parts of its own devices.
checkpoint = tf.train.Checkpoint(w1=w1, w2=w2, epoch=done)
checkpoint.restore(tf.train.latest_checkpoint(common.CHECKPOINTS))
manager = tf.train.CheckpointManager(checkpoint, common.CHECKPOINTS, max_to_keep=3)
first = int(done.numpy()) if hasattr(done, "numpy") else int(done)
batches = iter(digits.batches(options.batch_size, first * steps))
for epoch in range(first + 1, options.epochs + 1):
    losses = [float(train_step(*shared(*next(batches)))) for _ in range(steps)]
    common.report(phase="training", epoch=epoch, epochs=options.epochs, step=steps, steps=steps)
    print(f"epoch {epoch}/{options.epochs}, loss {sum(losses) / steps:.4f}", flush=True)
    done.assign_add(1)
    manager.save(checkpoint_number=epoch)

images, labels = digits.test
even = len(labels) // options.batch_size * options.batch_size
accuracy = float(hits(*shared(images[:even], labels[:even]))) / even
print(f"held-out accuracy {accuracy:.4f}", flush=True)
