"""What the bootstrap is to do in this task, as the agent says in ORCH_BOOTSTRAP."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Options:
    """One task's options; what is missing is off.

    `task` such as worker:0. `exception_file` and `stacks_file`: absolute paths, in directories of the run. `fixes`:
    repair a Keras known to be broken. `tracer`: a process that may, with its descendants, look into this one
    by ptrace where the kernel wants that to be allowed. `hooks` False: the program has its own signals, progress
    and fixes, so only exceptions and stacks are written.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.task = _text(values, "task") or ""
        self.exception_file = _text(values, "exception_file")
        self.stacks_file = _text(values, "stacks_file")
        tracer = values.get("tracer")
        self.tracer = tracer if isinstance(tracer, int) else None
        self.fixes = values.get("fixes") is True
        self.hooks = values.get("hooks") is True


def _text(values: Mapping[str, object], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None
