"""Where /proc hides other users' processes (mounted with hidepid): what cannot be read counts as not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from namespaces import namespace

_ROOT = Path(__file__).resolve().parents[3]
# New process and mount namespaces. Process 1 keeps capabilities that its children lose, so they cannot read it.
_PREPARE = (
    "mount -t proc -o hidepid=1,gid=65533 proc /proc"  # members of `gid` would see all: root is one of 0
)
_LOWLY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

_LOOKS = """
import json, os, subprocess, sys
from pathlib import Path
from orchestrator import Cluster
try: Path("/proc/1/stat").read_bytes(); hidden = False
except PermissionError: hidden = True
from orchestrator.store.runs.leftovers import end_leftovers
from orchestrator.store.runs.paths import RunPaths
from worker.agent.processes import all_processes, descendants, read_stat, tree_states
def started(**marks):
    # Once it has spoken its exec is over: before, its environment may still read as empty.
    child = subprocess.Popen(
        ["sh", "-c", "echo up; read nothing"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **marks},
    )
    child.stdout.readline()
    return child
child = started()
stray = started(ORCH_RUN_ID="run-1", ORCH_RUN_DIR="/state/run-1")
seen = all_processes()
below = sorted(stat.pid for stat in descendants(os.getpid(), seen))
ended_strays = end_leftovers(RunPaths(Path("/state/run-1"))).ended
stray.wait(60)
child_lived = child.poll() is None
ended_below = end_leftovers(RunPaths(Path("/state/another")), ancestor_pid=os.getpid()).ended
with Cluster(workers=2, command=[sys.executable, "-I", "-S", "-c", "print(1)"]) as run:
    outcome = run.wait().outcome
print(json.dumps({
    "hidden": hidden, "first": read_stat(1) is not None, "below": below == sorted([child.pid, stray.pid]),
    "state_of_hidden": tree_states([1], seen)[1], "ended_strays": ended_strays,
    "child_lived": child_lived, "ended_below": ended_below, "outcome": outcome,
}))
"""


def test_hidden_processes_are_skipped_and_a_run_succeeds_among_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [*namespace(_PREPARE, "setpriv"), *_LOWLY, sys.executable, "-c", _LOOKS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "hidden": True,
        "first": False,
        "below": True,
        "state_of_hidden": "X",
        "ended_strays": 1,
        "child_lived": True,
        "ended_below": 1,
        "outcome": "succeeded",
    }
