"""Hosts: their text, files of hosts, and the options that fit to them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_making import Load, MakeSpec
from waiting import until, until_gone

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import EngineName, Placement
from orchestrator.core.job.hosts import MOST_HOSTS, Host, parse_hosts, parse_hosts_file
from orchestrator.core.job.roles import MOST_TASKS
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


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b", (A, B)),
        (" a:2 , b ", (A, B)),
        ("user@c:4", (Host(name="c", destination="user@c", slots=4),)),
        ("[fd00::1]:3", (Host(name="fd00::1", destination="fd00::1", slots=3),)),
        ("me@[fe80::1%eth0]", (Host(name="fe80::1%eth0", destination="me@fe80::1%eth0"),)),
        ("10.0.0.1", (Host(name="10.0.0.1", destination="10.0.0.1"),)),
    ],
)
def test_list_of_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no host is named; write a:2,b:2"),
        ("a,,b", '"a,,b" has an empty name'),
        ("a,b:2,a:3", "a is named twice; name it once, with its number of tasks: a:2"),
        ("a,me@a", "a is named twice"),
        ("a:0", f'"a:0": a host has 1 to {MOST_TASKS:,} slots, not 0'),
        ("a:99999", "slots, not 99,999"),
        ("a:two", '"a:two" is not a host; write a host such as node1'),
        ("a:-1", '"a:-1" is not a host'),
        ("-oProxyCommand=touch${IFS}x", "is not a host"),
        ("me@-F", "is not a host"),
        ("fd00::1", '"fd00::1" is not a host; write an IPv6 address in brackets: [fd00::1]'),
        ("me@fd00::1", "in brackets: me@[fd00::1]"),
        ("ssh://me@a:2222", "write user@node1, and put the port into ~/.ssh/config"),
        ("a slots=4", '"a slots=4" is not a host; write a:4'),
        ("a\nb", "is not a host"),
    ],
)
def test_text_that_is_no_list_of_hosts(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_hosts(text)


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


def test_hosts_file() -> None:
    text = "# the rack\na:2  # the fast one\n\n\tb\r\n"
    assert parse_hosts_file(text, "rack") == (A, B)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rack: no host is named; write one host a line"),
        ("# a\n", "rack: no host is named"),
        ("a\nb c\n", 'rack, line 2: "b c" is not a host'),
        ("a\n\nuser@a:2", "rack, line 3: a is in line 1 already"),
        ("a\nb slots=2", 'rack, line 2: "b slots=2" is not a host; write b:2'),
        ("\n".join(f"n{at}" for at in range(MOST_HOSTS + 1)), f"a run has at most {MOST_HOSTS:,} hosts"),
    ],
)
def test_wrong_hosts_file_names_the_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_hosts_file(text, "rack")


def test_hosts_mean_ssh(load_here: Load) -> None:
    spec = load_here(hosts="a:2,b", placement="spread", link_timeout="20s", ssh_command="ssh -F x").spec
    assert (spec.engine, spec.hosts, spec.placement) == (EngineName.SSH, (A, B), Placement.SPREAD)
    assert (spec.link_timeout_s, spec.ssh_command) == (20.0, ("ssh", "-F", "x"))
    assert load_here().spec.engine is EngineName.LOCAL and not load_here().spec.hosts


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


def test_role_has_its_own_hosts(load_here: Load) -> None:
    spec = load_here('hosts = "a:2,b"\n[roles.ps]\nhosts = ["b"]').spec
    assert (spec.hosts_of("ps"), spec.hosts_of("worker")) == (("b",), ("a", "b"))


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        ("", {"engine": "ssh"}, "--engine: ssh needs hosts: add --hosts a:2,b:2"),
        ("", {"hosts": "a", "engine": "local"}, "--engine: local runs all tasks on this machine"),
        ("", {"hosts": "a", "engine": "rsh"}, '--engine: "rsh" is not known'),
        ("", {"hosts": "a", "network": "private"}, "--network: a private network exists on one machine only"),
        ("", {"engine": "slurm", "network": "private"}, "leave it out, or leave out --engine slurm"),
        ("", {"engine": "slurm", "slurm": "--no-shell"}, "--slurm: --no-shell: orch has to learn when"),
        ("", {"engine": "slurm", "slurm": "-p x --wait"}, "--slurm: --wait: orch has to learn when"),
        ("", {"hosts": "a", "tensorboard": True}, "--tensorboard: it reads the event files on this machine"),
        ("", {"hosts": "a,a"}, "--hosts: a is named twice"),
        ("", {"hosts": "@none"}, "none does not exist; name a file with one host a line"),
        ("", {"hosts": "@."}, "cannot be read (Is a directory)"),
        ("", {"hosts": [3]}, "--hosts: 3 is not a host; put it in quotes"),
        ('hosts = "a b"', {}, 'orch.toml, line 1: hosts: "a b" is not a host'),
        ("", {"hosts": "a", "tasks_per_host": 0}, "--tasks-per-host: must be between 1 and"),
        (
            "",
            {"hosts": "a", "ssh_command": ""},
            '--ssh-command: names no program; write "ssh -F FILE", or leave it out',
        ),
        ("ssh_command = ['']", {"hosts": "a"}, "orch.toml, line 1: ssh-command: names no program"),
        ("", {"hosts": "a", "link_timeout": 1}, "--link-timeout: must be at least 3s, not 1s"),
        (
            "",
            {"hosts": "a", "interface": "eth 0"},
            '--interface: "eth 0" is not the name of a network interface',
        ),
        (
            "",
            {"hosts": "a", "placement": "packed"},
            '--placement: "packed" is not known; did you mean "pack"?',
        ),
        (
            "hosts = 'a'\n[roles.ps]\nhosts = ['c']",
            {},
            "line 3: hosts of ps: ps: c is not a host of the run; it has a",
        ),
        ("[roles.ps]\nhosts = ['c']", {}, "ps: c is not a host of the run; it has none: add --hosts"),
        ("hosts = 'a'\n[roles.ps]\nhosts = ['a:2']", {}, 'hosts of ps: write "a"; users and numbers'),
    ],
)
def test_options_that_contradict_hosts(
    load_here: Load, toml: str, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_here(toml, **flags)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": (A, A)},
        {"ssh_command": ()},
        {"role_settings": {"worker": {"hosts": ("z",)}}, "hosts": (A,)},
        {"hosts": ({"name": "a", "destination": "a", "slots": 0},)},
    ],
)
def test_spec_with_wrong_hosts(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hosts|ssh_command|role"):
        make_spec(**changes)


def test_own_interpreter_is_replaced_on_hosts(load_here: Load) -> None:
    """That of this machine may not exist there; an interpreter that the user names does."""
    own, named = sys.executable, shutil.which("sh") or ""
    spec = load_here(hosts="a", remote_python="/opt/py/bin/python", command=["-m", "this"]).spec
    assert spec.command.argv[0] == spec.command.interpreter[0] == "/opt/py/bin/python"
    assert load_here(hosts="a", command=["-m", "this"]).spec.command.argv[0] == own
    assert load_here(hosts="a", remote_python="/x", command=[named]).spec.command.argv[0] == named


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (0, "", None),
        (24, "file has vanished: /data/x", None),
        (
            12,
            "mkdir: cannot create directory 'work': File exists\nrsync: connection unexpectedly closed (0 bytes)\n"
            "rsync error: error in rsync protocol data stream (code 12)",
            "a: rsync failed: mkdir: cannot create directory 'work': File exists",
        ),
    ],
)
def test_end_of_rsync(
    make_spec: MakeSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    text: str,
    reason: str | None,
) -> None:
    """A file may vanish while others are copied. The reason of another program comes before those of rsync."""
    rsync = tmp_path / "rsync"
    rsync.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\nexit {code}\n")
    rsync.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    spec = make_spec(engine=EngineName.SSH, hosts=(B, A), cwd=tmp_path)
    if reason is None:
        copy_directory(spec, (A,))
    else:
        with pytest.raises(UsageError) as raised:
            copy_directory(spec, (A,))
        assert str(raised.value) == f"--sync: {reason}"


def test_interrupted_copy_leaves_no_process(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync starts an ssh, which may wait for a host that does not answer."""
    rsync, ssh = tmp_path / "rsync", tmp_path / "ssh"
    rsync.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {ssh}\nwait\n")
    rsync.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def hosts() -> Iterator[Host]:
        yield A
        until(lambda: ssh.exists() and ssh.read_text().endswith("\n"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_directory(make_spec(engine=EngineName.SSH, hosts=(A,), cwd=tmp_path), hosts())
    until_gone(int(ssh.read_text()))


def test_few_copies_run_at_the_same_time(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones wait until all that may run are there, then all count them."""
    rsync = tmp_path / "rsync"
    rsync.write_text(f"""#!/bin/sh
cd {tmp_path}
: > started.$$; : > running.$$
until [ $(ls started.* | wc -l) -ge {MOST_STARTING} ]; do sleep 0.01; done
sleep 0.2
ls running.* | wc -l >> counts
rm running.$$
""")
    rsync.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    hosts = tuple(Host(name=f"n{at}", destination=f"n{at}") for at in range(MOST_STARTING + 3))
    copy_directory(make_spec(engine=EngineName.SSH, hosts=hosts, cwd=tmp_path), hosts)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert (len(counts), max(counts)) == (len(hosts), MOST_STARTING)
