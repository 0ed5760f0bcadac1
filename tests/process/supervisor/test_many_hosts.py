"""A run on many pretended hosts, with the real supervisor and the real stream to each agent."""

from __future__ import annotations

import json
import pstats
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from making import changed, job
from run_records import make_run
from simulated_hosts import SimulatedRun
from waiting import PATIENCE_S

from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.plan.places import HostFacts
from orchestrator.supervisor.agent_orders import Attempts
from orchestrator.supervisor.hosts import Hosts, HostUnusable
from worker.wire.facts import ExitFacts, Usage
from worker.wire.messages import Empty, Exited, Held, HoldFailed, Listening, Sampled

TASKS = 4
COUNTED = ("/orchestrator/core/", "/orchestrator/store/", "/supervisor/agent_", "/supervisor/hosts")
Forged = Mapping[str, Mapping[str, object]]


def finished(
    directory: Path, hosts: int, forged: Forged = MappingProxyType({})
) -> tuple[int, int, list[dict[str, Any]]]:
    """Run to the end. Return the calls about events, plans and files, the bytes written until all tasks were ready,
    and the events."""
    directory.mkdir()
    profile = directory / "profile"
    with SimulatedRun(directory, hosts, TASKS, profile, forged=forged) as run:
        run.until_event("task_ready", run.tasks)
        written = run.written_bytes
        run.stop()
        counted = run.count_events()
        result = json.loads((run.root / "result.json").read_text())
        logs = [path.read_text() for path in (run.root / "logs").glob("*.log")]
        assert (run.root / "supervisor.log").read_text() == ""
        events = [json.loads(line) for line in (run.root / "events.jsonl").read_text().splitlines()]
    assert (counted["host_joined"], counted["host_lost"]) == (hosts, 0)
    assert [counted[kind] for kind in ("task_started", "task_ready", "task_exited")] == [run.tasks] * 3
    assert (result["outcome"], len(result["tasks"]), len(result["hosts"])) == ("stopped", run.tasks, hosts)
    assert len(logs) == run.tasks and len(set(logs)) == 1 and logs[0].endswith("pretended host\n")
    # Without the calls of the links: their number depends on how long a busy machine takes.
    stats = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    counts = ((file, calls) for (file, _, _), (_, calls, *_) in stats.items())
    return sum(calls for file, calls in counts if any(part in file for part in COUNTED)), written, events


def test_run_on_many_hosts_is_complete(tmp_path: Path) -> None:
    """One host has an IPv6 address; another could not send the end of a log."""
    forged = {
        "node0000": {"type": "Empty", "unsent": {"worker:1": 5 << 20}},
        "node0001": {"type": "Hello", "facts": {"reached": "fd00::7"}},
    }
    _, _, events = finished(tmp_path / "run", 30, forged)
    notices = [event["text"] for event in events if event["type"] == "noticed"]
    assert "the last 5 MiB of the log of worker:1 were not sent: the link to node0000 is too slow" in notices
    (planned,) = (event for event in events if event["type"] == "attempt_planned")
    assert planned["cluster"]["worker"][TASKS].startswith("[fd00::7]:")


@pytest.mark.slow
def test_cost_of_a_host_does_not_grow_with_their_number(tmp_path: Path) -> None:
    counts = [finished(tmp_path / str(hosts), hosts)[:2] for hosts in (10, 60, 210)]
    for few, more, many in zip(*counts, strict=True):
        # The cost of one more host among few, and among many.
        assert (many - more) / 150 < 1.2 * (more - few) / 50


REASON = "\x1b]0;title\x07\x1b[2J\u202eno port\nrun succeeded"
LIES: dict[str, tuple[dict[str, object], str]] = {
    "task": ({"type": "Started", "task": "worker:0"}, "reports about 'worker:0', which it does not run"),
    "log": ({"type": "Log", "task": "worker:0"}, "sends a log of 'worker:0', which it does not run"),
    "address": (
        {"type": "Hello", "facts": {"reached": "10.0.0.1,evil"}},
        "cannot read: Hello: facts: reached: '10.0.0.1,evil' is not an IP address",
    ),
    "facts": ({"type": "Hello", "facts": None}, "it sent no facts about itself"),
    "early": (
        {"type": "Held", "becomes": "DiskFull", "task": "worker:4", "reason": "full"},
        "reports about 'worker:4', which it does not run",
    ),
    "ports": ({"type": "Held", "ports": [7] * TASKS}, "the address 10.1.0.1:7, which another task has"),
    "text": ({"type": "Held", "becomes": "HoldFailed", "reason": REASON}, "it has no ports for its tasks: "),
}


@pytest.mark.parametrize(("forged", "reason"), LIES.values(), ids=LIES)
def test_host_with_an_impossible_report_is_lost(
    tmp_path: Path, forged: dict[str, object], reason: str
) -> None:
    """Its text does not control the terminal."""
    with SimulatedRun(tmp_path, 2, TASKS, forged={"node0001": forged}) as run:
        assert run.link.wait(PATIENCE_S)
        result = json.loads((run.root / "result.json").read_text())
        assert (run.root / "supervisor.log").read_text() == ""
        if forged.get("becomes") == "HoldFailed":
            run.orch("report", run.name, "--markdown", "-o", str(tmp_path / "report"))
            shown = (tmp_path / "report").read_text()
            assert "no port" in shown and "\nrun succ" not in shown
            assert not {"\x1b", "\u202e", "\x07"} & set(shown)
    cause = result["cause"]
    assert (result["exit_code"], cause["kind"], cause["host"]) == (137, "host", "node0001")
    assert reason in cause["text"]


def test_reports_that_a_host_cannot_make() -> None:
    spec = changed(job(workers=2, hosts="n1,n2"), engine=EngineName.SSH)
    parts: Any = None
    with closing(make_run()) as store:
        hosts = Hosts(spec)
        attempts = Attempts(spec, hosts, store, parts, parts, deque())
        attempts.hold_ports(1, spec)
        with pytest.raises(HostUnusable, match="reports ports before facts about itself"):
            attempts.take_held("n2", Held(1, (2000,)))
        hosts.facts = dict.fromkeys(("n1", "n2"), HostFacts("10.0.0.1", Cores(machine=1, allowed=1)))
        with pytest.raises(HostUnusable, match="reports about 'worker:1'"):
            attempts.check_report("n2", Listening("worker:1"))  # it is not planned yet
        attempts.take_held("n2", Held(1, (2000,)))
        with pytest.raises(HostUnusable, match=r"the address 10.0.0.1:2000, which another task has"):
            attempts.take_held("n1", Held(1, (2000,)))
        attempts.take_held("n1", Held(1, (2001,)))
        for message, reason in (
            (Held(1, ()), "reports 0 ports"),
            (Held(7, (2000,)), "reports 1 ports, which it was not asked for"),
            (Held(1, (2000,)), "reports 1 ports, which it was not asked for"),
            (HoldFailed("none"), "it has no ports for its tasks: none"),
            (Listening("../x"), "reports about '../x', which it does not run"),
            (Sampled({"worker:0": Usage(1, 1)}), "reports about 'worker:0'"),
            (
                Exited("worker:1", ExitFacts(1, None, 1.0, peers={"worker:0": "T"})),
                "reports about 'worker:0'",
            ),
            (Empty(0, unsent={"worker:0": 1}), "reports about 'worker:0'"),
        ):
            take = attempts.take_held if isinstance(message, Held) else attempts.check_report
            with pytest.raises(HostUnusable, match=reason):
                take("n2", message)  # type: ignore[arg-type]
        attempts.check_report("n2", Listening("worker:1"))
