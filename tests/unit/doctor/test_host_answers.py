"""The checks of a host by its agent, and odd answers of hosts."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from making import JOB, changed

from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.engines import Connection
from orchestrator.engines.ssh import SshEngine
from orchestrator.host.checks.finding import Level
from orchestrator.host.installed import Interpreter, interpreter_of
from orchestrator.links.client_link import HostReport
from orchestrator.preflight.findings import compare
from orchestrator.preflight.questions import Plan
from orchestrator.supervisor.hosts import Hosts
from worker.agent.checks import Checks
from worker.wire.checks import Checked, HeldPort, Outcome, Question, SharedFile
from worker.wire.codec import BadMessage, encode
from worker.wire.facts import HostFacts
from worker.wire.messages import decode_report

HERE = HostFacts(
    directory="/tmp/agent",
    machine=("boot", "n1", "pid"),
    addresses={"eth0": "10.0.0.1"},
    reached="10.0.0.1",
    memory_bytes=1 << 30,
    gpus=(),
    gpu_lack=None,
    python="3.11.7",
    allowed_cores=(0,),
)
HEALTHY = Checked("/tmp", 1 << 40)


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_questions_are_answered(tmp_path: Path) -> None:
    """The helper removes what it has made."""
    (tmp_path / "script.py").write_text("x")
    missing = tmp_path / "none"
    file = SharedFile(str(missing / "below"), "sign")
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as poller:
        question = Question(
            run=(("echo", "here"), (str(missing),)),
            hash=(str(tmp_path / "script.py"), str(missing)),
            enter=str(missing),
            write=file,
            read=file,
            hold="127.0.0.1",
            reach=(("127.0.0.1", listener.getsockname()[1]), ("127.0.0.1", 1)),
        )
        first, second = _ask(poller, question, Question(enter="/"))
    assert [(ran.code, ran.out) for ran in first.run] == [(0, "here\n"), (None, "")]
    assert [bool(each.value) for each in first.hash] == [True, False]
    assert first.enter == first.hash[1] == Outcome("No such file or directory")
    assert (first.write, first.read) == (Outcome(), Outcome(value="sign"))
    assert first.hold is not None and first.hold.port
    assert first.reach == ("connected", "refused")
    assert second.enter == Outcome()
    assert not missing.exists()


def _ask(poller: select.epoll, *questions: Question) -> list[Checked]:
    answers: list[Checked] = []
    checks = Checks(poller, answers.append)
    for number, question in enumerate(questions, 1):
        checks.ask(question)
        while len(answers) < number:
            for fd, _ in poller.poll(30):
                assert checks.serves(fd)
                checks.serve(fd)
    (pid,) = checks.pids
    checks.close()
    assert not psutil.pid_exists(pid)
    return answers


def test_question_to_a_helper_that_is_killed_is_answered_with_the_reason() -> None:
    answers: list[Checked] = []
    with select.epoll() as poller:
        checks = Checks(poller, answers.append)
        checks.ask(Question(run=(("sleep", "600"),)))
        (pid,) = checks.pids
        os.kill(pid, signal.SIGKILL)
        while not answers:
            for fd, _ in poller.poll(30):
                checks.serve(fd)
        assert answers[0].error == "the process that checks the host was killed, or it crashed"
        assert not checks.pids


class Silent(SshEngine):
    """Starts programs that never answer."""

    leave_s = 600.0

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Connection] = []

    def connect(self, destination: str, words: Sequence[str], errors: int | None = None) -> Connection:
        self.started.append(Connection(["sleep", "600"], errors))
        return self.started[-1]


@pytest.mark.usefixtures("no_leaked_descriptors")
def test_end_does_not_wait_for_a_host_that_has_not_answered() -> None:
    engine = Silent()
    two = tuple(Host(name=name, destination=name) for name in ("n1", "n2"))
    hosts = Hosts(changed(JOB, engine=EngineName.SSH, hosts=two), remote=engine)
    hosts.open_early(None)
    hosts.end()
    assert [each.process.returncode for each in engine.started] == [-signal.SIGKILL] * 2


def test_impossible_answers_are_refused_where_they_are_read() -> None:
    line = encode(replace(HEALTHY, hold=HeldPort(port=7)))
    for port in (b"0", b"70000", b'"abc"'):
        with pytest.raises(BadMessage):
            decode_report(line.replace(b'"port":7', b'"port":' + port))
    assert interpreter_of("python", 0, "[" * 60_000, "") == Interpreter("python", error="exit code 0")


def test_what_the_answers_of_hosts_contradict() -> None:
    """The bridge of containers has the same address on every host. A gateway may pass ssh on to the host."""
    two = {"n1": HERE, "n2": replace(HERE, machine=("boot", "n2"))}
    assert _problems(two) == ["n2 and n1 have the same address 10.0.0.1"]
    # Its address is the same under both names of a machine, whatever --interface says.
    assert _problems({"n1": HERE, "n2": HERE}) == ["n1 and n2 are names of one machine"]
    (text,) = _problems({"n1": HERE}, replace(HEALTHY, hold=HeldPort("Cannot assign requested address")))
    assert text == "n1 cannot open a port at its address 10.0.0.1 (Cannot assign requested address)"
    local = replace(HERE, reached="127.0.0.1")
    (text,) = _problems({"n1": local, "n2": two["n2"]})
    assert text == "n1 was reached at 127.0.0.1, where no other host can reach it"


def _problems(hosts: Mapping[str, HostFacts], checked: Checked = HEALTHY) -> list[str]:
    plan = Plan(changed(JOB, hosts=tuple(Host(name=name, destination=name) for name in hosts)), {})
    reports = {name: HostReport(facts=facts, checked=checked) for name, facts in hosts.items()}
    return [finding.text for finding in compare(plan, reports) if finding.level is Level.PROBLEM]
