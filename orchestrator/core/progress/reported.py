"""Progress that tasks report: parsed field by field, merged, and limited to one event a second for each task.

Progress that a planned fault waits for passes immediately, because a second later the step is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.core.job.fault import Fault
from orchestrator.core.state.events import Progress
from orchestrator.core.state.position import position
from orchestrator.core.state.result import BadLoss

# Bounds on reported progress, so that an event has a few KB at most: characters of a phase or metric name, and metrics.
LONGEST_WORD = 48
MOST_METRICS = 32
# Characters of an address: the longest name of a host, and a port.
LONGEST_ADDRESS = 260
_MOST_VERSIONS = 8
INTERVAL_S = 1.0
# In runs of many tasks the interval is longer, so that the events of an hour can still be read.
_MOST_A_SECOND = 100
# Fields of one phase, dropped when the phase changes.
_OF_ONE_PHASE = frozenset({"step", "steps", "steps_per_s", "examples_per_s"})
# Phases in which a task does not train yet.
_BEFORE_TRAINING = frozenset({"importing", "starting", "waiting"})
# A task that reports one of these reports its progress itself.
_OWN_FIELDS = frozenset({"epoch", "step"})


def parse_progress(text: str) -> Progress | None:
    """Return the valid fields of a JSON object; None if there are none. A loss may be the text "nan" or "inf"."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    fields: dict[str, Any] = {}
    for name in Progress.model_fields:
        if name not in ("metrics", "bad_loss") and name in said:
            progress = _read(name, said[name])
            if progress is not None:
                fields[name] = getattr(progress, name)
    if "loss" in fields:
        loss = fields["loss"]
        bad = BadLoss.of(loss, fields.get("epoch"), fields.get("step"))
        fields |= {"loss": None if bad is not None else loss, "bad_loss": bad}
    if isinstance(said.get("metrics"), dict):
        metrics = dict(_metrics(said["metrics"]))
        if metrics or not said["metrics"]:
            fields["metrics"] = metrics
    return Progress.model_validate(fields) if fields else None


def _encodable(text: str) -> str:
    """Refuse lone surrogates, which an event cannot contain. UnicodeEncodeError is a ValueError."""
    text.encode()
    return text


_Text = Annotated[str, AfterValidator(_encodable)]
_Word = Annotated[_Text, Field(max_length=LONGEST_WORD)]
_VERSIONS = TypeAdapter(Annotated[dict[_Word, _Word], Field(max_length=_MOST_VERSIONS)])


