"""Assertions about runs for tests. Their messages include the cause, the first failure, the last lines and the paths.

from orchestrator.testing import (
    assert_chief_checkpoint, assert_failed_first, assert_joined_cluster, assert_succeeded
)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.checkpoints import CheckpointInfo
    from orchestrator.client.api import Run
    from orchestrator.core.state.result import FirstFailure, RunResult

_CHIEFS = ("chief:0", "worker:0")
# The clock of a file system advances in ticks: a file may look older than it is by this many seconds.
_CLOCK_TICK_S = 0.1


def assert_succeeded(run: Run) -> RunResult:
    """Wait for the run's end and return its result. Raises AssertionError with the cause unless it succeeded."""
    __tracebackhide__ = True
    result = run.wait(check=False)
    if not result.succeeded:
        from orchestrator.client.view.report import cause_text

        # The cause comes first: pytest's summary cuts the line.
        said = f"{run.id} did not succeed: {_outcome(result)}"
        cause = cause_text(result)
        raise AssertionError(_message(f"{cause}\n{said}" if cause else said, run))
    return result


def assert_failed_first(
    run: Run,
    task: str,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    exception: str | None = None,
) -> FirstFailure:
    """Wait for the run's end and assert that `task` ("worker:1") failed first. Return its failure.

    After restarts, the first attempt with a failure counts. `exit_code`, `signal` and `exception` (a part of it) are
    compared if given. Raises AssertionError with what happened instead, UsageError if `task` is not a task's name.
    """
    __tracebackhide__ = True
    from orchestrator.core.errors import UsageError
    from orchestrator.core.job.tf_config import TaskRef

    try:
        wanted = str(TaskRef.parse(task))
    except ValueError as error:
        raise UsageError(f"{error}") from error
    result = run.wait(check=False)
    failures = [end.first_failure for end in result.earlier_attempts] + [result.first_failure]
    first = next((failure for failure in failures if failure is not None), None)
    if first is None:
        raise AssertionError(_message(f"no task of {run.id} failed: it {_outcome(result)}", run))
    if first.task != wanted:
        said = f"{first.task} was the first to fail, not {wanted}: {_failure_text(first)}"
        raise AssertionError(_message(said, run))
    for what, expected, found in (
        ("exit code", exit_code, first.exit_code),
        ("signal", signal, first.signal),
    ):
        if expected is not None and expected != found:
            said = f"{wanted} failed first, but with {what} {found} instead of {expected}"
            raise AssertionError(_message(said, run))
    if exception is not None and exception not in (first.exception or ""):
        found_exception = first.exception or "no exception"
        said = f"{wanted} failed first, but with {found_exception!r}, not {exception!r}"
        raise AssertionError(_message(said, run))
    return first


def assert_joined_cluster(run: Run) -> RunResult:
    """Wait for the run's end and assert that a task joined a cluster of several tasks. Return the run's result.

    A script without a strategy for several workers trains a separate model in each task, and succeeds.
    """
    __tracebackhide__ = True
    result = run.wait(check=False)
    if not any(task.joined for task in result.tasks):
        said = result.not_distributed or f"no task of {run.id} joined a cluster of several tasks"
        raise AssertionError(_message(said, run))
    return result


def assert_chief_checkpoint(
    run: Run,
    *,
    number: int | None = None,
    at_least: int = 1,
    verify: bool = False,
    timeout_s: float = 300.0,
) -> list[CheckpointInfo]:
    """Assert that the chief wrote `at_least` complete checkpoints in this run, and return them. Does not wait.

    `number`: only the checkpoint with this number (`x-N`). `verify`: the interpreter of the chief also reads the newest
    of them completely, within `timeout_s` seconds. Raises AssertionError with the checkpoints that exist and what is
    wrong with them.
    """
    __tracebackhide__ = True
    from orchestrator.checkpoints import list_checkpoints
    from orchestrator.checkpoints import verify as verify_checkpoint
    from orchestrator.core.errors import OrchError, UsageError

    chief = _chief(run)
    try:
        existing = list_checkpoints(run.checkpoint_dir)
    except UsageError as error:
        raise AssertionError(_message(f"{chief} wrote no checkpoint: {error}", run)) from None
    began = run.view.record.started_at - _CLOCK_TICK_S
    found = [one for one in existing if one.whole and one.modified >= began]
    if number is not None:
        found = [one for one in found if one.number == number]
    if len(found) < at_least:
        wanted = "no whole checkpoint" if at_least == 1 else f"{len(found)} of {at_least} whole checkpoints"
        named = "" if number is None else f" of number {number}"
        said = f"{chief} wrote {wanted}{named} into {run.checkpoint_dir}"
        raise AssertionError(_message("\n".join([said, *_described(existing, began)]), run))
    if verify:
        newest = max(found, key=lambda one: (one.modified, -1 if one.number is None else one.number))
        try:
            checked = verify_checkpoint(newest, _python(run), timeout_s)
        except OrchError as error:
            raise AssertionError(_message(f"{newest.prefix} could not be verified: {error}", run)) from None
        if checked.problems:
            problems = [f"  {problem}" for problem in checked.problems]
            said = f"{newest.prefix}, which {chief} wrote, is damaged:"
            raise AssertionError(_message("\n".join([said, *problems]), run))
    return found


def _outcome(result: RunResult) -> str:
    """`failed`, `timed out`"""
    return result.outcome.replace("_", " ")


def _failure_text(first: FirstFailure) -> str:
    from orchestrator.core.state.result import exit_text

    exception = f", {first.exception}" if first.exception else ""
    return f"{exit_text(first.exit_code, first.signal)}{exception}"


def _chief(run: Run) -> str:
    tasks = {task.task for task in run.status().tasks}
    return next((f"the chief ({name})" for name in _CHIEFS if name in tasks), "the chief")


def _python(run: Run) -> Sequence[str] | None:
    """The interpreter of the run's chief, with its options; None if the chief is not a Python program."""
    command = chiefs_command(run.view.record.spec)
    words = command.get("interpreter")
    return [str(word) for word in words] if isinstance(words, list | tuple) and words else None


def chiefs_command(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The command of the chief in a recorded JobSpec: the one of its role, else the one of all tasks."""
    from orchestrator.core.job.roles import leader_role

    settings = (spec.get("role_settings") or {}).get(leader_role(spec.get("roles") or {})) or {}
    return settings.get("command") or spec.get("command") or {}


def _described(checkpoints: list[CheckpointInfo], began: float) -> list[str]:
    if not checkpoints:
        return ["  there is none at all"]
    lines = []
    for one in checkpoints:
        state = "older than this run" if one.modified < began else "whole"
        lines.append(f"  {one.prefix}: {'; '.join(one.problems) or state}")
    return lines


def _message(said: str, run: Run) -> str:
    from orchestrator.core.text.clean import safe_lines
    from orchestrator.pytest_plugin.run_report import brief_report_of

    return safe_lines(f"{said}\n\n{brief_report_of(run)}")
