"""The table of tasks: as a dict in plan order, whose changes are cheap and can be asked for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.state.events import PlannedTask
from orchestrator.core.state.state import RunState, TaskPhase, TaskState
from orchestrator.core.state.tasks import Matching, Tasks

COUNTS = st.integers(0, 200)
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(TaskPhase)), max_size=30)


def made(count: int) -> list[TaskState]:
    plan = PlannedTask(
        task="worker:0", role="worker", index=0, address=None, argv=(), cwd="", env={}, log="", serves=True
    )
    return [TaskState(plan=replace(plan, task=f"worker:{index}", index=index)) for index in range(count)]


@given(COUNTS, CHANGES)
def test_table_is_a_mapping_in_plan_order(count: int, changes: list[tuple[int, TaskPhase]]) -> None:
    model = {task.name: task for task in made(count)}
    table = Tasks(model.values())
    for number, phase in changes if count else []:
        before, old = table, dict(model)
        task = replace(model[f"worker:{number % count}"], phase=phase, pid=number)
        table, model[task.name] = table.with_task(task), task
        assert list(before.values()) == list(old.values())
        assert [*table.changed_since(before)] == [task]
        assert table[task.name] is task and table.get("worker:x") is None
    assert list(table.items()) == list(model.items()) and dict(table) == model
    assert (len(table), list(table), table == Tasks(model.values())) == (count, list(model), True)
    for phase in TaskPhase:
        assert table.count((phase,)) == sum(task.phase is phase for task in model.values())
    assert table.count(tuple(TaskPhase), without="worker") == 0


@given(COUNTS.filter(bool), CHANGES, st.integers(1, 5))
def test_matching_tasks_follow_the_changes(
    count: int, changes: list[tuple[int, TaskPhase]], every: int
) -> None:
    """Also if it is not asked after each change, and after another attempt began."""
    live = Matching(lambda task, state: task.is_live)
    for attempt in (1, 2):
        state = RunState(attempt=attempt, tasks=Tasks(made(count // attempt + 1)))
        for at, (number, phase) in enumerate(changes):
            task = replace(state.tasks[f"worker:{number % len(state.tasks)}"], phase=phase, pid=1)
            state = replace(state, tasks=state.tasks.with_task(task))
            if at % every == 0:
                live.update(state)
        live.update(state)
        assert live.names == {task.name for task in state.tasks.values() if task.is_live}


def test_task_that_a_damaged_file_names_twice_is_one_task() -> None:
    assert list(Tasks(made(2) + made(2))) == ["worker:0", "worker:1"]
