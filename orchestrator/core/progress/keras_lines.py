"""Parses one line of the progress that Keras 3 or tf_keras prints.

The forms (verbose 1: a bar; verbose 2: a line an epoch):

    Epoch 3/10
    12/70 ━━━━━━━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.9000 - loss: 0.1000        Keras 3
         12/Unknown 0s 13ms/step - accuracy: 0.2500 - loss: 0.7393
    70/70 - 1s - 16ms/step - accuracy: 0.9000 - loss: 0.1000
    12/70 [====>.........................] - ETA: 0s - loss: 0.1000 - accuracy: 0.9000      tf_keras
    70/70 - 1s - loss: 0.1000 - accuracy: 0.9000 - 727ms/epoch - 13ms/step

A line counts only if all of it matches: other programs print lines that begin alike.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

# Longest line of Keras: about fifty metrics.
MAX_LINE_BYTES = 4096

# No pattern has two adjacent repetitions of the same character, so that matching is linear.
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_HEADING = re.compile(r"Epoch (\d{1,12})/(\d{1,12})")
_COUNTS = re.compile(r"(\d{1,12})/(\d{1,12}|Unknown)(?= )")
_METRIC = re.compile(r"([^\W\d][^\s:]{0,80}): (-?\d{1,40}\.\d{4}(?:e[+-]\d{2,3})?|nan|-?inf)")
_TIME = re.compile(r"\d{1,9}s|\d{1,6}:\d\d(?::\d\d)?")
_PACE = re.compile(r"(\d{1,9})(us|ms|s)/(step|epoch)")
# Bars of Keras 3 (`=` without UTF-8) and of tf_keras.
_BAR = re.compile(r"[━=]{1,200}|\[[=>.]{1,200}\]")
_IN_A_SECOND = {"us": 1_000_000, "ms": 1_000, "s": 1}


@dataclass(frozen=True)
class Heading:
    """`Epoch 3/10`; counts from 1."""

    epoch: int
    epochs: int


@dataclass(frozen=True)
class Bar:
    """The progress of one pass over the data. `steps` is None if Keras does not know it. `step_s` is the printed time
    of a step in seconds, None without one. `is_drawn` is true for verbose 1. Values that are not finite are None; then
    `bad_loss` is the loss as it was printed."""

    step: int
    steps: int | None
    values: dict[str, float | None] = field(default_factory=dict)
    step_s: float | None = None
    is_drawn: bool = False
    bad_loss: float | None = None

    @property
    def is_full(self) -> bool:
        return self.step == self.steps


class Download:
    """Keras downloads a file; the bars that follow count its bytes."""


def read_line(line: bytes) -> Heading | Bar | Download | None:
    """Parse a line, or one frame of a bar, without its end; None if Keras did not print it."""
    if len(line) > MAX_LINE_BYTES:
        return None
    text = _COLOUR.sub(b"", line).decode("utf-8", "replace").strip()
    heading = _HEADING.fullmatch(text)
    if heading:
        epoch, epochs = int(heading[1]), int(heading[2])
        return Heading(epoch, epochs) if 1 <= epoch <= epochs else None
    if text.startswith("Downloading data from "):
        return Download()
    counts = _COUNTS.match(text)
    return None if counts is None else _bar(counts, text[counts.end() :])


def _bar(counts: re.Match[str], rest: str) -> Bar | None:
    step = int(counts[1])
    steps = None if counts[2] == "Unknown" else int(counts[2])
    if step < 1 or (steps is not None and step > steps):
        return None
    values: dict[str, float | None] = {}
    step_s: float | None = None
    bad_loss: float | None = None
    is_drawn = steps is None
    is_timed = False
    for part in rest.split(" - "):
        metric = _METRIC.fullmatch(part)
        if metric:
            value = float(metric[2])
            values[metric[1]] = value if math.isfinite(value) else None
            if metric[1] == "loss":
                bad_loss = None if math.isfinite(value) else value
            continue
        for word in part.removeprefix("ETA: ").split():
            pace = _PACE.fullmatch(word)
            if pace:
                is_timed = True
                if pace[3] == "step":
                    step_s = int(pace[1]) / _IN_A_SECOND[pace[2]]
            elif _BAR.fullmatch(word):
                is_drawn = True
            elif not _TIME.fullmatch(word):
                return None
        is_timed = is_timed or part.startswith("ETA: ")
    return Bar(step, steps, values, step_s or None, is_drawn, bad_loss) if is_timed else None
