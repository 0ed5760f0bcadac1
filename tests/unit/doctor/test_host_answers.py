"""The exchange with the inspection program, run by a shell of this machine, and odd answers of hosts."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from making import JOB, changed

from orchestrator.core.job.hosts import Host
from orchestrator.engines import Connection
from orchestrator.engines.ssh import SshEngine
from orchestrator.host.checks.finding import Level
from orchestrator.links.start_queue import MOST_STARTING, StartQueue
from orchestrator.preflight.answers import Answers, Held, HostReport, Identity
from orchestrator.preflight.findings import compare
from orchestrator.preflight.inspection import Inspections
from orchestrator.preflight.questions import Plan

N1, N2 = (Host(name=name, destination=name) for name in ("n1", "n2"))
HERE = Identity(
    version=(3, 11, 7),
    python=sys.executable,
    machine=("boot", "n1", "pid"),
    addresses={"eth0": "10.0.0.1"},
    reached="10.0.0.1",
    home="/root",
    temporary="/tmp",
)


class Shell(SshEngine):
    """Runs the hosts' commands on this machine; `before` is what login files do."""

    def __init__(self, before: str = "") -> None:
        super().__init__()
        self._before = before
        self.connected: list[str] = []

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        self.connected.append(destination)
        return Connection(["sh", "-c", f"{self._before}{words[0]}"], errors)


def _ask(before: str, question: dict[str, object], python: str = sys.executable) -> HostReport:
    with Inspections(Shell(before), [N1], python) as hosts:
        hosts.await_answers()
        hosts.ask("n1", question)
        hosts.await_answers()
        return hosts.reports["n1"]


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_questions_are_answered(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("x")
    missing = str(tmp_path / "none")
    report = _ask(
        "printf welcome; echo; printf noise;",
        {
            "run": [["echo", "here"], [missing]],
            "hash": [str(tmp_path / "script.py"), missing],
            "directory": missing,
            "write": {"directory": f"{missing}/below", "nonce": "sign"},
            "read": {"directory": f"{missing}/below", "nonce": "sign"},
            "hold": "127.0.0.1",
        },
    )
    answers = report.answers
    assert report.error is None
    assert [(ran.code, ran.out) for ran in answers.run] == [(0, "here\n"), (None, "")]
    assert answers.hash[str(tmp_path / "script.py")].sha256 is not None
    assert answers.hash[missing].error == "No such file or directory"
    assert answers.directory is not None
    assert answers.directory.error == "No such file or directory"
    assert answers.read is not None
    assert answers.read.found
    assert answers.hold is not None
    assert answers.hold.port
    # The connection has ended: what it had made is removed.
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["script.py"]


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_few_hosts_are_connected_to_at_the_same_time() -> None:
    """Each answer, and each end of a connection, makes room for the next one."""
    hosts = [Host(name=f"n{at}", destination=f"n{at}") for at in range(MOST_STARTING + 3)]
    shell = Shell()
    with Inspections(shell, hosts, sys.executable, StartQueue(slow_s=math.inf)) as asked:
        assert shell.connected == [host.name for host in hosts[:MOST_STARTING]]
        asked.await_answers()
        assert all(report.identity is not None for report in asked.reports.values())
    failing = Shell("exit 3;")
    with Inspections(failing, hosts, sys.executable) as asked:
        asked.await_answers()
        assert len(failing.connected) == len(hosts) and all(report.error for report in asked.reports.values())


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_interrupt_does_not_wait_for_a_silent_host() -> None:
    shell = Shell("sleep 600;")
    shell.leave_s = 600.0
    with pytest.raises(KeyboardInterrupt), Inspections(shell, [N1], sys.executable):
        raise KeyboardInterrupt


@pytest.mark.parametrize("version", ["3.6", "3.8"])
def test_the_program_runs_on_old_interpreters(version: str) -> None:
    """The preflight then says that they are too old for orch."""
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} of pyenv here")
    report = _ask("", {"free": ["/"], "reach": [["127.0.0.1", 1]]}, str(found[0]))
    assert report.error is None
    assert report.identity is not None
    assert report.identity.version_text.startswith(f"{version}.")
    assert report.answers.reach == ("refused",)


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_a_host_that_does_not_answer_is_explained() -> None:
    endless = "n1: it prints without end; correct what its login files"
    table = {
        "echo no entry >&2; exit 3;": "n1: its login shell ended with exit code 3 before Python started",
        "echo 'orch-host {}';": "n1: its answer cannot be read",
        "echo 'orch-host [1';": "n1: its answer cannot be read",
        "exit 0;": "n1: its login shell ended with exit code 0 before Python started; run `ssh n1 true`",
        "cat /dev/zero;": endless,
        "yes;": endless,
        "kill -9 $$;": "n1: ssh was ended by signal 9 on this machine",
    }
    found = {before: _ask(before, {}).error or "" for before in table}
    assert {before: error[: len(table[before])] for before, error in found.items()} == table


def test_what_the_answers_of_hosts_contradict() -> None:
    """The bridge of containers has the same address on every host. A gateway may pass ssh on to the host."""
    two = [_report(N1, machine=("boot", "n1")), _report(N2, machine=("boot", "n2"))]
    assert _problems(two) == ["n2 and n1 have the same address 10.0.0.1"]
    # Its address is the same under both names of a machine, whatever --interface says.
    assert _problems([_report(N1), _report(N2)]) == ["n1 and n2 are names of one machine"]
    answers = Answers(hold=Held(error="Cannot assign requested address"))
    (text,) = _problems([_report(N1, answers)])
    assert text == "n1 cannot open a port at its address 10.0.0.1 (Cannot assign requested address)"


def _report(host: Host, answers: Answers | None = None, **identity: object) -> HostReport:
    return HostReport(host, None, HERE.model_copy(update=identity), answers or Answers())


def _problems(reports: Sequence[HostReport]) -> list[str]:
    plan = Plan(changed(JOB, hosts=tuple(report.host for report in reports)), {})
    return [finding.text for finding in compare(plan, reports) if finding.level is Level.PROBLEM]
