"""Planned faults, to test what a run survives: their model and their grammar (pure).

    kill worker:1 at step 20; stop chief at 30s for 25s; signal USR1 any at ready in attempt 2

A fault is a verb (kill, stop, term, int, signal NAME), a task (worker:1, chief, 0, any) and a moment (at step 20, at
epoch 2, at 30s, at ready, at start), then `for 25s` where it stops something, then `in attempt 2` if not the first.
"""

from __future__ import annotations

import hashlib
import re
import signal as signals
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestrator.core.job.tf_config import TaskRef, nearest_task
from orchestrator.core.text.durations import check_duration, format_duration, parse_duration
from orchestrator.core.text.nearest import did_you_mean
from orchestrator.core.text.signal_names import parse_signal, short_name

MOST_FAULTS = 100
# Digits of a step, epoch or attempt.
_MOST_DIGITS = 12
_VERBS = {
    "kill": signals.SIGKILL,
    "stop": signals.SIGSTOP,
    "term": signals.SIGTERM,
    "int": signals.SIGINT,
}
_VERB_OF = {int(number): verb for verb, number in _VERBS.items()}
_ANY = re.compile(r"any(?:#(\d{1,9}))?\Z", re.ASCII)
_WORD = re.compile(r"\S+")
_READY, _START = "ready", "start"


def _whole_milliseconds(seconds: float) -> float:
    return round(check_duration(seconds), 3)


_Seconds = Annotated[float, AfterValidator(_whole_milliseconds)]


