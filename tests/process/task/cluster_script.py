"""A user's script for several workers. Its first argument says how it trains, waits or blocks."""

import atexit
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

KIND = sys.argv[1]


def say(text):
    os.write(1, f"{text}\n".encode())


def preemptible(strategy, resolver, directory):
    with strategy.scope():
        steps = tf.Variable(0.0)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        resolver, tf.train.Checkpoint(steps=steps), directory
    )

    @tf.function
    def step():
        strategy.run(lambda: steps.assign_add(1.0))
        return add_up(tf.constant(1.0))

    done = 0
    while True:
        handler.run(step)
        done += 1
        if done == 20:
            say("ready")


atexit.register(say, "atexit")
say("blocking")
try:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "SLURM_PROCID" in os.environ:
        (cpu,) = tf.config.list_physical_devices("CPU")
        say(f"replicas {len(tf.config.get_logical_device_configuration(cpu))}")
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=9000)
        cluster = resolver.cluster_spec().as_dict()
        say(f"found {json.dumps([cluster, resolver.get_task_info(), resolver.master()])}")
    if KIND == "coordinate":
        tf.distribute.ParameterServerStrategy(resolver)
    if KIND == "serve":
        server = tf.distribute.Server(resolver.cluster_spec(), job_name="ps", task_index=0)
        server.join()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    @tf.function
    def add_up(value):
        return strategy.reduce("SUM", strategy.run(lambda: value * 1.0), axis=None)

    add_up(tf.ones(3))
    if KIND == "python":
        say("ready")
        while True:
            pass
    if KIND == "sleep":
        say("ready")
        time.sleep(1000)
    if KIND == "steps":
        for number in range(10**9):
            add_up(tf.ones(1000))
            if number == 20:
                say("ready")
    if KIND == "preemptible":
        preemptible(strategy, resolver, sys.argv[2])
    if KIND == "fit":
        x = np.random.rand(64, 4).astype(np.float32)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        ready = tf.keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: say("ready") if epoch == 1 else None
        )
        model.fit(x, x.sum(axis=1), batch_size=8, epochs=10**9, verbose=0, callbacks=[ready])
    if KIND == "short":
        json.dumps(os.environ["TF_CONFIG"])
        say(f"sum {float(add_up(tf.constant(2.0)))}")
finally:
    say("finally")