class SavedFile(BaseModel):
    """A checkpoint or a model that a task has saved in `seconds`."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
    name: Annotated[_Text, Field(min_length=1, max_length=LONGEST_ADDRESS)]
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


def parse_facts(text: str) -> tuple[dict[str, str] | None, SavedFile | None]:
    """Return the versions and the saved file that a task reports beside its progress; None for what is not valid."""
    if '"versions"' not in text and '"saved"' not in text:
        return None, None
    versions, saved = None, None
    try:
        said = json.loads(text)
        said = said if isinstance(said, dict) else {}
    except (ValueError, RecursionError):
        return None, None
    with suppress(ValueError):
        versions = _VERSIONS.validate_python(said.get("versions"))
    with suppress(ValueError):
        saved = SavedFile.model_validate(said.get("saved"))
    return versions, saved


def _metrics(said: Mapping[str, object]) -> Iterator[tuple[str, float | None]]:
    for name, value in islice(said.items(), MOST_METRICS):
        progress = _read("metrics", {name[:LONGEST_WORD]: value})
        if progress is not None:
            yield from progress.metrics.items()


def _read(name: str, value: object) -> Progress | None:
    """Return progress with this field only; None if its value is invalid."""
    if name in ("phase", "server") and isinstance(value, str):
        value = value[: LONGEST_WORD if name == "phase" else LONGEST_ADDRESS]
    try:
        progress = Progress.model_validate({name: value})
        # Python's strings can contain lone surrogates, which an event cannot.
        "".join((progress.phase or "", progress.server or "", *progress.metrics)).encode()
    except (ValidationError, UnicodeEncodeError):
        return None
    return progress


class ProgressThrottle:
    """Holds progress until it is due, or until one of `faults` may be due. All times are monotonic seconds.

    `has_changed`: there is progress that take_latest() has not returned. Each task's progress is due once a second, in
    runs of over 100 tasks less often, but at least every `longest_s`."""

    def __init__(self, faults: Sequence[Fault] = (), longest_s: float = inf) -> None:
        self._longest_s = longest_s
        self._steps = {fault.step for fault in faults if fault.step is not None}
        self._epochs = {fault.epoch for fault in faults if fault.epoch is not None}
        self._awaited: set[str] = set()
        self._waiting: dict[str, Progress] = {}
        self._known: dict[str, Progress] = {}
        self._reported: dict[str, Set[str]] = {}
        self._last: dict[str, float] = {}
        self.has_changed = False

    def take_latest(self) -> Mapping[str, Progress]:
        """Return the progress of all tasks, due or not."""
        self.has_changed = False
        return self._known

    def latest_of(self, task: str) -> Progress | None:
        """Return the progress of one task, due or not."""
        return self._known.get(task)

    def put(self, task: str, progress: Progress) -> None:
        """Add progress that a task reports. Fields that it leaves out keep their value within a phase."""
        fields = progress.model_fields_set
        reported = self._reported[task] = self._reported.get(task, frozenset()) | fields
        if reported & _OWN_FIELDS and "fit" in fields:
            # The script reports its own steps, which it may have counted before its first `fit`.
            progress = progress.model_copy(update={"fit": None})
        self._merge(task, progress, fields)

    def put_from_lines(self, task: str, progress: Progress) -> None:
        """Add progress that was read from a task's lines, without the fields that the task reports itself.

        Progress without a phase counts anything, such as files: it is ignored until the task can train."""
        known = self._known.get(task)
        if "phase" not in progress.model_fields_set and known is not None and known.phase in _BEFORE_TRAINING:
            return
        own = self._reported.get(task, frozenset())
        # Every task reports its phase until its first step.
        fields = progress.model_fields_set - (own if own & _OWN_FIELDS else own - {"phase"})
        if "step" in fields:
            # Lines do not show every step.
            progress, fields = progress.model_copy(update={"skips": True}), fields | {"skips"}
        if fields:
            self._merge(task, progress, fields)

    def forget(self, task: str) -> None:
        """Drop the progress of a task's last process, because it is restarted."""
        for known in (self._waiting, self._known, self._reported):
            known.pop(task, None)
        self.has_changed = True

    def due(self) -> float | None:
        """Return when take() will have progress; None without any."""
        return min((self._due(task) for task in self._waiting), default=None)

    def take(self, now: float) -> list[tuple[str, Progress]]:
        """Return the progress that is due."""
        ready = [task for task in self._waiting if now >= self._due(task)]
        return [(task, self._pop(task, now)) for task in ready]

    def take_last(self, task: str, now: float) -> Progress | None:
        """Return the progress of an exiting task that was not taken yet."""
        return self._pop(task, now) if task in self._waiting else None

    def _due(self, task: str) -> float:
        if task in self._awaited or task not in self._last:
            return 0.0
        interval_s = min(len(self._known) / _MOST_A_SECOND, self._longest_s)
        return self._last[task] + max(INTERVAL_S, interval_s)

    def _merge(self, task: str, progress: Progress, fields: Set[str]) -> None:
        known = self._known.get(task, Progress())
        said: dict[str, object] = {name: getattr(progress, name) for name in fields}
        if "phase" in fields and known.phase not in (None, progress.phase):
            said = dict.fromkeys(_OF_ONE_PHASE) | said
        if known.bad_loss is not None and said.get("bad_loss") is not None:
            said["bad_loss"] = known.bad_loss  # where it was first seen
        merged = known.model_copy(update=said)
        if merged != known:
            self.has_changed = True
            self._known[task] = self._waiting[task] = merged
            if self._is_awaited(known, merged):
                self._awaited.add(task)

    def _is_awaited(self, before: Progress, after: Progress) -> bool:
        """Whether a step or an epoch that a fault waits for was reached since `before`."""
        if not self._steps and not self._epochs:
            return False
        old, new = position(before), position(after)
        passed = new is not None and any((-1 if old is None else old) < step <= new for step in self._steps)
        return passed or any((before.epoch or 0) < epoch <= (after.epoch or 0) for epoch in self._epochs)

    def _pop(self, task: str, now: float) -> Progress:
        self._last[task] = now
        self._awaited.discard(task)
        return self._waiting.pop(task)
