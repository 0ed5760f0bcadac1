"""At most one progress event a second a task; what came in between is merged, the last word is never lost."""

from __future__ import annotations

from orchestrator.events import Progress

INTERVAL_S = 1.0


class ProgressThrottle:
    """Holds back progress until it is due. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._waiting: dict[str, Progress] = {}
        self._known: dict[str, Progress] = {}
        self._last: dict[str, float] = {}

    def put(self, task: str, progress: Progress) -> None:
        """Take in what a task says; what it does not mention stays as it last said."""
        known = self._known.get(task, Progress())
        said = {name: getattr(progress, name) for name in progress.model_fields_set}
        self._known[task] = self._waiting[task] = known.model_copy(update=said)

    def due(self) -> float | None:
        """When take() next has something to give."""
        return min((self._last.get(task, 0.0) + INTERVAL_S for task in self._waiting), default=None)

    def take(self, now: float) -> list[tuple[str, Progress]]:
        """What may be told now."""
        ready = [task for task in self._waiting if now >= self._last.get(task, 0.0) + INTERVAL_S]
        return [(task, self._told(task, now)) for task in ready]

    def take_last(self, task: str, now: float) -> Progress | None:
        """What the task said last, if it has not been told: it is about to end."""
        return self._told(task, now) if task in self._waiting else None

    def _told(self, task: str, now: float) -> Progress:
        self._last[task] = now
        return self._waiting.pop(task)
