"""Writes the samples in this folder: the exact output of the installed Keras 3 and tf_keras.

`python make_samples.py` makes all of them, each in its own process, `python make_samples.py <kind> <verbose>`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

HERE = Path(__file__).parent
SAMPLES = [
    (keras, kind, verbose, terminal)
    for keras in ("keras3", "tf_keras")
    for kind, verbose, terminal in (
        ("fit", 1, False),
        ("fit", 1, True),
        ("fit", 2, False),
        ("unknown", 1, False),
        ("unknown", 2, False),
        ("callbacks", 1, False),
        ("once", 1, False),
        ("once", 2, False),
        ("download", 1, False),
    )
]


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
    pause = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: time.sleep(0.012))
    if kind == "fit":
        model.fit(x, y, 5, epochs=2, verbose=verbose, callbacks=[pause], validation_split=0.2)
    elif kind == "once":
        model.fit(x, y, 5, verbose=verbose, callbacks=[pause])
    elif kind == "unknown":
        batches = tf.data.Dataset.from_generator(
            lambda: ((x[i : i + 5], y[i : i + 5]) for i in range(0, 100, 5)),
            output_signature=(tf.TensorSpec((5, 4)), tf.TensorSpec((5,))),
        )
        model.fit(batches, epochs=2, verbose=verbose, callbacks=[pause])
    elif kind == "callbacks":
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            keep = keras.callbacks.ModelCheckpoint("w.weights.h5", save_weights_only=True, verbose=1)
            slower = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, verbose=1)
            model.fit(x, y, 5, epochs=2, verbose=verbose, callbacks=[pause, keep, slower])
    else:
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as cache:
            file.write(bytes(3_000_000))
            file.flush()
            keras.utils.get_file("data.bin", "file://" + file.name, cache_dir=cache)
        model.fit(x, y, 5, epochs=2, verbose=verbose, callbacks=[pause])
    print("evaluating", flush=True)
    model.evaluate(x[:80], y[:80], 5, verbose=verbose)
    print("predicting", flush=True)
    model.predict(x[:80], 5, verbose=verbose)


def printed(argv: list[str], env: dict[str, str], *, terminal: bool) -> bytes:
    if not terminal:
        return subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        ).stdout
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    with subprocess.Popen(argv, env=env, stdout=slave, stderr=subprocess.DEVNULL):
        os.close(slave)
        data = b""
        try:
            while more := os.read(master, 1 << 16):
                data += more
        except OSError:  # the terminal's last user has left
            os.close(master)
    return data


def main() -> None:
    if len(sys.argv) > 1:
        train(sys.argv[1], int(sys.argv[2]))
        return
    for keras, kind, verbose, terminal in SAMPLES:
        env = os.environ | {
            "TF_USE_LEGACY_KERAS": "0" if keras == "keras3" else "1",
            "TERM": "xterm-256color",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        data = printed([sys.executable, __file__, kind, str(verbose)], env, terminal=terminal)
        name = f"{keras}-{kind}-{verbose}{'-terminal' if terminal else ''}.txt"
        (HERE / name).write_bytes(data.replace(tempfile.gettempdir().encode() + b"/", b"/"))


if __name__ == "__main__":
    main()
