"""A small job for tests that need a JobSpec but start nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.job.choices import FailurePolicy
from orchestrator.core.job.spec import Command, CommandKind, JobSpec, RoleSettings

JOB = JobSpec(
    roles={"worker": 2},
    name="run",
    command=Command(kind=CommandKind.EXECUTABLE, words=("true",), argv=("true",), serves=True),
    directory=Path("/"),
    cwd=Path("/"),
    grace_s=10.0,
    failure_grace_s=0.5,
    start_timeout_s=None,
    silence_notice_s=None,
    evaluator_timeout_s=None,
)


def changed(spec: JobSpec, **fields: Any) -> JobSpec:
    return spec.model_copy(update=fields)


def policies(by_role: Mapping[str, FailurePolicy]) -> dict[str, RoleSettings]:
    """The `role_settings` of a job whose roles have these failure policies."""
    return {role: RoleSettings(on_failure=policy) for role, policy in by_role.items()}
