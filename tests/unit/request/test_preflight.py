"""`orch up` refuses a job that cannot work before it starts anything."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from spec_making import MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.host.checks import CHECKS_OF_CONFIG, Check, refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.directories import check_output_directories
from orchestrator.host.checks.machine import check_platform
from orchestrator.host.checks.resources import check_task_limits
from orchestrator.host.headroom import Headroom, Limit


def refusal(context: Context, check: Check) -> str | None:
    try:
        refuse_problems(context, [check])
    except UsageError as error:
        return str(error)
    return None


def test_nothing_is_left_behind(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(roles={"worker": 2}, log_dir=tmp_path / "a" / "b", checkpoint_dir=tmp_path)
    refuse_problems(Context(spec, os.environ))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("system", "kernel", "python", "message"),
    [
        ("darwin", "23.1", (3, 12, 0), "orch runs on Linux only (it needs pidfds), and this is darwin; "),
        (
            "linux",
            "5.3.0-generic",
            (3, 12, 0),
            "orch needs Linux 5.4 or newer, and this kernel is 5.3.0-generic; ",
        ),
        ("linux", "4.18.0", (3, 12, 0), "orch needs Linux 5.4 or newer"),
        (
            "linux",
            "6.1.0",
            (3, 10, 9),
            "orch needs Python 3.11 to 3.13, and this is 3.10; install it under one",
        ),
        ("linux", "6.1.0", (3, 14, 0), "orch needs Python 3.11 to 3.13, and this is 3.14"),
        ("linux", "5.4.0", (3, 11, 0), None),
        ("linux", "6.18.44-fc", (3, 13, 1), None),
        ("linux", "without a number", (3, 12, 0), None),
    ],
)
def test_unsupported_platform_is_refused(
    make_spec: MakeSpec, system: str, kernel: str, python: tuple[int, int, int], message: str | None
) -> None:
    context = Context(make_spec(), {}, system=system, kernel=kernel, orch_python=python)
    found = refusal(context, check_platform)
    assert found is None if message is None else found is not None and found.startswith(message)


def with_room(spec: Any, **rooms: int) -> Context:
    found = {Limit[name]: Headroom(tasks, name.lower()) for name, tasks in rooms.items()}
    return Context(spec, {}, limits=lambda serves, proc, cgroups: found)


@pytest.mark.parametrize(
    ("roles", "room", "message"),
    [
        (
            {"worker": 40, "ps": 1},
            40,
            "memory: enough for 40 tasks, not 41 tasks (40 workers, 1 ps); start at most 40 tasks, or give",
        ),
        ({"worker": 5}, 4, "memory: enough for 4 tasks, not 5 workers; use --workers 4, or give the machine"),
        ({"worker": 3, "ps": 2}, 5, None),
        (
            {"worker": 3, "ps": 2},
            4,
            "memory: enough for 4 tasks, not 5 tasks (3 workers, 2 ps); start at most 4",
        ),
        # The figures are estimates, so one task is always allowed.
        ({"worker": 1}, 0, None),
        ({"worker": 2}, 0, "memory: enough for 0 tasks, not 2 workers; use --workers 1, or"),
    ],
)
def test_more_tasks_than_fit_are_refused(
    make_spec: MakeSpec, roles: dict[str, int], room: int, message: str | None
) -> None:
    found = refusal(with_room(make_spec(roles=roles), MEMORY=room), check_task_limits)
    assert found is None if message is None else found is not None and found.startswith(message)


def test_tightest_limit_is_reported(make_spec: MakeSpec) -> None:
    context = with_room(make_spec(roles={"worker": 9}), MEMORY=8, FILES=3, THREADS=5)
    assert (refusal(context, check_task_limits) or "").startswith("files: enough for 3 tasks, not 9 workers")


def test_tasks_on_other_hosts_need_no_room_here(make_spec: MakeSpec) -> None:
    hosts = (Host(name="a", destination="a"),)
    spec = make_spec(roles={"worker": 2000}, engine=EngineName.SSH, hosts=hosts)
    assert refusal(with_room(spec, MEMORY=1, FILES=1), check_task_limits) is None


@pytest.mark.parametrize("option", ["--log-dir", "--checkpoint-dir"])
def test_file_in_place_of_a_directory_is_refused(make_spec: MakeSpec, tmp_path: Path, option: str) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        spec = make_spec(**{option[2:].replace("-", "_"): directory})
        with pytest.raises(
            UsageError,
            match=rf"^{option}: {tmp_path}/file is not a directory; name a",
        ):
            refuse_problems(Context(spec, {}), CHECKS_OF_CONFIG)


@pytest.mark.parametrize("directory", ["/proc/here", "/sys/kernel/here/below"])
def test_unwritable_file_system_is_refused(make_spec: MakeSpec, directory: str) -> None:
    found = refusal(Context(make_spec(log_dir=Path(directory)), {}), check_output_directories)
    assert re.match(
        rf"--log-dir: {directory} cannot be written \(.+\); name a directory that can", found or ""
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_directory_without_permission_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    context = Context(make_spec(log_dir=tmp_path / "closed" / "below"), {})
    assert "cannot be written (Permission denied)" in (refusal(context, check_output_directories) or "")
