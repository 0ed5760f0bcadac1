"""A script that creates iterators, drops some and keeps one. Its argument says how it exits."""

import atexit
import gc
import os
import signal
import sys

from worker.bootstrap.keras_fix import iterators

iterators.arm()

import tensorflow as tf  # noqa: E402

atexit.register(lambda: print("the script's own atexit handler"))
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
numbers = tf.data.Dataset.range(10_000).map(lambda n: n + 1, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
owner = iterators.owner_in_this_process()


def loop() -> int:
    total = 0
    for number in numbers.take(100):
        total += int(number)
    distributed = iter(strategy.experimental_distribute_dataset(numbers.batch(4)))
    for _ in range(10):
        next(distributed)
    return total


def generated():  # type: ignore[no-untyped-def]
    yield from range(1000)


kept = iter(
    tf.data.Dataset.from_generator(generated, output_signature=tf.TensorSpec((), tf.int32)).prefetch(4)
)
print("sum", loop())
gc.collect()
signal.alarm(200)  # kills this process if it hangs
while owner.held() > 1:
    signal.sigtimedwait([], 0.01)
print("held", owner.held(), "next", int(next(kept)), int(next(kept)))
sys.stdout.write("unflushed")
if sys.argv[1] == "exit":
    sys.exit(7)
if sys.argv[1] == "raise":
    raise RuntimeError("the script's own error")
if sys.argv[1] == "_exit":
    sys.stdout.flush()
    os._exit(9)
