"""A shell, or one command, on the pretend machines of tests/e2e/hosts. See scripts/tools/testbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import slurm
import testbed


def main() -> int:
    if reason := testbed.reason_to_skip() or slurm.reason_to_skip():
        print(f"scripts/tools/testbed: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the machines and files end, too
    words = sys.argv[1:] or [os.environ.get("SHELL", "/bin/bash")]
    with tempfile.TemporaryDirectory(prefix="orch-testbed-") as directory:
        machines = testbed.Testbed(Path(directory))
        try:
            daemons = slurm.Slurm(machines)
            project = machines.shared / "project"
            project.mkdir()
            print(f"{project} and this clone are on all machines", file=sys.stderr)
            environ = machines["n0"].environ(
                {
                    **daemons.environ,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
                    "XDG_STATE_HOME": str(project / "state"),
                }
            )
            command = machines["n0"].words("env", "-C", str(project), *words)
            code = subprocess.run(command, env=environ, check=False).returncode
            daemons.close()
        finally:
            machines.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
