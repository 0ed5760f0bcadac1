"""The pretend machines are apart, can be cut off, and leave nothing."""

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
from testbed import Machine, Testbed, reason_to_skip
from waiting import until, until_gone

ROOT = Path(__file__).resolve().parents[3]
_RECEIVE = """
import socket
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("", 4000))
print("bound", flush=True)
print(receiver.recv(100).decode(), flush=True)
"""
_SEND = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 4000))
"""
_HELD_TESTBED = """
import sys
from pathlib import Path
from testbed import Testbed
made = Testbed(Path(sys.argv[1]))
print(*(machine.pid for machine in made.machines.values()), flush=True)
input()
"""


def _facts(machine: Machine) -> list[str]:
    return machine.run("sh", "-c", "hostname; echo ~root; ls /proc | grep -c '^[0-9]'").stdout.split()


def _monotonic(machine: Machine) -> float:
    return float(machine.run(sys.executable, "-c", "import time; print(time.monotonic())").stdout)


def _send(sender: Machine, receiver: Machine, text: str) -> None:
    sender.run(sys.executable, "-c", _SEND, receiver.address, text)


def _receiver(machine: Machine) -> subprocess.Popen[bytes]:
    process = machine.start(sys.executable, "-c", _RECEIVE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"bound\n"
    return process


def test_each_machine_has_its_own_name_processes_files_and_clock(machines: Testbed) -> None:
    hosts = list(machines.machines.values())
    homes = set()
    for machine in hosts:
        name, home, processes = _facts(machine)
        assert name == machine.name
        assert int(processes) < 10, "it sees the processes of this machine"
        homes.add(home)
        machine.run("touch", f"{home}/of-{name}", f"/tmp/of-{name}")
    for machine in hosts:
        assert [path for path in sorted(machine.files()) if "/of-" in path] == sorted(
            [f"/tmp/of-{machine.name}", *(f"{home}/of-{machine.name}" for home in homes)]
        )
    clocks = sorted(map(_monotonic, hosts))
    assert all(later - earlier > 80_000 for earlier, later in itertools.pairwise(clocks))


def test_a_shared_directory_and_ssh_without_questions(machines: Testbed) -> None:
    place = machines.shared / "greeting"
    for name in ("n1", "n2", "n3"):
        machines["n0"].run("ssh", "-o", "BatchMode=yes", name, f"hostname > {place}")
        assert place.read_text() == f"{name}\n"
        assert machines["n2"].run("cat", str(place)).stdout == f"{name}\n"


@pytest.mark.parametrize(
    "cut", ["both", *(pytest.param(cut, marks=pytest.mark.slow) for cut in ("to n1", "from n0"))]
)
def test_a_cut_loses_what_is_sent_and_no_more(machines: Testbed, cut: str) -> None:
    with _receiver(machines["n1"]) as receiving:
        if cut == "both":
            machines.cut("n1")
        else:
            machines.cut_one_way(**{"to": "n1"} if cut == "to n1" else {"source": "n0"})
        lost = machines.lost()
        _send(machines["n0"], machines["n1"], "during the cut")
        until(lambda: machines.lost() > lost)
        machines.heal()
        _send(machines["n0"], machines["n1"], "after the cut")
        assert receiving.communicate()[0] == b"after the cut\n"


@pytest.mark.slow
def test_the_other_direction_of_a_cut_works(machines: Testbed) -> None:
    with _receiver(machines["n0"]) as receiving:
        machines.cut_one_way(to="n1")
        _send(machines["n1"], machines["n0"], "from n1")
        assert receiving.communicate()[0] == b"from n1\n"


@pytest.mark.slow
def test_a_delayed_machine_answers_later(machines: Testbed) -> None:
    machines.delay("n1", 0.2)
    began = time.monotonic()
    machines["n0"].run("ssh", "n1", "true")
    # A connection and the command take two ways there and back at least.
    assert time.monotonic() - began > 0.8


def test_leftovers_are_seen_on_their_machine_only(machines: Testbed) -> None:
    machines["n0"].run("ssh", "n1", "setsid sleep 1000 > /dev/null 2>&1 & touch /var/tmp/left")
    until(lambda: machines["n1"].command_lines() == ["sleep 1000"])
    assert machines["n2"].command_lines() == []
    assert "/var/tmp/left" in machines["n1"].files() - machines["n2"].files()
    (left,) = machines["n1"].processes()
    left.kill()


def test_machines_end_with_the_test_process(machines: Testbed, tmp_path: Path) -> None:
    path = str(ROOT / "tests/support")
    with subprocess.Popen(
        [sys.executable, "-c", _HELD_TESTBED, str(tmp_path / "hosts")],
        env={**os.environ, "PYTHONPATH": path},
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
