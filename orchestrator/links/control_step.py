"""Passes an order on stdin to the control socket of a run on this machine, and prints the answer.

It runs in a step of the run's Slurm job, because a socket does not reach other machines. The arguments are the path of
the socket and the seconds to wait for the answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.links.control import ask, parse_order


def main(path: str, timeout_s: str) -> int:
    answer = ask(Path(path), parse_order(sys.stdin.buffer.read()), float(timeout_s))
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
