"""A script that leaves files open which it opened before and after gc.freeze(). Its argument is a directory."""

import gc
import sys
import threading
from pathlib import Path

from worker.bootstrap import stopping

stopping.install()
before = Path(sys.argv[1], "before").open("w")
import tensorflow as tf  # noqa: E402

gc.freeze()
after = Path(sys.argv[1], "after").open("wb")
tf.constant(1)
before.write("before\n")
after.write(b"after\n")
try:
    print("ready", flush=True)
    threading.Event().wait()
finally:
    before.write("finally\n")
    after.write(b"finally\n")
