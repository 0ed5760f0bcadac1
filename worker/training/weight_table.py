"""The network's weights before any is made: their shapes, and which axis of each a model axis may cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

FILTERS = (32, 64)
KERNEL = 3
POOL = 2
UNITS = 64


@dataclass(frozen=True)
class Weight:
    """One variable. `cut` is the axis along which the devices of a mesh's model axis share it, None: each has all.

    The first dense layer is cut by its columns and the second by its rows, so that what lies between them never
    leaves its device and one sum over the devices a step forward is enough. Filters stay whole: DTensor's
    convolution takes no other. A bias that is added after that sum stays whole too.
    """

    name: str
    shape: tuple[int, ...]
    cut: int | None = None

    def numbers(self, parts: int = 1) -> int:
        """How many of its numbers a device holds when `parts` devices share it."""
        return math.prod(self.shape) // (1 if self.cut is None else parts)


def units(width: int) -> int:
    """Of the first dense layer."""
    return UNITS * width


def weight_table(image_shape: tuple[int, int, int], classes: int, width: int) -> tuple[Weight, ...]:
    """The weights in Keras's order, for images (height, width, channels)."""
    height, side, channels = image_shape
    pixels = (height // POOL // POOL) * (side // POOL // POOL)
    first, second = FILTERS
    return (
        Weight("first filters", (KERNEL, KERNEL, channels, first)),
        Weight("first filters' bias", (first,)),
        Weight("second filters", (KERNEL, KERNEL, first, second)),
        Weight("second filters' bias", (second,)),
        Weight("dense", (pixels * second, units(width)), cut=1),
        Weight("dense bias", (units(width),), cut=0),
        Weight("logits", (units(width), classes), cut=0),
        Weight("logits' bias", (classes,)),
    )
