"""Hosts: their text, files of hosts, the copy of --sync, and which host each task runs on."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, make_spec, refusal
from waiting import until, until_gone

from orchestrator.core.job.choices import EngineName, Placement
from orchestrator.core.job.hosts import MOST_HOSTS, Host, parse_hosts, parse_hosts_file
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.spec import JobSpec, RoleSettings
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.plan.placement import fit, place
from orchestrator.links.start_queue import MOST_STARTING
from orchestrator.preflight.sync import copy_directory

A, B = Host(name="a", destination="a", slots=2), Host(name="b", destination="b")
NAMES = st.from_regex(r"\A[a-z0-9_]([a-z0-9_.-]{0,20}[a-z0-9_])?\Z") | st.sampled_from(
    ["fd00::1", "::1", "fe80::1%eth0"]
)
HOSTS = st.builds(
    lambda name, user, slots: Host(name=name, destination=f"{user}@{name}" if user else name, slots=slots),
    NAMES,
    st.sampled_from(["", "root", "jane.doe", "svc_1"]),
    st.none() | st.integers(1, MOST_TASKS),
)


LISTS: dict[str, tuple[Host, ...]] = {
    "a:2,b": (A, B),
    " a:2 , b ": (A, B),
    "user@c:4": (Host(name="c", destination="user@c", slots=4),),
    "[fd00::1]:3": (Host(name="fd00::1", destination="fd00::1", slots=3),),
    "me@[fe80::1%eth0]": (Host(name="fe80::1%eth0", destination="me@fe80::1%eth0"),),
    "10.0.0.1": (Host(name="10.0.0.1", destination="10.0.0.1"),),
}
NO_LISTS = {
    "": "no host is named; write a:2,b:2",
    "a,,b": '"a,,b" has an empty name',
    "a,b:2,a:3": "a is named twice; name it once, with its number of tasks: a:2",
    "a,me@a": "a is named twice",
    "a:0": f'"a:0": a host has 1 to {MOST_TASKS:,} slots, not 0',
    "a:99999": "slots, not 99,999",
    "a:two": '"a:two" is not a host; write a host such as node1',
    "a:-1": '"a:-1" is not a host',
    "-oProxyCommand=touch${IFS}x": "is not a host",
    "me@-F": "is not a host",
    "fd00::1": '"fd00::1" is not a host; write an IPv6 address in brackets: [fd00::1]',
    "me@fd00::1": "in brackets: me@[fd00::1]",
    "ssh://me@a:2222": "write user@node1, and put the port into ~/.ssh/config",
    "a slots=4": '"a slots=4" is not a host; write a:4',
    "a\nb": "is not a host",
}
NO_FILES = {
    "": "rack: no host is named; write one host a line",
    "# a\n": "rack: no host is named",
    "a\nb c\n": 'rack, line 2: "b c" is not a host',
    "a\n\nuser@a:2": "rack, line 3: a is in line 1 already",
    "a\nb slots=2": 'rack, line 2: "b slots=2" is not a host; write b:2',
    "\n".join(f"n{at}" for at in range(MOST_HOSTS + 1)): f"a run has at most {MOST_HOSTS:,} hosts",
}


def test_list_of_hosts_is_read_or_refused() -> None:
    assert {text: parse_hosts(text) for text in LISTS} == LISTS
    wrong = {text: said for text in NO_LISTS if NO_LISTS[text] not in (said := refusal(parse_hosts, text))}
    assert wrong == {}


def test_file_of_hosts_is_read_or_refused() -> None:
    assert parse_hosts_file("# the rack\na:2  # the fast one\n\n\tb\r\n", "rack") == (A, B)
    for text, message in NO_FILES.items():
        assert message in refusal(parse_hosts_file, text, "rack"), text[:40]


@given(st.lists(HOSTS, min_size=1, max_size=8, unique_by=lambda host: host.name))
def test_text_of_hosts_is_read_back(hosts: list[Host]) -> None:
    assert parse_hosts(",".join(map(str, hosts))) == tuple(hosts)
    assert parse_hosts_file("\n# all\n".join(map(str, hosts)), "f") == tuple(hosts)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No destination can be taken for an option of ssh, or for two words."""
    try:
        hosts = parse_hosts(text)
    except ValueError as error:
        assert str(error) and len(str(error)) < 400
    else:
        for host in hosts:
            assert not host.destination.startswith("-") and not set(" \t\n'\"$;/\\") & set(host.destination)
            assert not host.name.startswith("-") and host.name in host.destination


def test_hosts_mean_ssh(load_here: Load) -> None:
    spec = load_here(hosts="a:2,b", placement="spread", link_timeout="20s", ssh_command="ssh -F x").spec
    assert (spec.engine, spec.hosts, spec.placement) == (EngineName.SSH, (A, B), Placement.SPREAD)
    assert (spec.link_timeout_s, spec.ssh_command) == (20.0, ("ssh", "-F", "x"))
    assert load_here().spec.engine is EngineName.LOCAL and not load_here().spec.hosts
    spec = load_here('hosts = "a:2,b"\n[roles.ps]\nhosts = ["b"]').spec
    assert (spec.hosts_of("ps"), spec.hosts_of("worker")) == (("b",), ("a", "b"))


