"""Reports progress to the launcher: JSON lines on the descriptor in ORCH_PROGRESS_FD."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Literal

Phase = Literal["importing", "starting", "waiting", "training", "serving", "evaluating", "saving", "done"]

# Bytes. The reader accepts no more; a pipe takes up to PIPE_BUF (4,096) in one piece.
LONGEST_LINE = 900
SHORTEST_INTERVAL_S = 0.2
VARIABLE = "ORCH_PROGRESS_FD"
# Steps over all epochs (20,50) that the launcher waits for: they are sent immediately.
AWAITED_VARIABLE = "ORCH_PROGRESS_AT"


class ProgressChannel:
    """Writes progress without blocking or failing the training: with a full or closed pipe the line is lost.

    With `fd` None nothing is written. A step in `awaited` is sent and marked `at_once`, so that the agent forwards it
    immediately. The descriptor is made non-inheritable and non-blocking.
    """

    def __init__(
        self,
        fd: int | None,
        clock: Callable[[], float] = time.monotonic,
        awaited: frozenset[int] = frozenset(),
    ) -> None:
        self._fd = fd
        self._awaited = awaited
        self._clock = clock
        self._phase: Phase | None = None
        self._next_at = -math.inf
        if fd is None:
            return
        try:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)
        except (OSError, OverflowError):
            self._fd = None

    @classmethod
    def from_environment(cls) -> ProgressChannel:
        """Return the channel on ORCH_PROGRESS_FD; without a usable descriptor it writes nothing."""
        text = os.environ.get(VARIABLE, "")
        awaited = os.environ.get(AWAITED_VARIABLE, "").split(",")
        steps = frozenset(int(step) for step in awaited if step.isdecimal())
        return cls(int(text) if text.isdecimal() else None, awaited=steps)

    def phase(self, phase: Phase, **facts: object) -> None:
        """Send a new phase."""
        self._phase = phase
        self._send(facts)

    def step(self, facts: Callable[[], Mapping[str, object]], position: int | None = None) -> None:
        """Send a step of this phase, at most five times a second; `facts` is called only if it is sent.

        `position` is the step's number over all epochs; an awaited one is always sent.
        """
        if self._fd is None or self._phase is None:
            return
        if position in self._awaited:
            self._send({**facts(), "at_once": True})
        elif self._clock() >= self._next_at:
            self._send(facts())

    def _send(self, facts: Mapping[str, object]) -> None:
        if self._fd is None:
            return
        self._next_at = self._clock() + SHORTEST_INTERVAL_S
        line = encode({"phase": self._phase, **facts})
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            pass
        except OSError:
            # The reader has closed its end (EPIPE: Python ignores SIGPIPE), or the descriptor is gone.
            self._fd = None


def encode(facts: Mapping[str, object]) -> bytes:
    """Return one line of strict JSON, NaN and infinity as null, but a loss as "nan", "inf" or "-inf"; over 900 bytes
    the metrics are left out."""
    loss = facts.get("loss")
    if isinstance(loss, float) and not math.isfinite(loss):
        facts = {**facts, "loss": str(loss)}
    line = _line(facts)
    if len(line) > LONGEST_LINE:
        line = _line({key: value for key, value in facts.items() if key != "metrics"})
    if len(line) > LONGEST_LINE:
        line = _line({"phase": facts.get("phase")})
    return line


def _line(facts: Mapping[str, object]) -> bytes:
    return json.dumps(without_nan(facts), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def without_nan(value: object) -> object:
    """Return the same JSON value with None for each NaN and infinity in it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value
