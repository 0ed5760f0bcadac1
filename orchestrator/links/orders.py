"""Orders to the supervisor of a live run, as JSON lines: {"op": "kill", "task": "worker:1", "signal": 9}.

Its client sends them over its own connection (client_link.py), other processes over the control socket (control.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.state.events import NoticeSource, StopReason
from orchestrator.core.text.durations import MAX_DURATION_S

_LONGEST_ERROR = 300


class Order(BaseModel):
    # Strict: `true` is not accepted as a signal number, nor "no" as false.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class StopOrder(Order):
    """Stop the run. `force`: kill it at once."""

    op: Literal["stop"] = "stop"
    reason: StopReason = StopReason.DOWN
    force: bool = False


class KillOrder(Order):
    """Send `signal` to the process group of a task."""

    op: Literal["kill"] = "kill"
    task: str
    signal: Annotated[int, Field(ge=1, le=64)]


class RestartOrder(Order):
    """Restart all tasks, as another attempt."""

    op: Literal["restart"] = "restart"


class NoticeOrder(Order):
    """The machines of the run will go in `left_s` seconds: let its tasks save their state and end."""

    op: Literal["notice"] = "notice"
    source: NoticeSource = NoticeSource.USER
    left_s: Annotated[float, Field(ge=0, le=MAX_DURATION_S)] | None = None


class StacksOrder(Order):
    """Return the stacks of these tasks (none named: of all)."""

    op: Literal["stacks"] = "stacks"
    tasks: tuple[str, ...] = ()
    native: bool = False


class DetachOrder(Order):
    """Let the run continue when its client leaves. Only the run's client sends this order."""

    op: Literal["detach"] = "detach"


ControlOrder = StopOrder | KillOrder | RestartOrder | NoticeOrder | StacksOrder
_CONTROL: TypeAdapter[ControlOrder] = TypeAdapter(
    Annotated[ControlOrder, Field(discriminator="op")], config=ConfigDict(defer_build=True)
)


class InvalidOrder(Exception):
    """The received text is not an order; the message says why."""


def control_order(text: bytes) -> ControlOrder:
    """Return the order in a text. InvalidOrder."""
    try:
        return _CONTROL.validate_json(text)
    except ValidationError as error:
        raise InvalidOrder(_first_error(error)) from error


def _first_error(error: ValidationError) -> str:
    """The first error in one line: `invalid order: kill.signal: Input should be a valid integer`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"])),) if part)
    return f"invalid order: {where}{first['msg']}"[:_LONGEST_ERROR]
