"""The preloaded module: its import creates the file `at-preloading` and waits for `go`.

With HELD_IMPORT=fails it cannot be imported, but by the tasks themselves.
"""

import os
import time
from pathlib import Path

_HERE = Path(os.environ["HELD_IMPORT_HERE"])
# Tasks that had to be started the ordinary way come here at once.
_new = _HERE / f"at-preloading.{os.getpid()}"
_new.write_text(str(os.getpid()))
_new.rename(_HERE / "at-preloading")
if os.environ.get("HELD_IMPORT") == "fails" and "ORCH_TASK" not in os.environ:
    raise ImportError("this module cannot be imported")
while not (_HERE / "go").exists():
    time.sleep(0.01)
