"""The pretend machines are apart, and end with the test process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm import reason_to_skip as why_no_slurm
from testbed import Testbed, reason_to_skip
from waiting import until_gone

ROOT = Path(__file__).resolve().parents[3]
_FACTS = """
import os, socket, time
processes = [name for name in os.listdir("/proc") if name.isdigit()]
print(socket.gethostname(), os.path.expanduser("~"), len(processes), time.monotonic())
"""
_HELD_TESTBED = """
import sys
from pathlib import Path
from testbed import Testbed
made = Testbed(Path(sys.argv[1]))
print(*(machine.pid for machine in made.machines.values()), flush=True)
input()
"""


def test_each_machine_has_its_own_name_processes_files_and_clock(machines: Testbed) -> None:
    hosts = list(machines.machines.values())
    clocks = []
    for machine in hosts:
        name, home, processes, clock = machine.run(sys.executable, "-c", _FACTS).stdout.split()
        assert name == machine.name
        assert int(processes) < 10, "it sees the processes of this machine"
        clocks.append(float(clock))
        machine.run("touch", f"{home}/of-{name}", f"/tmp/of-{name}")
    for machine in hosts:
        places = (f"{home}/of-{machine.name}", f"/tmp/of-{machine.name}")
        assert {path for path in machine.files() if "/of-" in path} == set(places)
    assert all(later - earlier > 80_000 for earlier, later in itertools.pairwise(sorted(clocks)))


@pytest.mark.slow
def test_a_delayed_machine_answers_later(machines: Testbed) -> None:
    machines.delay("n1", 0.2)
    began = time.monotonic()
    machines["n0"].run("ssh", "n1", "true")
    # A connection and the command take two ways there and back at least.
    assert time.monotonic() - began > 0.8


def test_machines_end_with_the_test_process(machines: Testbed, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HELD_TESTBED, str(tmp_path / "hosts")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        pids = [int(word) for word in holder.stdout.readline().split()]
        holder.send_signal(signal.SIGKILL)
    assert len(pids) == 4
    until_gone(*pids)


@pytest.mark.slow
def test_command_runs_on_machines_that_end_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    if reason := reason_to_skip() or why_no_slurm():
        pytest.skip(reason)
    words = ["scripts/tools/testbed", "sh", "-c", "pwd; srun --nodes=3 --label hostname; exit 7"]
    env = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("t"))}
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200.0, check=False
    )
    directory, *lines = done.stdout.splitlines()
    assert (done.returncode, sorted(lines)) == (7, ["0: n1", "1: n2", "2: n3"]), done.stderr
    assert not Path(directory).exists()
