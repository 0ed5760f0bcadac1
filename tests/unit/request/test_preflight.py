"""`orch up` refuses a job that cannot work before it starts anything."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spec_making import Load, make_spec, refusal

from orchestrator.client.submit import submit
from orchestrator.core.job.choices import EngineName
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.host.checks import CHECKS_OF_CONFIG, refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.directories import check_output_directories
from orchestrator.host.checks.resources import check_task_limits
from orchestrator.host.checks.settings import check_builtin_options
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


def output_to(directory: Path | str) -> str:
    context = Context(make_spec(log_dir=Path(directory)), {})
    return refusal(refuse_problems, context, [check_output_directories])


def test_unwritable_file_system_is_refused() -> None:
    for directory in ("/proc/here", "/sys/kernel/here/below"):
        expected = rf"--log-dir: {directory} cannot be written \(.+\); name a directory that can"
        assert re.match(expected, output_to(directory))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_directory_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "cannot be written (Permission denied)" in output_to(tmp_path / "closed" / "below")


# -- options of the built-in program


@pytest.fixture
def builtin(tmp_path: Path) -> Callable[..., str]:
    """The refusal of the built-in program with these words."""

    def refused(*words: str, **changes: Any) -> str:
        argv = (sys.executable, "-P", "-m", "worker", *words)
        program = Command(kind=CommandKind.BUILTIN, words=words, argv=argv, serves=True)
        spec = make_spec(command=program, cwd=tmp_path, **changes)
        return refusal(refuse_problems, Context(spec, os.environ), [check_builtin_options])

    return refused


def test_options_of_the_built_in_program_are_checked(builtin: Callable[..., str]) -> None:
    assert not builtin("--epochs", "3")
    wrong = r"the built-in program: .*--epochs.*nonsense.*orch up -- --help"
    assert re.match(wrong, builtin("--epochs", "nonsense"))
    assert "--no-such-option" in builtin("--no-such-option")
    # With the number of workers, and the global batch of the run.
    assert not builtin("--global-batch", "2", roles={"worker": 2})
    three = builtin("--global-batch", "2", roles={"chief": 1, "worker": 2})
    assert "no example for some of 3 replicas" in three
    assert not builtin("--global-batch", "48", global_batch=48)
    assert not builtin("--epochs", "3", global_batch=96)
    other = builtin("--global-batch", "48", global_batch=96)
    assert "--global-batch 48: this run has --global-batch 96" in other


def test_options_of_the_evaluator_are_checked(builtin: Callable[..., str]) -> None:
    by_backup, roles = ("--checkpoint", "backup"), {"worker": 2, "evaluator": 1}
    assert not builtin(*by_backup)
    said = builtin(*by_backup, roles=roles)
    assert re.search(r"the evaluator follows the checkpoints .* leave the evaluator out", said)
    own = Command(kind=CommandKind.EXECUTABLE, words=("true",), argv=("/bin/true",), serves=False)
    assert not builtin(*by_backup, roles=roles, role_settings={"evaluator": RoleSettings(command=own)})


def test_checkpoint_of_another_method_is_refused(
    builtin: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backup" / "worker-0").mkdir(parents=True)
    (tmp_path / "backup" / "worker-0" / "latest.weights.h5").touch()
    assert "is of a training with --checkpoint backup" in builtin(checkpoint_dir=tmp_path)
    # The variable describes the outer run. This run has a new checkpoint directory.
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))
    assert not builtin()


# -- job arrays of Slurm


def test_element_of_a_job_array_is_a_run_of_its_own(load_here: Load, tmp_path: Path) -> None:
    element = {"SLURM_ARRAY_TASK_ID": "3"}
    request = load_here(environ=element, name="sweep", checkpoint_dir="ckpt")
    assert (request.spec.name, request.spec.checkpoint_dir) == ("sweep-3", tmp_path / "ckpt" / "3")
    assert f"element 3 of a job array: run sweep-3, checkpoints in {tmp_path}/ckpt/3" in request.notices
    assert load_here(environ=element).spec.checkpoint_dir is None
    # The user has separated them already.
    own = load_here(environ=element, name="sweep-3", checkpoint_dir="ckpt/3").spec
    assert (own.name, own.checkpoint_dir) == ("sweep-3", tmp_path / "ckpt" / "3")
    assert load_here(environ=element, name="n" * 63).spec.name == "n" * 61 + "-3"
    for other in ({"SLURM_ARRAY_TASK_ID": "x"}, {**element, "ORCH_RUN_ID": "outer"}):
        assert load_here(environ=other, name="sweep").spec.name == "sweep"


def test_job_array_is_not_one_detached_run(load_here: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for words in ("--array=1-3", "--exclusive -a 1-3"):
        request = load_here(engine="slurm", nodes=1, slurm=words)
        assert "each element of a job array is a run of its own" in refusal(submit, request, may_requeue=True)