def test_option_for_hosts_alone_gives_a_notice(load_here: Load) -> None:
    assert load_here(sync=True, engine="local").notices == ("--sync has no effect without --hosts",)
    assert not load_here("sync = true", {"ORCH_PLACEMENT": "spread"}).notices
    assert not load_here(hosts="a", sync=True).notices


def test_hosts_of_a_file_or_a_list(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "rack").write_text("a:2\nb\n")
    for hosts in ("@rack", "./rack", str(tmp_path / "rack"), ["a:2", "b"]):
        assert load_here(hosts=hosts).spec.hosts == (A, B)
    assert load_here('hosts = ["a:2", "b"]').spec.hosts == (A, B)
    assert load_here('hosts = "@rack"').spec.hosts == (A, B)
    (tmp_path / "wrong").write_text("a\nb c\n")
    assert refusal(load_here, "", hosts="@wrong").startswith(f"--hosts: {tmp_path}/wrong, line 2:")
    missing = refusal(load_here, "", hosts="@none")
    assert missing == f"--hosts: {tmp_path}/none does not exist; name a file with one host a line"
    assert "cannot be read (Is a directory)" in refusal(load_here, "", hosts="@.")


def test_own_interpreter_is_replaced_on_hosts(load_here: Load) -> None:
    """That of this machine may not exist there; an interpreter that the user names does."""
    own, named = sys.executable, shutil.which("sh") or ""
    spec = load_here(hosts="a", remote_python="/opt/py/bin/python", command=["-m", "this"]).spec
    assert spec.command.argv[0] == spec.command.interpreter[0] == "/opt/py/bin/python"
    assert load_here(hosts="a", command=["-m", "this"]).spec.command.argv[0] == own
    assert load_here(hosts="a", remote_python="/x", command=[named]).spec.command.argv[0] == named


@pytest.fixture
def rsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a shell script the `rsync` that is found first."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(script: str) -> None:
        (tmp_path / "rsync").write_text(f"#!/bin/sh\n{script}")
        (tmp_path / "rsync").chmod(0o755)

    return write


def job(cwd: Path, *hosts: Host) -> JobSpec:
    return make_spec(engine=EngineName.SSH, hosts=hosts, cwd=cwd)


def test_failure_of_rsync_is_reported_with_its_reason(tmp_path: Path, rsync: Callable[[str], None]) -> None:
    """A file may vanish while others are copied. The reason of another program comes before those of rsync."""
    cause = "mkdir: cannot create directory 'work': File exists"
    ended = (
        f"{cause}\nrsync: connection unexpectedly closed (0 bytes)\n"
        "rsync error: error in rsync protocol data stream (code 12)"
    )
    table = (
        (0, "", ""),
        (24, "file has vanished: /data/x", ""),
        (12, ended, f"--sync: a: rsync failed: {cause}"),
    )
    for code, text, reason in table:
        rsync(f"cat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
        assert refusal(copy_directory, job(tmp_path, B, A), (A,)) == reason, code


def test_interrupted_copy_leaves_no_process(tmp_path: Path, rsync: Callable[[str], None]) -> None:
    """rsync starts an ssh, which may wait for a host that does not answer."""
    ssh = tmp_path / "ssh"
    rsync(f"sleep 600 &\necho $! > {ssh}\nwait\n")

    def hosts() -> Iterator[Host]:
        yield A
        until(lambda: ssh.exists() and ssh.read_text().endswith("\n"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_directory(job(tmp_path, A), hosts())
    until_gone(int(ssh.read_text()))


def test_few_copies_run_at_the_same_time(tmp_path: Path, rsync: Callable[[str], None]) -> None:
    """The first ones wait until all that may run are there, then all count them."""
    rsync(f"""cd {tmp_path}
: > started.$$; : > running.$$
until [ $(ls started.* | wc -l) -ge {MOST_STARTING} ]; do sleep 0.01; done
sleep 0.2
ls running.* | wc -l >> counts
rm running.$$
""")
    hosts = tuple(Host(name=f"n{at}", destination=f"n{at}") for at in range(MOST_STARTING + 3))
    copy_directory(job(tmp_path, *hosts), hosts)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert (len(counts), max(counts)) == (len(hosts), MOST_STARTING)


# -- placement

PACK, SPREAD = Placement
FOUR = ("a", "b", "c", "d")


def letters(spec: JobSpec) -> str:
    return "".join(place(spec))


def test_workers_are_placed() -> None:
    two, spread = {"tasks_per_host": 2}, {"placement": SPREAD}
    table: list[tuple[int, str, dict[str, object], str]] = [
        (4, "a:2,b:2", {}, "aabb"),
        (4, "a:2,b:2", spread, "abab"),
        (3, "a:2,b:2", {}, "aab"),
        (4, "a:1,b:3", spread, "abbb"),
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


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    slots = draw(st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=4))
    hosts = tuple(
        Host(name=name, destination=name, slots=number) for name, number in zip(FOUR, slots, strict=False)
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
        assert job is None or [host.name for host in job.hosts] == [name for name in FOUR if name in living]


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