class Fault(BaseModel):
    """A planned fault: one `signal` to `task` in attempt `attempt`. If `task` is None, `seed` selects the task.

    It happens when the training reaches `step` (over all epochs), when `epoch` begins (the first is 1), `at_s` seconds
    after the attempt's start (0: when the task has started), or, with none of these, when the run is ready. SIGCONT
    follows a stop after `for_s` seconds. parse_chaos reads the text of str().
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    signal: Annotated[int, Field(ge=1, le=64)]
    task: TaskRef | None = None
    seed: Annotated[int, Field(ge=0, lt=10**9)] | None = None
    step: Annotated[int, Field(ge=0, lt=10**_MOST_DIGITS)] | None = None
    epoch: Annotated[int, Field(ge=1, lt=10**_MOST_DIGITS)] | None = None
    at_s: _Seconds | None = None
    for_s: _Seconds | None = None
    attempt: Annotated[int, Field(ge=1, lt=10**_MOST_DIGITS)] = 1

    @model_validator(mode="after")
    def _is_one_fault(self) -> Self:
        if sum(moment is not None for moment in (self.step, self.epoch, self.at_s)) > 1:
            raise ValueError("a fault has one moment: a step, an epoch or a time")
        if self.for_s is not None and (self.signal != signals.SIGSTOP or self.for_s <= 0):
            raise ValueError("only a stop has a length, of at least a millisecond")
        if self.seed is not None and self.task is not None:
            raise ValueError("only a fault of any task has a seed")
        return self

    def __str__(self) -> str:
        parts = [_VERB_OF.get(self.signal) or f"signal {short_name(self.signal)}", self._target_text()]
        parts.append(f"at {self._moment_text()}")
        if self.for_s is not None:
            parts.append(f"for {format_duration(self.for_s)}")
        if self.attempt != 1:
            parts.append(f"in attempt {self.attempt}")
        return " ".join(parts)

    @property
    def waits_for_progress(self) -> bool:
        """Whether it depends on the progress that a task reports."""
        return self.step is not None or self.epoch is not None

    def target(self, tasks: Sequence[str]) -> str | None:
        """Return the one of `tasks` (names, in plan order) that gets the signal; None if the task is not among them."""
        if self.task is not None:
            name = str(self.task)
            return name if name in tasks else None
        if not tasks:
            return None
        drawn = hashlib.sha256(str(self.seed or 0).encode()).digest()
        return tasks[int.from_bytes(drawn, "big") % len(tasks)]

    def _target_text(self) -> str:
        if self.task is not None:
            return str(self.task)
        return "any" if self.seed is None else f"any#{self.seed}"

    def _moment_text(self) -> str:
        if self.step is not None:
            return f"step {self.step}"
        if self.epoch is not None:
            return f"epoch {self.epoch}"
        if self.at_s is None:
            return _READY
        return format_duration(self.at_s) if self.at_s else _START


def parse_chaos(text: str) -> tuple[Fault, ...]:
    """Return the faults in `text`, separated by semicolons. A ValueError names the place and a correction."""
    faults: list[Fault] = []
    begin = 0
    for piece in text.split(";"):
        if piece.strip():
            faults.append(_Reading(text, begin, begin + len(piece)).fault())
        begin += len(piece) + 1
    if not faults:
        raise ValueError("there is no fault in it; write kill worker:1 at step 20")
    if len(faults) > MOST_FAULTS:
        raise ValueError(f"{len(faults)} faults are too many; at most {MOST_FAULTS}")
    return tuple(faults)


def with_targets(
    faults: Sequence[Fault], roles: Collection[str], new_seed: Callable[[], int]
) -> tuple[Fault, ...]:
    """Return the faults for a run of these roles. Without a separate chief, `chief` becomes worker:0. A fault of any
    task gets a seed, which selects the task from then on."""
    return tuple(_with_target(fault, roles, new_seed) for fault in faults)


def _with_target(fault: Fault, roles: Collection[str], new_seed: Callable[[], int]) -> Fault:
    if fault.task is not None:
        return fault.model_copy(update={"task": fault.task.among(roles)})
    return fault if fault.seed is not None else fault.model_copy(update={"seed": new_seed()})


class _Reading:
    """Reads the single fault in `text` from `begin` to `end`, word by word."""

    def __init__(self, text: str, begin: int, end: int) -> None:
        self._words = [(match.start(), match.group()) for match in _WORD.finditer(text, begin, end)]
        self._end = max(begin, len(text[:end].rstrip()))
        self._next = 0

    def fault(self) -> Fault:
        signal = self._verb()
        target = self._target()
        self._expect("at", 'the moment, "at step 20", "at epoch 2", "at 30s", "at ready" or "at start"')
        moment = self._moment()
        for_s = self._for(signal) if self._follows("for") else None
        attempt = self._attempt() if self._follows("in") else 1
        if self._next < len(self._words):
            self._wrong("nothing may follow here; separate faults by semicolons")
        return Fault.model_validate(
            {"signal": signal, **target, **moment, "for_s": for_s, "attempt": attempt}
        )

    # -- parts of a fault, in their order

    def _verb(self) -> int:
        word = self._take("kill, stop, term, int or signal NAME").lower()
        if word == "signal":
            name = self._take("a signal, such as USR1 or 10")
            try:
                return parse_signal(name)
            except ValueError as error:
                at, _ = self._words[self._next - 1]
                raise ValueError(f"at character {at + 1}: {error}") from None
        if word not in _VERBS:
            meant = did_you_mean(word, (*_VERBS, "signal"), "write kill, stop, term, int or signal NAME")
            self._wrong(f"is not a fault; {meant}", back=1)
        return int(_VERBS[word])

    def _target(self) -> dict[str, object]:
        word = self._take("a task: worker:1, chief, 0 or any")
        any_task = _ANY.match(word)
        if any_task:
            return {"seed": None if any_task[1] is None else int(any_task[1])}
        try:
            return {"task": TaskRef.parse(word)}
        except ValueError:
            near = nearest_task(word)
            meant = "write worker:1, chief, 0 or any" if near is None else f'did you mean "{near}"?'
            self._wrong(f"is not a task; {meant}", back=1)

    def _moment(self) -> dict[str, object]:
        word = self._take("step 20, epoch 2, a time such as 30s, ready or start")
        match word.lower():
            case "step":
                return {"step": self._number("a step such as 20", least=0)}
            case "epoch":
                return {"epoch": self._number("an epoch; the first is 1", least=1)}
            case "ready":
                return {}
            case "start":
                return {"at_s": 0.0}
        if word.isascii() and word.isdigit():
            self._wrong(f"step {word[:20]} or {word[:20]}s? Write which", back=1)
        return {"at_s": self._duration(word, "step 20, epoch 2, 30s, 1m30s, ready or start")}

    def _for(self, signal: int) -> float:
        if signal != signals.SIGSTOP:
            self._wrong("only stop has a length; leave it out", back=1)
        what = "a length of time such as 25s or 500ms"
        seconds = self._duration(self._take(what), what)
        if seconds < 0.001:
            self._wrong("is not a length of time; write 25s", back=1)
        return seconds

    def _attempt(self) -> int:
        self._expect("attempt", '"attempt 2"')
        return self._number("an attempt; the first is 1", least=1)

    # -- words

    def _number(self, what: str, *, least: int) -> int:
        word = self._take(what)
        if not (word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS) or int(word) < least:
            self._wrong(f"is not {what}", back=1)
        return int(word)

    def _duration(self, word: str, what: str) -> float:
        try:
            return _whole_milliseconds(parse_duration(word))
        except ValueError:
            self._wrong(f"is not {what}", back=1)

    def _follows(self, word: str) -> bool:
        """Consume the next word if it is `word`; return whether it was."""
        if self._next < len(self._words) and self._words[self._next][1].lower() == word:
            self._next += 1
            return True
        return False

    def _expect(self, word: str, what: str) -> None:
        if self._take(what).lower() != word:
            self._wrong(f"is not {what}", back=1)

    def _take(self, what: str) -> str:
        if self._next == len(self._words):
            raise ValueError(f"at character {self._end + 1}: missing: {what}")
        self._next += 1
        return self._words[self._next - 1][1]

    def _wrong(self, problem: str, *, back: int = 0) -> NoReturn:
        at, word = self._words[self._next - back]
        cut = word if len(word) <= 40 else word[:40] + "..."
        raise ValueError(f'at character {at + 1}, "{cut}": {problem}')
