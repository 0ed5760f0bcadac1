"""Short builders for events of runs on several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from event_making import START, feed, lifecycle_of, planned, ready, started
from job_making import JOB, changed

from orchestrator.core.job.hosts import parse_hosts
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.lifecycle.actions import Action
from orchestrator.core.lifecycle.lifecycle import Lifecycle
from orchestrator.core.state import events

HOSTS_JOB = changed(JOB, hosts=parse_hosts("a:2,b:2"), link_timeout_s=10.0)


def placed(hosts: Sequence[str], mono: float = START) -> events.AttemptPlanned:
    """A plan with a worker on each of these hosts."""
    plan = planned(len(hosts), mono)
    tasks = zip(plan.tasks, hosts, strict=True)
    return plan.model_copy(update={"tasks": tuple(replace(task, host=host) for task, host in tasks)})


def joined(host: str, mono: float = START) -> events.HostJoined:
    return events.HostJoined(
        at=mono, mono=mono, host=host, address="10.0.0.1", cores=8, memory_bytes=1 << 34, gpus=("A100",)
    )


def silent(host: str, seconds: float, mono: float) -> events.HostSilent:
    return events.HostSilent(at=mono, mono=mono, host=host, seconds=seconds)


def back(host: str, seconds: float, mono: float) -> events.HostBack:
    return events.HostBack(at=mono, mono=mono, host=host, seconds=seconds)


def lost(host: str, mono: float, reason: str = "it has not answered for 10s") -> events.HostLost:
    return events.HostLost(at=mono, mono=mono, host=host, reason=reason)


def running_on(hosts: Sequence[str], spec: JobSpec = HOSTS_JOB) -> Lifecycle:
    """A lifecycle whose workers run on these hosts."""
    lifecycle = lifecycle_of(spec)
    here = range(len(hosts))
    for event in (*map(joined, dict.fromkeys(hosts)), placed(hosts), *map(started, here), *map(ready, here)):
        lifecycle.handle(event)
    return lifecycle


def feed_in_turn(lifecycle: Lifecycle, incoming: Iterable[events.Event]) -> list[Action]:
    """Handle each event with what follows from it before the next one."""
    return [action for event in incoming for action in feed(lifecycle, [event])]
