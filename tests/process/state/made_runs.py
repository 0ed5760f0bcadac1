"""Types of these tests: output of a command, the runs that were made, and the programs of those runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.runs.paths import RunPaths

# Waits for the output of both: the first failure ends the other task.
FAILS = """
import os, sys, time
print("said by", os.environ["ORCH_TASK"], flush=True)
both = os.path.dirname(os.environ["ORCH_SCRATCH_DIR"])
open(os.path.join(both, "said-by-" + os.environ["ORCH_TASK"]), "w").close()
while sum(name.startswith("said-by-") for name in os.listdir(both)) < 2: time.sleep(0.005)
sys.exit(3)
"""
LASTS = "import os, time; print('said by', os.environ['ORCH_TASK'], flush=True); time.sleep(600)"


@dataclass(frozen=True)
class Output:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Output]


@dataclass(frozen=True)
class Made:
    """The directories of two ended runs, and the directory they were started in."""

    directory: Path
    failed: Path
    lost: Path


# Copies a made run into the state directory of this test.
Place = Callable[[Path], RunPaths]
