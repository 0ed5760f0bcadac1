"""Writes the samples in this folder: the exact output of the installed Keras 3 and tf_keras.

`python make_samples.py` makes all of them, each in its own process, `python make_samples.py <kind> <verbose>`.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

KINDS = ("fit-1", "fit-1-terminal", "fit-2", "unknown-1", "unknown-2", "once-1", "once-2")
KINDS += ("callbacks-1", "download-1")


def train(kind: str, verbose: int) -> None:
    import numpy as np
    import tensorflow as tf

    keras = tf.keras
    keras.utils.set_random_seed(1)
    x = np.random.rand(120, 4).astype(np.float32)
    y = (x.sum(axis=1) > 2).astype(np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    # Slow enough for a bar of several frames: Keras draws one each 50 ms.
    callbacks = [keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: time.sleep(0.012))]
    data, more = (x, y, 5), {"epochs": 1 if kind == "once" else 2}
    if kind == "fit":
        more["validation_split"] = 0.2
    elif kind == "unknown":
        batches = tf.data.Dataset.from_generator(
            lambda: ((x[i : i + 5], y[i : i + 5]) for i in range(0, 100, 5)),
            output_signature=(tf.TensorSpec((5, 4)), tf.TensorSpec((5,))),
        )
        data = (batches,)
    elif kind == "callbacks":
        keep = keras.callbacks.ModelCheckpoint("w.weights.h5", save_weights_only=True, verbose=1)
        callbacks += keep, keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, verbose=1)
    elif kind == "download":
        Path("data").write_bytes(bytes(3_000_000))
        keras.utils.get_file("data.bin", Path("data").resolve().as_uri(), cache_dir=".")
    model.fit(*data, verbose=verbose, callbacks=callbacks, **more)
    print("evaluating", flush=True)
    model.evaluate(x[:80], y[:80], 5, verbose=verbose)
    print("predicting", flush=True)
    model.predict(x[:80], 5, verbose=verbose)


def printed(argv: list[str], env: dict[str, str], *, terminal: bool) -> bytes:
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    data = b""
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(argv, env=env, cwd=place, stdout=writer, stderr=subprocess.DEVNULL),
    ):
        os.close(writer)
        with contextlib.suppress(OSError):  # the terminal's last user has left
            while more := os.read(reader, 1 << 16):
                data += more
    os.close(reader)
    return data.replace(place.encode(), b"")


def main() -> None:
    if len(sys.argv) > 1:
        train(sys.argv[1], int(sys.argv[2]))
        return
    here = Path(__file__).resolve()
    for keras, name in itertools.product(("keras3", "tf_keras"), KINDS):
        legacy = {"TF_USE_LEGACY_KERAS": str(int(keras == "tf_keras"))}
        env = os.environ | legacy | {"TERM": "xterm-256color", "CUDA_VISIBLE_DEVICES": "-1"}
        argv = [sys.executable, str(here), *name.split("-")[:2]]
        data = printed(argv, env, terminal=name.endswith("terminal"))
        here.with_name(f"{keras}-{name}.txt").write_bytes(data)


if __name__ == "__main__":
    main()
