"""Placement: which host each task runs on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import Placement
from orchestrator.core.job.hosts import Host, parse_hosts
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.plan.placement import fit, place

PACK, SPREAD = Placement
COMMAND = Command(kind=CommandKind.EXECUTABLE, words=("x",), argv=("/x",), serves=False)
NAMES = ("a", "b", "c", "d")


def letters(spec: JobSpec) -> str:
    return "".join(place(spec))


@pytest.mark.parametrize(
    ("workers", "hosts", "changes", "expected"),
    [
        (4, "a:2,b:2", {}, "aabb"),
        (4, "a:2,b:2", {"placement": SPREAD}, "abab"),
        (3, "a:2,b:2", {}, "aab"),
        (4, "a:1,b:3", {"placement": SPREAD}, "abbb"),
        (4, "a,b", {}, "aabb"),  # equal shares
        (5, "a,b", {}, "aaabb"),
        (5, "a,b:1", {}, "aaaab"),
        (5, "a:3,b,c", {}, "aaabc"),
        (4, "a,b,c", {"tasks_per_host": 2}, "aabb"),
        (4, "a:1,b,c", {"tasks_per_host": 2}, "abbc"),
        (2, "a,b,c", {"placement": SPREAD}, "ab"),
        (1, "a", {}, "a"),
    ],
)
def test_workers_are_placed(
    make_spec: MakeSpec, workers: int, hosts: str, changes: dict[str, object], expected: str
) -> None:
    spec = make_spec(roles={"worker": workers}, hosts=parse_hosts(hosts), **changes)
    assert letters(spec) == expected


def test_roles_are_placed_in_their_order(make_spec: MakeSpec) -> None:
    roles = {"chief": 1, "worker": 3, "ps": 2}
    spec = make_spec(roles=roles, hosts=parse_hosts("a:3,b:3"))
    assert letters(spec) == "aaabbb"


def test_role_with_its_own_hosts_finds_its_slots(make_spec: MakeSpec) -> None:
    """The workers come first, and leave them free."""
    settings = {"ps": RoleSettings(hosts=("a",))}
    roles = {"chief": 1, "worker": 3, "ps": 2}
    spec = make_spec(roles=roles, hosts=parse_hosts("a:3,b:3"), role_settings=settings)
    assert letters(spec) == "abbbaa"
    unnumbered = make_spec(roles={"worker": 2, "ps": 6}, hosts=parse_hosts("a,b"), role_settings=settings)
    assert letters(unnumbered) == "bbaaaaaa"


@pytest.mark.parametrize(
    ("hosts", "ps_hosts", "message"),
    [
        (
            "a:2,b:2",
            None,
            "6 tasks need 6 slots, and a:2, b:2 have 4; add hosts or slots, or start fewer tasks",
        ),
        ("a:1,b:9", ("a",), "2 ps tasks need 2 slots, and a:1 has 1;"),
        (",".join(f"n{at}" for at in range(12)) + ",m:1", ("m",), "2 ps tasks need 2 slots, and m:1 has 1;"),
    ],
)
def test_too_few_slots_are_refused_with_the_figures(
    make_spec: MakeSpec, hosts: str, ps_hosts: tuple[str, ...] | None, message: str
) -> None:
    settings = {} if ps_hosts is None else {"ps": RoleSettings(hosts=ps_hosts)}
    spec = make_spec(roles={"worker": 4, "ps": 2}, hosts=parse_hosts(hosts), role_settings=settings)
    with pytest.raises(SettingMisfit) as refused:
        place(spec)
    assert refused.value.setting == "hosts" and message in str(refused.value)


def test_request_with_too_few_slots_is_refused(load_here: Load) -> None:
    with pytest.raises(UsageError, match=r"--hosts: 4 tasks need 4 slots, and a:1, b:2 have 3"):
        load_here(hosts="a:1,b:2", workers=4)
    with pytest.raises(UsageError, match=r"--hosts: 5 tasks need 5 slots, and a:2, b:2 have 4"):
        load_here(hosts="a,b", workers=5, tasks_per_host=2)


def test_thousands_of_tasks_on_a_thousand_hosts(make_spec: MakeSpec) -> None:
    hosts = tuple(Host(name=f"n{at}", destination=f"n{at}") for at in range(1000))
    for placement in Placement:
        spec = make_spec(roles={"worker": MOST_TASKS}, hosts=hosts, placement=placement)
        assert set(Counter(place(spec)).values()) == {MOST_TASKS // 1000}


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    slots = draw(st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=4))
    hosts = tuple(
        Host(name=name, destination=name, slots=number) for name, number in zip(NAMES, slots, strict=False)
    )
    names = [host.name for host in hosts]
    roles = {"worker": draw(st.integers(1, 4))}
    roles |= {role: draw(st.integers(1, 3)) for role in ("ps",) if draw(st.booleans())}
    roles |= {role: 1 for role in ("chief", "evaluator") if draw(st.booleans())}
    own = {
        role: RoleSettings(hosts=tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True))))
        for role in roles
        if draw(st.booleans())
    }
    return JobSpec(
        roles=roles,
        role_settings=own,
        name="job",
        command=COMMAND,
        directory=Path("/somewhere"),
        cwd=Path("/somewhere"),
        hosts=hosts,
        placement=draw(st.sampled_from(Placement)),
        tasks_per_host=draw(st.none() | st.integers(1, 3)),
    )


@given(jobs())
def test_any_job_is_placed_within_its_slots_or_refused(spec: JobSpec) -> None:
    slots = {host.name: float(host.slots or spec.tasks_per_host or "inf") for host in spec.hosts}
    try:
        placed = place(spec)
    except SettingMisfit:
        some = [its for its in spec.role_settings.values() if its.hosts is not None]
        assert some or sum(slots.values()) < len(spec.tasks)
        return
    assert len(placed) == len(spec.tasks)
    for task, host in zip(spec.tasks, placed, strict=True):
        assert host in spec.hosts_of(task.type)
    assert all(number <= slots[host] for host, number in Counter(placed).items())


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from(Placement))
def test_hosts_without_numbers_get_equal_shares(workers: int, hosts: int, placement: Placement) -> None:
    spec = JobSpec(
        roles={"worker": workers},
        name="job",
        command=COMMAND,
        directory=Path("/somewhere"),
        cwd=Path("/somewhere"),
        hosts=tuple(Host(name=f"n{at}", destination=f"n{at}") for at in range(hosts)),
        placement=placement,
    )
    placed = place(spec)
    shares = Counter(placed)
    assert max(shares.values()) == -(-workers // hosts)
    if placement is Placement.PACK:
        assert list(placed) == sorted(placed)


@pytest.mark.parametrize(
    ("workers", "fewest", "hosts", "living", "expected"),
    [
        (4, 2, "a:2,b:1,c:1", "ab", "aab"),
        (4, 2, "a:2,b:1,c:1", "bc", "bc"),
        (4, 3, "a:2,b:1,c:1", "bc", None),
        (4, 2, "a:2,b:2,c:2", "bc", "bbcc"),  # a spare host takes the place of a lost one
        (4, 2, "a,b,c,d", "abd", "abd"),  # each has the share that it has with all hosts
        (4, 2, "a,b", "b", "bb"),
        (4, 1, "a:4,b", "b", None),  # with all hosts there, none is left for b
        (4, 2, "a:2,b:2", "ab", "aabb"),
        (4, 1, "a:2,b:2", "", None),
    ],
)
def test_workers_on_the_hosts_that_live(
    make_spec: MakeSpec, workers: int, fewest: int, hosts: str, living: str, expected: str | None
) -> None:
    spec = make_spec(roles={"worker": workers}, fewest_workers=fewest, hosts=parse_hosts(hosts))
    job = fit(spec, set(living))
    assert (None if job is None else letters(job)) == expected
    assert job is None or [host.name for host in job.hosts] == [name for name in NAMES if name in living]


def test_other_roles_keep_their_tasks_on_the_hosts_that_live(make_spec: MakeSpec) -> None:
    roles = {"chief": 1, "worker": 4, "evaluator": 1}
    settings = {"evaluator": RoleSettings(hosts=("b", "c"))}
    spec = make_spec(roles=roles, fewest_workers=1, hosts=parse_hosts("a:2,b:2,c:2"), role_settings=settings)
    job = fit(spec, {"a", "c"})
    assert job is not None and dict(job.roles) == {"chief": 1, "worker": 2, "evaluator": 1}
    assert letters(job) == "aacc"
    assert fit(spec, {"a"}) is None  # the evaluator has no host
    # Three workers share the host that they are bound to, as before the loss.
    settings = {"worker": RoleSettings(hosts=("a",)), "evaluator": RoleSettings(hosts=("b", "c"))}
    roles = {"worker": 3, "evaluator": 1}
    bound = make_spec(roles=roles, fewest_workers=1, hosts=parse_hosts("a,b,c"), role_settings=settings)
    job = fit(bound, {"a", "c"})
    assert job is not None and letters(job) == "aaac"
