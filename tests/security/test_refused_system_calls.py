"""Where a container's filter refuses a system call that orch needs: refused before the start, and named."""

from __future__ import annotations

import sys
from pathlib import Path

import filtered
import pytest
from orch_command import Orch

pytestmark = pytest.mark.skipif(
    not filtered.is_possible(), reason="the filter is written for other processors"
)


def without(system_call: str, error: str) -> tuple[str, ...]:
    """The words before a command that runs with the filter."""
    return sys.executable, str(Path(filtered.__file__)), system_call, error


@pytest.mark.parametrize(
    ("system_call", "error", "text"),
    [
        ("pidfd_open", "EPERM", "the system call pidfd_open is refused here (Operation not permitted)"),
        ("pidfd_open", "ENOSYS", "the system call pidfd_open is refused here (Function not implemented)"),
        ("pidfd_send_signal", "EPERM", "the system call pidfd_send_signal is refused here"),
        ("waitid", "EINVAL", "the system call waitid(P_PIDFD) is refused here (Invalid argument)"),
    ],
)
def test_up_names_it_and_starts_nothing(orch: Orch, system_call: str, error: str, text: str) -> None:
    # This filter refuses every waitid. The agent, which `up` starts early, would fail at one of another kind.
    verb = "config" if system_call == "waitid" else "up"
    done = orch.start(verb, "--", "true", before=without(system_call, error)).finish()
    assert done.code == 2
    assert done.err.startswith(f"orch: {text}") and "seccomp=PROFILE" in done.err
    assert done.err.count("\n") == 1
    assert orch.run_dirs() == []


def test_doctor_names_it(orch: Orch) -> None:
    done = orch.start("doctor", "--json", before=without("pidfd_open", "EPERM")).finish()
    assert done.code == 1
    (found,) = (each for each in done.document["findings"] if each["topic"] == "system calls")
    assert found["level"] == "problem"
    assert "pidfd_open is refused here" in found["text"]
