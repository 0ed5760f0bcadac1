"""`orch up` refuses a job that cannot work before it starts anything."""

from __future__ import annotations

import os
import re
from pathlib import Path

from spec_making import make_spec, refusal

from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import JobSpec
from orchestrator.host.checks import CHECKS_OF_CONFIG, refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.directories import check_output_directories
from orchestrator.host.checks.resources import check_task_limits
from orchestrator.host.headroom import Headroom, Limit


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    spec = make_spec(roles={"worker": 2}, log_dir=tmp_path / "a" / "b", checkpoint_dir=tmp_path)
    refuse_problems(Context(spec, os.environ))
    assert list(tmp_path.iterdir()) == []


def room_for(spec: JobSpec, **rooms: int) -> str:
    found = {Limit[name]: Headroom(tasks, name.lower()) for name, tasks in rooms.items()}
    context = Context(spec, {}, limits=lambda serves, proc, cgroups: found)
    return refusal(refuse_problems, context, [check_task_limits])


def test_tightest_limit_is_reported() -> None:
    """Tasks on other hosts need no room here."""
    tightest = room_for(make_spec(roles={"worker": 9}), MEMORY=8, FILES=3, THREADS=5)
    assert tightest.startswith("files: enough for 3 tasks, not 9 workers")
    hosts = (Host(name="a", destination="a"),)
    elsewhere = make_spec(roles={"worker": 2000}, engine=EngineName.SSH, hosts=hosts)
    assert not room_for(elsewhere, MEMORY=1, FILES=1)


# -- directories


def test_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for option in ("--log-dir", "--checkpoint-dir"):
        for directory in (tmp_path / "file", tmp_path / "file" / "below"):
            spec = make_spec(**{option[2:].replace("-", "_"): directory})
            said = refusal(refuse_problems, Context(spec, {}), CHECKS_OF_CONFIG)
            assert said.startswith(f"{option}: {tmp_path}/file is not a directory; name a"), directory


def test_unwritable_file_system_is_refused() -> None:
    for directory in ("/proc/here", "/sys/kernel/here/below"):
        expected = rf"--log-dir: {directory} cannot be written \(.+\); name a directory that can"
        context = Context(make_spec(log_dir=Path(directory)), {})
        assert re.match(expected, refusal(refuse_problems, context, [check_output_directories]))
