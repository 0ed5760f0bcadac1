"""The tasks' stacks for `orch stacks` and the final report; tasks with the same stack share a paragraph (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.client.view.layout import BOLD, DIM, Cell, fit, last_cells, task_colour, wrapped
from orchestrator.core.diagnosis.hangs import describe_place
from orchestrator.core.diagnosis.stack_text import is_user_frame
from orchestrator.core.state.result import TaskStack
from orchestrator.core.text.clean import safe

_INDENT = "    "
# Number of tasks of a paragraph that are named.
_NAMED = 3


def stack_lines(stacks: Mapping[str, TaskStack], width: int | None, *, colour: bool = False) -> list[str]:
    """A paragraph for each different stack: its tasks, where they are, and the frames, innermost first.

    On a terminal of `width` cells (None: unlimited) frames lose their beginning and other lines are wrapped.
    """
    return list(_lines(stacks, width, colour))


def _lines(stacks: Mapping[str, TaskStack], width: int | None, colour: bool) -> Iterator[str]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for task, stack in stacks.items():
        groups.setdefault((describe_place(stack), stack.frames, stack.note, stack.how), []).append(task)
    for tasks in groups.values():
        first = stacks[tasks[0]]
        where = Cell(describe_place(first) or "not known", (BOLD,))
        yield from wrapped(Cell(""), [*_names(tasks), Cell(": "), where], width, colour=colour)
        for frame in first.frames:
            # The end of a frame, its line and function, matters most.
            shown = frame if width is None else last_cells(safe(frame), width - len(_INDENT))
            sgr = () if is_user_frame(frame) else (DIM,)
            yield fit([Cell(_INDENT), Cell(shown, sgr)], width, colour=colour)
        if first.note:
            yield from wrapped(Cell(_INDENT), [Cell(f"({first.note})", (DIM,))], width, colour=colour)
        files = list(dict.fromkeys(stacks[task].file for task in tasks if stacks[task].file is not None))
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            label = Cell(f"{_INDENT}all threads: ", (DIM,))
            yield from wrapped(label, [Cell(f"{files[0]}{more}", (DIM,))], width, colour=colour)


def _names(tasks: list[str]) -> Iterator[Cell]:
    """`worker:0, worker:2 and worker:3`, `worker:0, worker:2, worker:3 and 5 others`"""
    named = tasks if len(tasks) <= _NAMED + 1 else tasks[:_NAMED]
    for at, task in enumerate(named):
        if at:
            is_last = at == len(named) - 1 and len(named) == len(tasks)
            yield Cell(" and " if is_last else ", ")
        yield Cell(task, (BOLD, task_colour(task)))
    if len(named) < len(tasks):
        yield Cell(f" and {len(tasks) - len(named)} others")
