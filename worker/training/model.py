"""The network: a small convolutional classifier for images of any size from 4x4 up."""

from __future__ import annotations

import math
from typing import Any

import keras


def build_model(image_shape: tuple[int, int, int], classes: int, learning_rate: float) -> Any:
    """A compiled model from images (n, *image_shape) to logits (n, classes), for the strategy's scope."""
    model = keras.Sequential(
        [
            keras.layers.Input(image_shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes),
        ],
        name="digits_cnn",
    )
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Its slots must exist before a checkpoint is restored into them.
    optimizer.build(model.trainable_variables)
    return model


def scaled_learning_rate(learning_rate: float, workers: int) -> float:
    """Grows with the square root of the global batch, which suits Adam: fewer, larger steps reach as far."""
    return learning_rate * math.sqrt(workers)
