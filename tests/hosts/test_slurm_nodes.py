"""Nodes that fail under a real Slurm on the pretend machines: before the start, and during the training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from slurm import Slurm
from testbed import Testbed
from waiting import until

_ENGINE = ("--engine", "slurm", "--nodes", "3", "--workers", "3")
_LOST = 137
# An interpreter that hangs on n2: for ever, or only where an agent is to start.
_HANGS = """\
#!{python}
import os, sys, time
program = sys.argv[-1]
if "-S" in sys.argv and os.uname().nodename == "n2":
    program = "import sys, time; l = sys.stdin.buffer.raw.readline(); {is_known} or time.sleep(900); exec(l)"
os.execv({python!r}, [{python!r}, *sys.argv[1:-1], program])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["slurmd", "prolog", "interpreter", "agent"])
def test_node_that_never_starts_its_agent_is_named(
    up: Any, slurm: Slurm, machines: Testbed, project: Path, counting: tuple[str, ...], what: str
) -> None:
    words: tuple[str, ...] = ()
    if what == "slurmd":
        (daemon,) = slurm.daemons("n2", "slurmd")
        daemon.suspend()
    elif what == "prolog":
        slurm.set_prolog(f"while [ $SLURMD_NODENAME = n2 ] && [ ! -e {project}/end ]; do sleep 0.1; done")
    else:
        hanging = project / "python"
        is_known = "b'orch-host' in l" if what == "agent" else "False"
        hanging.write_text(_HANGS.format(python=sys.executable, is_known=is_known))
        hanging.chmod(0o755)
        words = ("--remote-python", str(hanging))
    run = up(*_ENGINE, *words, *counting, hosts=None, env=slurm.environ)
    code = run.process.wait(200)
    (project / "end").touch()
    if what == "slurmd":
        daemon.resume()
    assert "n2: " in run.text or "n2 was lost: " in run.text
    assert 'leave it out: --slurm "--exclude=n2"' in run.text
    # The check of the nodes refuses the first three: no run is left.
    assert code == (_LOST if what == "agent" else 2)
    if what == "agent":
        result = run.finish()
        assert (result["outcome"], result["cause"]["kind"], result["cause"]["host"]) == (
            "failed",
            "host",
            "n2",
        )
    # Slurm asks a node again and again whether its part of the job has ended.
    until(lambda: not slurm.queue(), 150)
