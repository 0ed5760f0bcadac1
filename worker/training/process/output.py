"""Lines on the terminal: the task's name, counts in words, and TensorFlow's start-up messages left out."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from worker.training.process.environment import Place, is_in_a_run

# Native code writes these to descriptor 2 whatever TF_CPP_MIN_LOG_LEVEL says, because no logger is initialised yet.
STARTUP_MESSAGES = (
    b"All log messages before absl::InitializeLog() is called are written to STDERR",
    b"oneDNN custom operations are on.",
    b"This TensorFlow binary is optimized to use available CPU instructions",
    b"in other operations, rebuild TensorFlow with the appropriate compiler flags.",
)
# With an NVIDIA driver these report a real fault.
MESSAGES_WITHOUT_GPU = (b"Could not find cuda drivers on your machine", b"failed call to cuInit")
NVIDIA_DRIVER = Path("/dev/nvidiactl")
ERRORS_ONLY = "2"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return `1 epoch`, `10 epochs`; `many` is the plural if it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def print_as_task(place: Place, text: str) -> None:
    """Print a line that starts with the task's name, unless orch already puts the name before every line."""
    print(text if is_in_a_run(os.environ) else f"{place.task}: {text}")


def name_other_workers(place: Place) -> str:
    count = place.workers - 1
    return "the other worker" if count == 1 else f"the {counted(count, 'other worker')}"


@contextlib.contextmanager
def without_warnings(logger: logging.Logger) -> Iterator[None]:
    """Log only errors in the block."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def without_startup_messages() -> Iterator[None]:
    """Hold back what is written to descriptor 2 in the block, then write it without the start-up messages.

    If the process crashes in the block, the fault handler still writes the stack. From here on TensorFlow logs errors
    only. If the user has set TF_CPP_MIN_LOG_LEVEL, nothing is changed.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", ERRORS_ONLY) != ERRORS_ONLY:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = ERRORS_ONLY
    stderr, held = os.dup(2), os.memfd_create("stderr")
    faulthandler.enable(stderr, all_threads=False)
    os.dup2(held, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        faulthandler.enable(2, all_threads=False)
        os.lseek(held, 0, os.SEEK_SET)
        with os.fdopen(held, "rb") as lines, os.fdopen(stderr, "wb") as out:
            out.write(drop_startup_messages(lines.read(), NVIDIA_DRIVER.exists()))


def drop_startup_messages(text: bytes, has_gpu: bool) -> bytes:
    dropped = STARTUP_MESSAGES if has_gpu else STARTUP_MESSAGES + MESSAGES_WITHOUT_GPU
    return b"".join(
        line for line in text.splitlines(keepends=True) if not any(part in line for part in dropped)
    )
