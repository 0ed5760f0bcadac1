"""Places the tasks of a job on its hosts (pure)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from orchestrator.core.job.choices import Placement
from orchestrator.core.job.elastic import resized
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.text.counted import counted

# Longest list of hosts in a message.
_LISTED = 8


def place(spec: JobSpec) -> tuple[str, ...]:
    """Return the host of each task of `spec.tasks`, in order. Raises SettingMisfit if the slots do not suffice.

    The roles with the fewest hosts choose first, then the others in their order. Hosts without a number of slots share
    equally what the others do not take.
    """
    slots = {host.name: host.slots or spec.tasks_per_host for host in spec.hosts}
    unlimited = frozenset(name for name, number in slots.items() if number is None)
    rest = len(spec.tasks) - sum(number for number in slots.values() if number is not None)
    if rest > 0 and not unlimited:
        raise SettingMisfit("hosts", _too_few(counted(len(spec.tasks), "task"), len(spec.tasks), slots))
    free = _slots(spec)
    placed: dict[str, list[str]] = {}
    for role in sorted(spec.roles, key=lambda role: len(spec.hosts_of(role))):
        hosts, count = spec.hosts_of(role), spec.roles[role]
        left = {name: free[name] for name in hosts}
        placed[role] = _place_role(count, hosts, free, unlimited, spec.placement)
        if len(placed[role]) < count:
            raise SettingMisfit("hosts", _too_few(counted(count, f"{role} task"), count, left))
    return tuple(host for role in spec.roles for host in placed[role])


def fit(spec: JobSpec, living: Collection[str]) -> JobSpec | None:
    """Return the job of the next attempt on those of its hosts that live: with as many workers as their slots allow.
    None if that are fewer than the fewest of the range.

    A host without a number of slots has those that it needs when all hosts are there."""
    hosts = [host for host in spec.hosts if host.name in living]
    if len(hosts) == len(spec.hosts):
        return spec
    needed, shares = Counter(place(spec)), _slots(spec)
    slots = {host.name: max(shares[host.name], needed[host.name]) for host in hosts}
    hosts = [host.model_copy(update={"slots": slots[host.name]}) for host in hosts]
    room = sum(slots.values()) - (len(spec.tasks) - spec.workers)
    for workers in range(min(spec.workers, room), (spec.fewest_workers or spec.workers) - 1, -1):
        job = resized(spec, workers, hosts)
        try:
            place(job)
        except SettingMisfit:  # its roles may run on some hosts only
            continue
        return job
    return None


def _slots(spec: JobSpec) -> dict[str, int]:
    """The slots of each host. Hosts without a number share equally what the others do not take."""
    given = {host.name: host.slots or spec.tasks_per_host for host in spec.hosts}
    rest = len(spec.tasks) - sum(number or 0 for number in given.values())
    share = -(-max(0, rest) // max(1, sum(number is None for number in given.values())))
    return {name: share if number is None else number for name, number in given.items()}


def _place_role(
    count: int, hosts: Sequence[str], free: dict[str, int], unlimited: frozenset[str], placement: Placement
) -> list[str]:
    """Return the hosts of the tasks of a role, fewer if there are too few slots. Takes the slots out of `free`."""
    turn = deque(name for name in hosts if free[name] > 0)
    spare = [name for name in hosts if name in unlimited]
    placed: list[str] = []
    while len(placed) < count and (turn or spare):
        # A host without a number takes more than its share rather than none.
        host = turn[0] if turn else max(spare, key=lambda name: free[name])
        placed.append(host)
        free[host] -= 1
        if turn and free[host] <= 0:
            turn.popleft()
        elif turn and placement is Placement.SPREAD:
            turn.rotate(-1)
    return placed


def _too_few(what: str, count: int, slots: Mapping[str, int | None]) -> str:
    named = [f"{name}:{number}" for name, number in slots.items()]
    listed = ", ".join(named[:_LISTED]) + (f" and {len(named) - _LISTED} more" if named[_LISTED:] else "")
    free = sum(number or 0 for number in slots.values())
    return (
        f"{what} {'needs' if count == 1 else 'need'} {counted(count, 'slot')}, and {listed}"
        f" {'has' if len(named) == 1 else 'have'} {free}; add hosts or slots, or start fewer tasks"
    )
