"""Places the tasks of a job on its hosts (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, cycle

from orchestrator.core.job.choices import Placement
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.text.counted import counted

_LISTED = 8


def place(spec: JobSpec) -> tuple[str, ...]:
    """Return the host of each task of `spec.tasks`, in order. Raises SettingMisfit if the slots do not suffice.

    `pack` fills the hosts in their order, `spread` deals the tasks of a role to them in turn; both keep the slots that
    roles with their own hosts need. Hosts without a number of slots share equally what the others do not take.
    """
    slots = _slots(spec)
    _check(spec, slots)
    room = _Room(spec, slots)
    deal = _packed if spec.placement is Placement.PACK else _spread
    return tuple(name for role in spec.roles for name in deal(room, role, spec.hosts_of(role)))


def _slots(spec: JobSpec) -> dict[str, int]:
    """Return the slots by host. Hosts without a number get the smallest equal one with which all tasks find room."""
    total = len(spec.tasks)
    given = {host.name: host.slots or spec.tasks_per_host for host in spec.hosts}

    def with_share(share: int) -> dict[str, int]:
        return {name: share if slots is None else slots for name, slots in given.items()}

    if None not in given.values():
        return with_share(0)
    shares = range(1, total + 1)
    fits = bisect_left(shares, True, key=lambda share: _lacking(spec, with_share(share)) is None)
    return with_share(shares[min(fits, total - 1)])


def _check(spec: JobSpec, slots: Mapping[str, int]) -> None:
    roles = _lacking(spec, slots)
    if roles is None:
        return
    hosts = _hosts_of(spec, roles)
    tasks, room = sum(spec.roles[role] for role in roles), sum(slots[name] for name in hosts)
    what = counted(tasks, "task") if len(roles) == len(spec.roles) else _counted_roles(spec, roles)
    named = [f"{name}:{slots[name]}" for name in hosts]
    listed = ", ".join(named[:_LISTED]) + (
        f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
    )
    verb = "needs" if tasks == 1 else "need"
    raise SettingMisfit(
        "hosts",
        f"{what} {verb} {counted(tasks, 'slot')}, and {listed} {'has' if len(hosts) == 1 else 'have'} {room}; add"
        " hosts or slots, or start fewer tasks",
    )


def _counted_roles(spec: JobSpec, roles: Sequence[str]) -> str:
    return " and ".join(counted(spec.roles[role], f"{role} task") for role in roles)


def _lacking(spec: JobSpec, slots: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the roles whose tasks find no room on all their hosts together; None if there is room for all tasks.

    By Hall's theorem there is room if no set of roles has more tasks than its hosts have slots."""
    for roles in _sets(tuple(spec.roles)):
        if sum(spec.roles[role] for role in roles) > sum(slots[name] for name in _hosts_of(spec, roles)):
            return roles
    return None


def _sets(roles: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield all sets of roles, the largest first: at most 15."""
    for size in range(len(roles), 0, -1):
        yield from combinations(roles, size)


def _hosts_of(spec: JobSpec, roles: Sequence[str]) -> list[str]:
    wanted = {name for role in roles for name in spec.hosts_of(role)}
    return [host.name for host in spec.hosts if host.name in wanted]


class _Room:
    """The slots that are left. What the sets of later roles need is not given to an earlier one."""

    def __init__(self, spec: JobSpec, slots: Mapping[str, int]) -> None:
        self.left = dict(spec.roles)
        self._free = dict(slots)
        # For each set of roles: its hosts, and how many of their slots it does not need.
        self._spare: list[tuple[frozenset[str], frozenset[str], int]] = []
        for roles in _sets(tuple(spec.roles)):
            hosts = _hosts_of(spec, roles)
            spare = sum(slots[name] for name in hosts) - sum(spec.roles[role] for role in roles)
            self._spare.append((frozenset(roles), frozenset(hosts), spare))

    def take(self, role: str, host: str, wanted: int) -> int:
        """Give at most `wanted` slots of the host to tasks of the role; return how many."""
        for roles, hosts, spare in self._spare:
            if host in hosts and role not in roles:
                wanted = min(wanted, spare)
        taken = max(0, min(wanted, self._free[host], self.left[role]))
        self._free[host] -= taken
        self.left[role] -= taken
        self._spare = [
            (roles, hosts, spare - taken if host in hosts and role not in roles else spare)
            for roles, hosts, spare in self._spare
        ]
        return taken


def _packed(room: _Room, role: str, hosts: Sequence[str]) -> Iterator[str]:
    for host in hosts:
        yield from [host] * room.take(role, host, room.left[role])


def _spread(room: _Room, role: str, hosts: Sequence[str]) -> Iterator[str]:
    for host in cycle(hosts):
        if not room.left[role]:
            return
        yield from [host] * room.take(role, host, 1)
