"""Makes the strategy that orch names, reads the data, reports progress, and evaluates; for all examples.

python common.py digits DIR      # writes TFRecord files, which --dataset DIR reads
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).resolve().parent
CHECKPOINTS = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")  # one directory for all tasks
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "shape": tf.io.FixedLenFeature([3], tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def make_strategy():
    """The strategy of `orch up --strategy`. In a script of your own, one of these lines is enough."""
    name = os.environ.get("ORCH_STRATEGY") or "multi-worker-mirrored"
    if name == "multi-worker-mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "tpu":
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ.get("TPU_NAME", ""))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # With --replicas 2, orch makes two logical devices of the CPU.
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    devices = [device.name for device in found]
    if name == "one-device":
        return tf.distribute.OneDeviceStrategy(os.environ.get("ORCH_DEVICE") or devices[0])
    if name == "central-storage":
        return tf.distribute.experimental.CentralStorageStrategy(devices)
    return tf.distribute.MirroredStrategy(devices)


def is_chief(strategy):
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type in (None, "", "chief"):
        return True
    return resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs


def checkpoint_manager(strategy, checkpoint):
    """All workers take part in saving. Only the chief's files are kept."""
    directory = CHECKPOINTS if is_chief(strategy) else os.environ.get("ORCH_SCRATCH_DIR", "scratch")
    return tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)


def report(**facts):
    """Tell orch where this task is, such as report(phase="training", epoch=1, step=5). Without it, orch reads the
    printed lines."""
    if number := os.environ.get("ORCH_PROGRESS_FD"):
        with contextlib.suppress(OSError):  # a full pipe must not end the training
            os.write(int(number), json.dumps(facts).encode() + b"\n")


# -- the evaluator


def is_evaluator():
    return os.environ.get("ORCH_TASK", "").startswith("evaluator")


def evaluate(model, test, epochs):
    """Evaluate each checkpoint of the chief as it appears, until that of the last epoch."""
    for path in tf.train.checkpoints_iterator(CHECKPOINTS):
        tf.train.Checkpoint(model=model).restore(path).expect_partial()
        loss, accuracy = model.evaluate(*test, verbose=0)
        epoch = int(path.rpartition("-")[2])
        print(f"epoch {epoch}: held-out accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)
        if epoch >= epochs:
            return


# -- data


@dataclasses.dataclass
class Data:
    """Images are float32 (height, width, channels) from 0 to 1, labels int64."""

    train: tf.data.Dataset  # one example after the other
    test: tuple[np.ndarray, np.ndarray]
    examples: int  # in train
    seed: int

    @property
    def shape(self):
        return self.test[0].shape[1:]

    @property
    def classes(self):
        return int(self.test[1].max()) + 1

    def shuffled(self, seed=None):
        return self.train.shuffle(
            min(self.examples, 10_000), seed=seed, reshuffle_each_iteration=seed is None
        )

    def batches(self, global_batch, done=0):
        """Batches without end. `done`: so many of them were trained on before, and are left out.

        The order follows from the seed and the number of the pass, and not from how often the data is read.
        """
        passes = tf.data.Dataset.counter(dtype=tf.int64)
        examples = passes.flat_map(lambda number: self.shuffled(self.seed + number))
        data = examples.batch(global_batch, drop_remainder=True).skip(done)
        sharding = tf.data.Options()
        sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return data.with_options(sharding)


def load(name, seed):
    """`name`: digits, mnist, FILE.npz, or a directory of TFRecord files. Create the strategy first."""
    if pathlib.Path(name).is_dir():
        return from_records(pathlib.Path(name), seed)
    train, test = arrays(name)
    return Data(tf.data.Dataset.from_tensor_slices(train), test, len(train[0]), seed)


def arrays(name):
    """Return the images and labels to train on, and those to test on."""
    if name == "mnist":
        import keras

        with open(pathlib.Path.home() / ".mnist.lock", "w") as lock:  # one worker downloads it
            fcntl.flock(lock, fcntl.LOCK_EX)
            return prepared(*keras.datasets.mnist.load_data())
    with np.load(HERE / "digits.npz" if name == "digits" else name) as file:
        if "x_train" in file:
            return prepared((file["x_train"], file["y_train"]), (file["x_test"], file["y_test"]))
        images, labels = file["images"], file["labels"]
    held_out = np.arange(len(labels)) % 5 == 4
    return prepared((images[~held_out], labels[~held_out]), (images[held_out], labels[held_out]))


def prepared(*parts):
    images = parts[0][0]
    brightest = 1 if images.dtype.kind == "f" else images.max()
    return [(x.reshape(*x.shape[:3], -1).astype("float32") / brightest, y.astype("int64")) for x, y in parts]


# -- TFRecord files: train-*.tfrecord and test-*.tfrecord


def from_records(directory, seed):
    images, labels = zip(*records(directory, "test").as_numpy_iterator(), strict=True)
    test = np.stack(images), np.stack(labels)
    train = records(directory, "train").map(lambda x, y: (tf.ensure_shape(x, test[0].shape[1:]), y))
    examples = sum(1 for _ in records(directory, "train"))
    return Data(train, test, examples, seed)


def records(directory, part):
    def parse(record):
        found = tf.io.parse_single_example(record, FEATURES)
        return tf.reshape(tf.io.decode_raw(found["image"], tf.float32), found["shape"]), found["label"]

    files = sorted(str(path) for path in directory.glob(f"{part}-*.tfrecord"))
    return tf.data.TFRecordDataset(files).map(parse)


def write_records(name, directory, shards=8):
    directory.mkdir(parents=True)
    train, test = arrays(name)
    for part, count, (images, labels) in (("train", shards, train), ("test", 1, test)):
        for shard in range(count):
            with tf.io.TFRecordWriter(f"{directory}/{part}-{shard:05}-of-{count:05}.tfrecord") as writer:
                for image, label in zip(images[shard::count], labels[shard::count], strict=True):
                    feature = {
                        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                        "shape": tf.train.Feature(int64_list=tf.train.Int64List(value=image.shape)),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=feature))
                    writer.write(example.SerializeToString())


if __name__ == "__main__":
    write_records(sys.argv[1], pathlib.Path(sys.argv[2]))
