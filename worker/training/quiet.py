"""Keeps TensorFlow's start-up chatter off the log: lines that every process prints and nobody can act on."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

# Written to descriptor 2 by native code whatever TF_CPP_MIN_LOG_LEVEL says, as no logger is initialised yet.
CHATTER = (
    b"All log messages before absl::InitializeLog() is called are written to STDERR",
    b"oneDNN custom operations are on.",
    b"This TensorFlow binary is optimized to use available CPU instructions",
    b"in other operations, rebuild TensorFlow with the appropriate compiler flags.",
)
# Where there is an NVIDIA driver these say that something is wrong with it.
CHATTER_WITHOUT_GPU = (b"Could not find cuda drivers on your machine", b"failed call to cuInit")
NVIDIA_DRIVER = Path("/dev/nvidiactl")
ERRORS_ALONE = "2"


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back what is written to descriptor 2 within, then write it without the chatter.

    Should the process crash within, the fault handler still writes where it happened. A TF_CPP_MIN_LOG_LEVEL
    of the user's turns this off; otherwise TensorFlow logs errors alone from here on.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", ERRORS_ALONE) != ERRORS_ALONE:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = ERRORS_ALONE
    real, held = os.dup(2), os.memfd_create("stderr")
    faulthandler.enable(real, all_threads=False)
    os.dup2(held, 2)
    try:
        yield
    finally:
        os.dup2(real, 2)
        faulthandler.enable(2, all_threads=False)
        os.lseek(held, 0, os.SEEK_SET)
        with os.fdopen(held, "rb") as lines, os.fdopen(real, "wb") as out:
            out.write(without_known(lines.read(), NVIDIA_DRIVER.exists()))


def without_known(text: bytes, has_gpu: bool) -> bytes:
    """`text` without the lines of the chatter."""
    known = CHATTER if has_gpu else CHATTER + CHATTER_WITHOUT_GPU
    return b"".join(
        line for line in text.splitlines(keepends=True) if not any(part in line for part in known)
    )
