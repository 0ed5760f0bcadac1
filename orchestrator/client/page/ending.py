"""How a run ended, and the stacks that were taken of its tasks, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.client.page.clock import RunClock
from orchestrator.client.view.messages import sizes_text
from orchestrator.client.view.report import advice_of, cause_text, end_lines, headline
from orchestrator.core.state.events import StacksTaken
from orchestrator.core.state.result import FirstFailure, RunResult
from orchestrator.store.files import directory_if_used, read_bytes
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.task_files import read_stacks

_EXCEPTION_BYTES = 256 << 10
# The last requests for stacks that are shown, and the characters of a task and of all.
MOST_STACKS = 16
_STACK_CHARACTERS = 64 << 10
_ALL_CHARACTERS = 2 << 20


def end_document(result: RunResult, paths: RunPaths) -> dict[str, Any]:
    first, cause = result.first_failure, result.cause
    said = result.model_dump(mode="json", exclude={"stacks"})
    kept = (
        "outcome",
        "exit_code",
        "first_failure",
        "history",
        "faults",
        "tasks",
        "training",
        "not_distributed",
    )
    return {
        **{name: said[name] for name in kept},
        "bad_loss": None if result.bad_loss is None else str(result.bad_loss),
        "headline": headline(result),
        "workers": sizes_text(result),
        "cause": None
        if cause is None
        else {"task": cause.task, "kind": cause.kind, "text": cause.text, "line": cause_text(result)},
        "advice": advice_of(result),
        "lines": end_lines(result, None, colour=False, checkpoints=directory_if_used(result.checkpoint_dir)),
        "exception": None if first is None else _exception(first, paths),
    }


def _exception(first: FirstFailure, paths: RunPaths) -> str | None:
    """Read the file of the run itself: the recorded path may lead anywhere by now."""
    if first.exception_file is None:
        return None
    text = read_bytes(paths.task_traceback(first.task), _EXCEPTION_BYTES)
    return None if text is None else text.decode("utf-8", "replace")


def stack_documents(taken: Sequence[StacksTaken], clock: RunClock, paths: RunPaths) -> list[dict[str, Any]]:
    """Return the stacks in the order in which they were taken. The last ones find room first."""
    room = _ALL_CHARACTERS
    documents = []
    for event in reversed(taken[-MOST_STACKS:]):
        tasks = {}
        for task, stack in event.stacks.items():
            text = read_stacks(stack, paths.task_stacks(task)) or "\n".join(stack.frames)
            text = text[: min(_STACK_CHARACTERS, room)]
            room -= len(text)
            tasks[task] = {"how": stack.how, "state": stack.state, "note": stack.note, "text": text}
        why = "on request" if event.why == event.BY_USER else event.why.replace("_", " ")
        documents.append({"time": clock.of_event(event), "why": why, "tasks": tasks})
    return documents[::-1]
