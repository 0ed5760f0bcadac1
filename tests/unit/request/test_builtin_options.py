"""The built-in program's options are refused before any worker starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from spec_making import MakeSpec

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings
from orchestrator.host.checks import refuse_problems
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.settings import check_builtin_options


def _builtin(*words: str) -> Command:
    argv = (sys.executable, "-P", "-m", "worker", *words)
    return Command(kind=CommandKind.BUILTIN, words=words, argv=argv, serves=True)


def refuse(spec: JobSpec) -> None:
    refuse_problems(Context(spec, os.environ), [check_builtin_options])


def test_valid_options_pass(make_spec: MakeSpec, tmp_path: Path) -> None:
    refuse(make_spec(command=_builtin("--epochs", "3"), cwd=tmp_path))


def test_invalid_option_is_refused_with_the_programs_message(make_spec: MakeSpec, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the built-in program: .*--epochs.*nonsense.*orch up -- --help"):
        refuse(make_spec(command=_builtin("--epochs", "nonsense"), cwd=tmp_path))


def test_unknown_option_is_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-such-option"):
        refuse(make_spec(command=_builtin("--no-such-option"), cwd=tmp_path))


def test_options_of_the_evaluator_are_checked(make_spec: MakeSpec, tmp_path: Path) -> None:
    by_backup = {"command": _builtin("--checkpoint", "backup"), "cwd": tmp_path}
    refuse(make_spec(**by_backup))
    with pytest.raises(UsageError, match=r"the evaluator follows the checkpoints .* leave the evaluator out"):
        refuse(make_spec(**by_backup, roles={"worker": 2, "evaluator": 1}))
    own = Command(kind=CommandKind.EXECUTABLE, words=("true",), argv=("/bin/true",), serves=False)
    settings = {"evaluator": RoleSettings(command=own)}
    refuse(make_spec(**by_backup, roles={"worker": 2, "evaluator": 1}, role_settings=settings))


def test_checkpoint_of_another_method_is_refused(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backup" / "worker-0").mkdir(parents=True)
    (tmp_path / "backup" / "worker-0" / "latest.weights.h5").touch()
    spec = {"command": _builtin(), "cwd": tmp_path}
    with pytest.raises(UsageError, match="is of a training with --checkpoint backup"):
        refuse(make_spec(**spec, checkpoint_dir=tmp_path))
    # The variable describes the outer run. This run has a new checkpoint directory.
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path))
    refuse(make_spec(**spec))


def test_check_uses_the_number_of_workers(make_spec: MakeSpec, tmp_path: Path) -> None:
    small = {"command": _builtin("--global-batch", "2"), "cwd": tmp_path}
    refuse(make_spec(**small, roles={"worker": 2}))
    with pytest.raises(UsageError, match="no example for some of 3 replicas"):
        refuse(make_spec(**small, roles={"chief": 1, "worker": 2}))


def test_program_follows_the_global_batch_of_the_run(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = {"command": _builtin("--global-batch", "48"), "cwd": tmp_path}
    refuse(make_spec(**given, global_batch=48))
    refuse(make_spec(command=_builtin("--epochs", "3"), cwd=tmp_path, global_batch=96))
    with pytest.raises(UsageError, match="--global-batch 48: this run has --global-batch 96"):
        refuse(make_spec(**given, global_batch=96))
