"""Runs clusters one after the other in one session: `kept.py WORKERS BEGAN ARGV_AS_JSON...`.

Writes to BEGAN when the last one was ordered, in CLOCK_MONOTONIC seconds.
"""

import json
import sys
import time
from pathlib import Path

import orchestrator

workers, began, commands = int(sys.argv[1]), Path(sys.argv[2]), [json.loads(word) for word in sys.argv[3:]]
with orchestrator.Session() as session:
    for command in commands:
        began.write_text(repr(time.monotonic()))
        with session.up(workers=workers, command=command) as run:
            run.wait()
