"""Where the kernel forbids a private network: the run is refused with the reason before anything starts."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filtered
import pytest
from acting_as import in_child
from agent_driving import Driver
from orch_command import Orch

from orchestrator.host.network import explain_refusal, probe_private_network
from worker.wire.messages import Hold, HoldFailed

T = TypeVar("T")
needs_a_filter = pytest.mark.skipif(
    not filtered.is_possible(), reason="the filter is written for other processors"
)
UNSHARE = "unshare(CLONE_NEWUSER | CLONE_NEWNET)"


def with_filter(function: Callable[[], T]) -> T:
    """Run a function in a process whose system call filter refuses unshare()."""
    return in_child(lambda: (filtered.forbid("unshare"), function())[1])


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


def test_failed_probe_is_a_refusal() -> None:
    answers = ("[]", "{}", '{"step": "x", "number": null}')
    wrong = []
    for trial in (["/no/such/python"], ["true"], *(["echo", answer] for answer in answers)):
        refused = probe_private_network(trial=trial)
        if refused is None or "gave no answer" not in refused.reason:
            wrong.append((trial, refused))
    assert not wrong, wrong


@pytest.mark.usefixtures("private_network")
@needs_a_filter
def test_up_and_doctor_refuse_before_anything_is_created(orch: Orch) -> None:
    verbs = {
        ("up", "--", "true"): "private",
        ("doctor", "--json"): "private",
        ("doctor", "--json", "-q"): "host",
    }
    up, *examined = with_filter(
        lambda: [orch.within(*words, env={"ORCH_NETWORK": network}) for words, network in verbs.items()]
    )
    assert up.code == 2
    assert "--network private is refused here: a system call filter forbids it to this process" in up.err
    assert "--network host" in up.err
    asked, other = (
        next(found for found in done.document["findings"] if found["topic"] == "exposure")
        for done in examined
    )
    assert (asked["level"], "--cap-add" in asked["fix"]) == ("problem", True)
    assert "is refused here: a system call filter" in asked["text"]
    assert other["level"] != "problem" and "is refused here: a system call filter" in other["fix"]
    assert orch.run_dirs() == []


@pytest.mark.slow
@needs_a_filter
def test_up_on_the_host_network_ignores_the_refusal(orch: Orch) -> None:
    assert with_filter(lambda: orch.within("up", "--network", "host", "--", "true").code) == 0


@needs_a_filter
def test_agent_without_private_network_holds_and_starts_nothing(tmp_path: Path) -> None:
    """The network is forbidden after the check: the tasks never start on the host's network instead."""

    def drive() -> tuple[str, list[str]]:
        with Driver(tmp_path, network="private") as agent:
            agent.link.send(Hold(1, 1, "reuse_port"))
            reason = agent.wait_for(HoldFailed).reason
            agent.start("worker:0", ["touch", str(tmp_path / "started")])
            agent.end()
            return reason, [type(message).__name__ for message in agent.messages]

    reason, kinds = with_filter(drive)
    assert reason.startswith("a private network cannot be made: unshare(") and "CLONE_NEWNET" in reason
    assert kinds == ["Hello", "HoldFailed", "Empty"]
    assert not (tmp_path / "started").exists()
