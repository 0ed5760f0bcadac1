"""After a stop, a process in which TensorFlow runs ends at once when the script's own last words are said.

TensorFlow's teardown would wait for its input pipelines' threads and for peers that are going too: for up to ten
seconds, in which nothing of the script happens any more.
"""

from __future__ import annotations

import atexit
import os
import sys

from . import stopping


def install() -> None:
    """Be the first function registered with atexit, and so the last one called."""
    owner = os.getpid()
    atexit.register(lambda: _leave() if os.getpid() == owner else None)


def _leave() -> None:
    if not stopping.is_leaving() or stopping.TENSORFLOW_RUNTIME not in sys.modules:
        return
    _flush_everything()
    os._exit(stopping.EXIT_CODE)


def _flush_everything() -> None:
    """What the script wrote to files that it left open, which Python would write out as it frees them."""
    import gc
    import io

    gc.unfreeze()  # what is frozen is in no list
    files = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    # Text before the bytes it is written to.
    found = sorted(
        (thing for thing in gc.get_objects() if type(thing) in files),
        key=lambda file: files.index(type(file)),
    )
    for file in (sys.stdout, sys.stderr, *found):
        try:
            file.flush()
        except Exception:
            continue  # closed, or its reader is gone
