"""A training of tf_keras's, which needs no fix: TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from case_program import Place


def legacy_fit(place: Place) -> dict[str, Any]:
    assert tf.keras.Model.__module__.startswith("tf_keras")
    x = np.random.default_rng(3).normal(size=(32, 4)).astype(np.float32)
    with place.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return {"loss": model.fit(x, x.sum(axis=1), batch_size=8, epochs=2, verbose=0).history["loss"]}
