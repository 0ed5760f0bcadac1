"""Calls train() of custom_loop.py in one session, again and again: `kept_function.py WORKERS BEGAN ARGV_AS_JSON...`.

Writes to BEGAN when the last call began, in CLOCK_MONOTONIC seconds.
"""

import json
import sys
import time
from pathlib import Path

from custom_loop import train

import orchestrator

workers, began, commands = int(sys.argv[1]), Path(sys.argv[2]), [json.loads(word) for word in sys.argv[3:]]
with orchestrator.Session() as session:
    for *_, out, steps, widths in commands:
        began.write_text(repr(time.monotonic()))
        session.run(
            train, (Path(out), int(steps), [int(width) for width in widths.split(",")]), workers=workers
        )
