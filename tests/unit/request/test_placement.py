"""Placement: which host each task runs on."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from spec_making import make_spec, refusal

from orchestrator.core.job.choices import Placement
from orchestrator.core.job.hosts import Host, parse_hosts
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.spec import JobSpec, RoleSettings
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.plan.placement import fit, place

PACK, SPREAD = Placement
NAMES = ("a", "b", "c", "d")


def letters(spec: JobSpec) -> str:
    return "".join(place(spec))


def test_workers_are_placed() -> None:
    two, spread = {"tasks_per_host": 2}, {"placement": SPREAD}
    table: list[tuple[int, str, dict[str, object], str]] = [
        (4, "a:2,b:2", {}, "aabb"),
        (4, "a:2,b:2", spread, "abab"),
        (3, "a:2,b:2", {}, "aab"),
        (4, "a:1,b:3", spread, "abbb"),
        (4, "a,b", {}, "aabb"),  # equal shares
        (5, "a,b", {}, "aaabb"),
        (5, "a,b:1", {}, "aaaab"),
        (5, "a:3,b,c", {}, "aaabc"),
        (4, "a,b,c", two, "aabb"),
        (4, "a:1,b,c", two, "abbc"),
        (2, "a,b,c", spread, "ab"),
        (1, "a", {}, "a"),
    ]
    for workers, hosts, changes, expected in table:
        found = letters(make_spec(roles={"worker": workers}, hosts=parse_hosts(hosts), **changes))
        assert found == expected, (workers, hosts, changes)


def test_roles_are_placed_in_their_order_after_those_with_their_own_hosts() -> None:
    roles, hosts = {"chief": 1, "worker": 3, "ps": 2}, parse_hosts("a:3,b:3")
    assert letters(make_spec(roles=roles, hosts=hosts)) == "aaabbb"
    settings = {"ps": RoleSettings(hosts=("a",))}
    assert letters(make_spec(roles=roles, hosts=hosts, role_settings=settings)) == "abbbaa"
    unnumbered = make_spec(roles={"worker": 2, "ps": 6}, hosts=parse_hosts("a,b"), role_settings=settings)
    assert letters(unnumbered) == "bbaaaaaa"


def test_too_few_slots_are_refused_with_the_figures() -> None:
    thirteen = ",".join(f"n{at}" for at in range(12)) + ",m:1"
    all_short = "6 tasks need 6 slots, and a:2, b:2 have 4; add hosts or slots, or start fewer tasks"
    table: list[tuple[str, tuple[str, ...] | None, str]] = [
        ("a:2,b:2", None, all_short),
        ("a:1,b:9", ("a",), "2 ps tasks need 2 slots, and a:1 has 1;"),
        (thirteen, ("m",), "2 ps tasks need 2 slots, and m:1 has 1;"),
    ]
    for hosts, ps_hosts, message in table:
        settings = {} if ps_hosts is None else {"ps": RoleSettings(hosts=ps_hosts)}
        spec = make_spec(roles={"worker": 4, "ps": 2}, hosts=parse_hosts(hosts), role_settings=settings)
        assert message in refusal(place, spec), hosts


def test_thousands_of_tasks_on_a_thousand_hosts() -> None:
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
    return make_spec(
        roles=roles,
        role_settings=own,
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
    spec = make_spec(
        roles={"worker": workers},
        hosts=tuple(Host(name=f"n{at}", destination=f"n{at}") for at in range(hosts)),
        placement=placement,
    )
    placed = place(spec)
    shares = Counter(placed)
    assert max(shares.values()) == -(-workers // hosts)
    if placement is Placement.PACK:
        assert list(placed) == sorted(placed)


def test_workers_on_the_hosts_that_live() -> None:
    table: list[tuple[int, int, str, str, str | None]] = [
        (4, 2, "a:2,b:1,c:1", "ab", "aab"),
        (4, 2, "a:2,b:1,c:1", "bc", "bc"),
        (4, 3, "a:2,b:1,c:1", "bc", None),
        (4, 2, "a:2,b:2,c:2", "bc", "bbcc"),  # a spare host takes the place of a lost one
        (4, 2, "a,b,c,d", "abd", "abd"),  # each has the share that it has with all hosts
        (4, 2, "a,b", "b", "bb"),
        (4, 1, "a:4,b", "b", None),  # with all hosts there, none is left for b
        (4, 2, "a:2,b:2", "ab", "aabb"),
        (4, 1, "a:2,b:2", "", None),
    ]
    for workers, fewest, hosts, living, expected in table:
        spec = make_spec(roles={"worker": workers}, fewest_workers=fewest, hosts=parse_hosts(hosts))
        job = fit(spec, set(living))
        assert (None if job is None else letters(job)) == expected, (hosts, living)
        assert job is None or [host.name for host in job.hosts] == [name for name in NAMES if name in living]


def test_other_roles_keep_their_tasks_on_the_hosts_that_live() -> None:
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
