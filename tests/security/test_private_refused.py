"""Where the kernel forbids a private network: the run is refused with the reason before anything starts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filtered import is_possible
from users import User

from orchestrator.host.network import explain_refusal, probe_private_network

HERE = Path(__file__).parent
needs_a_filter = pytest.mark.skipif(not is_possible(), reason="the filter is written for other processors")
UNSHARE = "unshare(CLONE_NEWUSER | CLONE_NEWNET)"


def filtered(user: User) -> tuple[str, ...]:
    """The words before a command that this user runs with the system call filter."""
    program = user.script("filtered.py", (HERE.parent / "support/filtered.py").read_text())
    return str(user.python), program, "unshare", "EPERM"


CLONE, USERS = "sys/kernel/unprivileged_userns_clone", "sys/kernel/apparmor_restrict_unprivileged_userns"
# The error, a file of /proc and its text, and what the refusal says: the reason, and the remedy.
REFUSALS = (
    (errno.ENOSPC, "sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0 here",
     "sysctl -w user.max_user_namespaces=15000 as root"),
    (errno.ENOSPC, "sys/user/max_net_namespaces", "0", "max_net_namespaces is 0", "net_namespaces=15"),
    (errno.ENOSPC, "sys/user/max_net_namespaces", "90", "are taken (unshare", "lsns -t net"),
    (errno.EPERM, CLONE, "0", "kernel.unprivileged_userns_clone is 0",
     "sysctl -w kernel.unprivileged_userns_clone=1"),
    (errno.EPERM, USERS, "1", "apparmor_restrict_unprivileged_userns is 1",
     "apparmor_restrict_unprivileged_userns=0"),
    (errno.EINVAL, "none", "", "this kernel has no namespaces", "CONFIG_USER_NS"),
    (errno.EPERM, "self/status", "Name:\tx\nSeccomp:\t2", "a system call filter", "--cap-add SYS_ADMIN"),
    (errno.EPERM, "self/status", "Name:\tx\nSeccomp:\t0", "the kernel refuses it", "unshare -Un true"),
)  # fmt: skip


def test_refusal_names_the_kernel_setting(tmp_path: Path) -> None:
    wrong = []
    for number, (error, name, text, reason, fix) in enumerate(REFUSALS):
        proc = tmp_path / str(number)
        (proc / name).parent.mkdir(parents=True)
        (proc / name).write_text(f"{text}\n")
        refused = explain_refusal(UNSHARE, error, proc)
        if not (reason in refused.reason and UNSHARE in refused.reason and fix in refused.fix):
            wrong.append((name, text, refused))
    assert not wrong, wrong


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_private_network_allowed_for_others_is_not_refused() -> None:
    """Or the tests of private networks would be skipped for nothing."""
    may = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    assert (probe_private_network() is None) or not may


@pytest.mark.usefixtures("private_network")
def test_private_network_is_probed_by_trying(ordinary_user: User) -> None:
    assert ordinary_user("up", "--network", "private", "--", "true").returncode == 0


def test_failed_probe_is_a_refusal() -> None:
    wrong = []
    for trial in (
        ["/no/such/python"],
        ["true"],
        ["echo", "[]"],
        ["echo", "{}"],
        ["echo", '{"step": "x", "number": null}'],
    ):
        refused = probe_private_network(trial=trial)
        if refused is None or "gave no answer" not in refused.reason:
            wrong.append((trial, refused))
    assert not wrong, wrong


@pytest.mark.usefixtures("private_network")
@needs_a_filter
def test_up_refuses_before_it_creates_anything(user: User) -> None:
    done = user("up", "--network", "private", "--", "true", before=filtered(user))
    assert done.returncode == 2
    assert "--network private is refused here: a system call filter forbids it to this process" in done.stderr
    assert "--network host" in done.stderr
    assert user.runs() == []


@pytest.mark.slow
@needs_a_filter
def test_up_on_the_host_network_ignores_the_refusal(ordinary_user: User) -> None:
    done = ordinary_user("up", "--network", "host", "--", "true", before=filtered(ordinary_user))
    assert done.returncode == 0


@pytest.mark.usefixtures("private_network")
@needs_a_filter
def test_doctor_reports_the_refusal(ordinary_user: User) -> None:
    def exposure(private: bool) -> dict[str, str]:
        (ordinary_user.home / "orch.toml").write_text('network = "private"\n' if private else "")
        done = ordinary_user("doctor", "--json", "--workers", "1", before=filtered(ordinary_user))
        (found,) = (f for f in json.loads(done.stdout)["findings"] if f["topic"] == "exposure")
        assert isinstance(found, dict)
        return found

    asked = exposure(private=True)
    assert asked["level"] == "problem"
    assert "is refused here: a system call filter" in asked["text"]
    assert "--cap-add" in asked["fix"]
    assert "is refused here: a system call filter" in exposure(private=False)["fix"]


@needs_a_filter
def test_agent_without_private_network_holds_and_starts_nothing(tmp_path: Path) -> None:
    """The network is forbidden after the check: the tasks never start on the host's network instead."""
    program = f"""
import sys
sys.path[:0] = {[str(HERE.parent / "support")]!r}
from pathlib import Path
from filtered import forbid
forbid("unshare")
from agent_driving import Driver
from worker.wire.messages import Hold, HoldFailed
directory = Path({str(tmp_path)!r})
with Driver(directory, network="private") as agent:
    agent.link.send(Hold(1, 1, "reuse_port"))
    print(agent.wait_for(HoldFailed).reason)
    agent.start("worker:0", ["touch", str(directory / "started")])
    agent.end()
    print([type(message).__name__ for message in agent.messages])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=HERE.parents[1],
    )
    reason, kinds = done.stdout.splitlines()
    assert reason.startswith(f"a private network cannot be made: {UNSHARE}: Operation not permitted") or (
        "CLONE_NEWNET" in reason
    )
    assert kinds == "['Hello', 'HoldFailed', 'Empty']"
    assert not (tmp_path / "started").exists()
