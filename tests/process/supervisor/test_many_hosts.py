"""A run on many pretended hosts, with the real supervisor and the real stream to each agent."""

from __future__ import annotations

import json
import pstats
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulated_hosts import SimulatedRun
from waiting import PATIENCE_S

TASKS = 4
FACTS = {
    "directory": "/tmp/orch-1",
    "machine": ["boot"],
    "addresses": {},
    "reached": None,
    "memory_bytes": 1,
    "gpus": [],
    "gpu_lack": None,
    "python": "3.11.2",
    "allowed_cores": [0],
}
COUNTED = ("/orchestrator/core/", "/orchestrator/store/", "/supervisor/agent_", "/supervisor/hosts")


@dataclass
class Cost:
    """Calls of functions and generators about events, plans and files; bytes written until all tasks were ready."""

    calls: int
    written: int


def cost_of(directory: Path, hosts: int) -> Cost:
    directory.mkdir()
    profile = directory / "profile"
    with SimulatedRun(directory, hosts, TASKS, profile) as run:
        run.until_event("task_ready", run.tasks)
        written = run.written_bytes
        run.stop()
        counted = run.count_events()
        result = json.loads((run.root / "result.json").read_text())
        logs = [path.read_text() for path in (run.root / "logs").glob("*.log")]
        assert (run.root / "supervisor.log").read_text() == ""
    assert (counted["host_joined"], counted["host_lost"]) == (hosts, 0)
    assert [counted[kind] for kind in ("task_started", "task_ready", "task_exited")] == [run.tasks] * 3
    assert (result["outcome"], len(result["tasks"]), len(result["hosts"])) == ("stopped", run.tasks, hosts)
    assert len(logs) == run.tasks and len(set(logs)) == 1 and logs[0].endswith("pretended host\n")
    return Cost(counted_calls(profile), written)


def counted_calls(profile: Path) -> int:
    """The calls, without those of the links: their number depends on how long a busy machine takes."""
    stats = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    return sum(
        calls for (file, _, _), (_, calls, *_) in stats.items() if any(part in file for part in COUNTED)
    )


def test_run_on_many_hosts_is_complete(tmp_path: Path) -> None:
    assert cost_of(tmp_path / "run", 30).calls > 0


@pytest.mark.slow
def test_cost_of_a_host_does_not_grow_with_their_number(tmp_path: Path) -> None:
    few, more, many = (cost_of(tmp_path / str(hosts), hosts) for hosts in (10, 60, 210))
    # The cost of one more host among few, and among many.
    early, late = (more.calls - few.calls) / 50, (many.calls - more.calls) / 150
    assert late < 1.2 * early
    early, late = (more.written - few.written) / 50, (many.written - more.written) / 150
    assert late < 1.2 * early


def test_text_of_a_host_does_not_control_the_terminal(tmp_path: Path) -> None:
    reason = "\x1b]0;title\x07\x1b[2J\u202eno port\nrun succeeded"
    forged = {"node0000": {"type": "Held", "becomes": "HoldFailed", "reason": reason}}
    with SimulatedRun(tmp_path, 1, forged=forged) as run:
        assert run.link.wait(PATIENCE_S)
        run.orch("report", run.name, "--markdown", "-o", str(tmp_path / "report"))
    shown = (tmp_path / "report").read_text()
    assert "no port" in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown) and "\nrun succ" not in shown


def test_missing_end_of_a_log_and_an_ipv6_address_are_reported(tmp_path: Path) -> None:
    forged = {
        "node0000": {"type": "Empty", "unsent": {"worker:1": 5 << 20}},
        "node0001": {"type": "Hello", "facts": {**FACTS, "reached": "fd00::7"}},
    }
    with SimulatedRun(tmp_path, 2, forged=forged) as run:
        run.until_event("task_ready", run.tasks)
        run.stop()
        events = [json.loads(line) for line in (run.root / "events.jsonl").read_text().splitlines()]
    notices = [event["text"] for event in events if event["type"] == "noticed"]
    assert "the last 5 MiB of the log of worker:1 were not sent: the link to node0000 is too slow" in notices
    (planned,) = (event for event in events if event["type"] == "attempt_planned")
    assert planned["cluster"]["worker"][-1].startswith("[fd00::7]:")


UNREADABLE = "the agent sent a message that this version cannot read"
IMPOSSIBLE: dict[str, tuple[dict[str, object], str]] = {
    "ports": ({"type": "Held", "ports": []}, "reports 0 ports"),
    "port": ({"type": "Held", "ports": [70000, 1, 2, 3]}, f"{UNREADABLE}: Held: ports: 70000 is not between"),
    "order": ({"type": "Held", "number": 7}, "reports 4 ports, which it was not asked for"),
    "task": ({"type": "Started", "task": "worker:0"}, "reports about 'worker:0', which it does not run"),
    "task name": ({"type": "Listening", "task": "../x"}, "reports about '../x', which it does not run"),
    "sample": (
        {"type": "Sampled", "tasks": {"worker:0": {"cpu_percent": 1, "memory_bytes": 1}}},
        "reports about 'worker:0'",
    ),
    "log": ({"type": "Log", "task": "worker:0"}, "sends a log of 'worker:0', which it does not run"),
    "no ports": (
        {"type": "Held", "becomes": "HoldFailed", "reason": "none"},
        "it has no ports for its tasks: none",
    ),
    "address": (
        {"type": "Hello", "facts": {**FACTS, "reached": "10.0.0.1,evil"}},
        f"{UNREADABLE}: Hello: facts: reached: '10.0.0.1,evil' is not an IP address",
    ),
    "cores": ({"type": "Hello", "cores": 10**60}, f"{UNREADABLE}: Hello: cores"),
    "silence about itself": ({"type": "Hello", "facts": None}, "it sent no facts about itself"),
    "pid": ({"type": "Started", "pid": 2**40}, f"{UNREADABLE}: Started: pid: 1099511627776 is not between"),
}


@pytest.mark.parametrize(("forged", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_host_with_an_impossible_report_is_lost(
    tmp_path: Path, forged: dict[str, object], reason: str
) -> None:
    with SimulatedRun(tmp_path, 3, TASKS, forged={"node0001": forged}) as run:
        assert run.link.wait(PATIENCE_S)
        result = json.loads((run.root / "result.json").read_text())
        assert (run.root / "supervisor.log").read_text() == ""
    assert (result["exit_code"], result["cause"]["kind"], result["cause"]["host"]) == (
        137,
        "host",
        "node0001",
    )
    assert reason in result["cause"]["text"]
