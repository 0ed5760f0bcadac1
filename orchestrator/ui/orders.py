"""The orders of the page: each does what the verb of its name does, through the control socket of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.client.api import Run
from orchestrator.core.errors import NoSuchRun, UsageError
from orchestrator.core.state.result import left_text, signal_name
from orchestrator.core.text.counted import counted
from orchestrator.core.text.signal_names import parse_signal
from orchestrator.store.runs.reader import RunView


class _Order(BaseModel):
    """The arguments of an order."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def give(self, run: Run) -> str:
        """Give the order, and return what was done."""
        raise NotImplementedError


class _Stop(_Order):
    force: bool = False

    def give(self, run: Run) -> str:
        ended = run.down(self.force)
        said = left_text(ended.left) if ended.left else f"stopped; {ended.rest}"
        return f"{run.id}: {said}"


class _Restart(_Order):
    def give(self, run: Run) -> str:
        run.restart()
        return f"{run.id}: restarting all tasks"


class _Stacks(_Order):
    def give(self, run: Run) -> str:
        return f"{run.id}: {counted(len(run.stacks()), 'task')} answered"


class _Kill(_Order):
    task: Annotated[str, Field(max_length=100)]
    signal: Annotated[str, Field(max_length=20)] = "KILL"

    def give(self, run: Run) -> str:
        try:
            number = parse_signal(self.signal)
        except ValueError as error:
            raise UsageError(f"signal: {error}") from error
        pid = run.kill(self.task, number)
        return f"{run.id}: sent {signal_name(number)} to {self.task} (pid {pid} and its process group)"


_ORDERS: Mapping[str, type[_Order]] = {"stop": _Stop, "restart": _Restart, "stacks": _Stacks, "kill": _Kill}


def execute_order(view: RunView, verb: str, body: bytes) -> str:
    """Execute an order on a live run. Return a sentence that says what was done. Takes as long as the verb.

    UsageError, NoSuchRun, EngineError.
    """
    arguments = _ORDERS.get(verb)
    if arguments is None:
        raise UsageError(f"{verb[:20]!r} is not an order; the orders are {', '.join(_ORDERS)}")
    try:
        order = arguments.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise UsageError(f"{verb}: {'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]) from error
    if not view.is_live:
        raise NoSuchRun(f"{view.record.id} has ended")
    return order.give(Run(view))
