"""Parses one line with a counter that is not Keras's: a bar of tqdm, or a line of the script's own loop.

     12%|█▏        | 12/100 [00:01<00:09,  9.80it/s, loss=0.3]        Epoch 2/5: 12%|█▏ | 12/100 [00:01<00:09, 1.2s/it]
    step 10/100        Step 10, loss=0.3        iteration 10 of 100        Epoch 2, Loss: 0.5, Accuracy: 84.1
    Start of epoch 2        Finished epoch 2, accuracy is 0.8.        Training loss (for 1 batch) at step 200: 0.3

A line counts only if all of it matches: `Step 1/12 : FROM python:3.9` does not. A counter without a total needs a
metric, since `Step 3` may be a heading. `Start of epoch 2` needs none.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

# Longer lines are not read.
MAX_COUNTED_BYTES = 512
_MOST_METRICS, _MOST_ITEMS = 16, 24
_CONTROL = re.compile(rb"\x1b\[[0-9;]{0,16}[A-Za-z]")
# The prefix of a logger: `[12:30:01]`, `2026-11-23 12:30:01,123`, `INFO:tensorflow:`.
_LOG_PREFIX = re.compile(
    r"(?:\[[^\]]{1,40}\][ :]{0,3}|[\d:.,T/-]{5,30}Z?[ ,]{1,3}"
    r"|(?:INFO|DEBUG)(?:[: -]{1,3}[\w.]{1,30}(?=:))?[: -]{1,3}"
    r"|[IW]\d{4} [\d:.]{8,15} {1,9}\d{1,20} [\w.-]{1,60}\.py:\d{1,6}\] ){1,3}"
)
_FIRST_WORDS = re.compile(
    r"(?:(start of|starting|end of|finished|completed|time (?:taken )?for)|current|train(?:ing)?)\s{1,3}"
    r"(?=(?:epoch|step|iteration)\b)",
    re.IGNORECASE,
)
# Read as `step 200, Training loss: 0.3`.
_VALUE_AT = re.compile(
    r"^([a-z_]\w{0,30}(?: [a-z_]\w{0,30}){0,2})(?: \(for (?:1|one) batch\))? (?:at|for) "
    r"((?:epoch|step|iteration) \d{1,12}):\s",
    re.IGNORECASE,
)
# The largest float32 has 39 digits; Python prints small ones with over 20 decimals.
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf)"
_NAME = r"(?:(?:train|test|eval|val)\w{0,7} )?[a-z_][\w/]{0,30}"
_IS = r"(?:\s{0,3}[:=]\s{0,9}|\s(?:is\s)?)"
_SEPARATORS = re.compile(r"[\s,;:|()\[\]]*(?:-+\s+)?")
_COUNTER = re.compile(
    r"(epoch|(?:global[ _])?step|iteration|iter|batch)\s{0,3}[:=#]?\s{0,3}"
    r"\[?(\d{1,12})(?:\s?(?:/|of)\s?(\d{1,12}))?(?![\w/]|\.\w)",
    re.IGNORECASE,
)
_METRIC = re.compile(
    rf"(?:({_NAME}){_IS}|([a-z_]\w{{0,30}}(?: [a-z_]\w{{0,30}}){{1,4}})\s?[:=]\s)"
    rf"(?:tf\.Tensor\()?({_NUMBER})(?:, shape=\(\), dtype=\w{{1,16}}\))?(?!\w|\.\w)%?",
    re.IGNORECASE,
)
_UNIT = r"(?:ms|us|s|sec|secs|seconds|min|h)"
_MEASURE = re.compile(
    rf"(?:{_NUMBER})\s?(?:%|{_UNIT}(?:/\w{{1,20}})?|\w{{1,20}}/s(?:ec)?)(?![\w/])"
    # Does not match `loss 0.3 min 0.1`, where `min` is the name of the next value.
    rf"|{_NAME}{_IS}(?:{_NUMBER})\s?{_UNIT}(?![\w/]|\s{{0,3}}[:=]|\s[-+.\d])",
    re.IGNORECASE,
)
# Without a total, one of these must be there.
_NAMES_OF_TRAINING = re.compile(r"loss|acc|err|mae|mse|reward|perplexity|auc|f1|grad|elbo", re.IGNORECASE)
_LOSSES = frozenset({"loss", "train_loss", "train loss", "training loss", "training_loss", "total_loss"})

_TIME = r"\d{1,6}:\d\d(?::\d\d)?"
_RATE = r"\s{0,8}(\d{1,9}(?:\.\d{1,4})?|\?)\s?([a-z]{1,20})/([a-z]{1,20})(?:, ([^\]]{0,200}))?\]"
_TQDM = re.compile(
    r"(?:([^|%]{0,80}): ?)?\s{0,3}\d{1,3}%\|[^|]{0,250}\|\s{0,3}(\d{1,12})/(\d{1,12})\s"
    rf"\[{_TIME}<(?:{_TIME}|\?),{_RATE}",
    re.IGNORECASE,
)
_TQDM_WITHOUT_TOTAL = re.compile(rf"(?:([^|%]{{0,80}}): )?(\d{{1,12}})it \[{_TIME},{_RATE}", re.IGNORECASE)
_BAR_OF_EPOCHS = re.compile(r"(?:train(?:ing)? )?epochs?", re.IGNORECASE)
_BAR_OF_TRAINING = re.compile(
    r"(?:train\w{0,3}|fit\w{0,4}|steps?|iter\w{0,7}|batch(?:es)?|epoch\b.{0,40})", re.IGNORECASE
)
_BAR_OF_EVALUATION = re.compile(r"(?:eval\w{0,6}|valid\w{0,5}|test(?:ing)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Counted:
    """The counters of a line as printed; None if the line does not have them. Values that are not finite are None;
    `bad_loss` is then the loss as it was printed. `is_bar`: a line of tqdm."""

    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    loss: float | None = None
    bad_loss: float | None = None
    steps_per_s: float | None = None
    is_bar: bool = False
    evaluates: bool = False


def read_counted(line: bytes) -> Counted | None:
    """Parse a line, or one frame of a bar, without its end; None if it is something else."""
    if len(line) > MAX_COUNTED_BYTES:
        return None
    text = _CONTROL.sub(b"", line).decode("utf-8", "replace").strip().rstrip(".!")
    bar = _TQDM.fullmatch(text)
    if bar:
        desc, done, total, pace, what, per, postfix = bar.groups()
        return _bar(desc, int(done), int(total), _rate(pace, what, per), postfix)
    bar = _TQDM_WITHOUT_TOTAL.fullmatch(text)
    if bar:
        desc, done, pace, what, per, postfix = bar.groups()
        return _bar(desc, int(done), None, _rate(pace, what, per), postfix)
    prefix = _LOG_PREFIX.match(text)
    return _loop_line(text) or (_loop_line(text[prefix.end() :]) if prefix else None)


def _bar(
    desc: str | None, done: int, total: int | None, rate: float | None, postfix: str | None
) -> Counted | None:
    desc = (desc or "").strip().strip("[]").strip()
    if total is not None and total < max(1, done):
        return None
    values = _scan(postfix or "", is_strict=False) or Counted()
    if _BAR_OF_EPOCHS.fullmatch(desc):
        epoch = done + 1 if total is None or done < total else done
        return Counted(
            epoch=epoch,
            epochs=total,
            values=values.values,
            loss=values.loss,
            bad_loss=values.bad_loss,
            is_bar=True,
        )
    evaluates = bool(_BAR_OF_EVALUATION.fullmatch(desc))
    if desc and not evaluates and not _BAR_OF_TRAINING.fullmatch(desc):
        return None
    named = _COUNTER.match(desc)
    is_epoch = named is not None and named[1].lower() == "epoch"
    return Counted(
        step=done,
        steps=total,
        epoch=int(named[2]) if named and is_epoch else None,
        epochs=int(named[3]) if named and is_epoch and named[3] else None,
        values=values.values,
        loss=values.loss,
        bad_loss=values.bad_loss,
        steps_per_s=rate,
        is_bar=True,
        evaluates=evaluates,
    )


def _rate(pace: str, what: str, per: str) -> float | None:
    """`9.80it/s` or `1.20s/it` as steps per second."""
    value = 0.0 if pace == "?" else float(pace)
    if value <= 0:
        return None
    return value if per == "s" else 1 / value if what == "s" else None


def _loop_line(text: str) -> Counted | None:
    first = _FIRST_WORDS.match(text)
    text = text[first.end() :] if first else _VALUE_AT.sub(r"\2, \1: ", text)
    found = _scan(text, is_strict=True)
    if found is None or (found.step is None and found.epoch is None):
        return None
    is_epoch_line = first is not None and first[1] and found.epoch is not None
    if is_epoch_line or found.steps is not None or found.epochs is not None:
        return found
    names = " ".join(found.values) + (" loss" if found.loss is not None or found.bad_loss is not None else "")
    return found if _NAMES_OF_TRAINING.search(names) else None


def _scan(text: str, *, is_strict: bool) -> Counted | None:
    """Read counters and metrics from left to right; None if there is anything else and `is_strict`."""
    counters: dict[str, int] = {}
    values: dict[str, float | None] = {}
    loss: float | None = None
    bad_loss: float | None = None
    at, items = _end_of_separators(text, 0), 0
    while at < len(text):
        items += 1
        if items > _MOST_ITEMS:
            return None
        item = _COUNTER.match(text, at)
        if item:
            name = "epoch" if item[1].lower() == "epoch" else "step"
            if name in counters or (item[3] and int(item[3]) < max(1, int(item[2]))):
                return None
            counters[name] = int(item[2])
            if item[3]:
                counters[f"{name}s"] = int(item[3])
        elif (item := _MEASURE.match(text, at)) is None:
            item = _METRIC.match(text, at)
            if item is None:
                if is_strict:
                    return None
                break
            if len(values) < _MOST_METRICS:
                name, value = (item[1] or item[2]).lower(), float(item[3])
                is_finite = math.isfinite(value)
                if name in _LOSSES:
                    loss, bad_loss = (value, None) if is_finite else (None, value)
                else:
                    values[name.replace(" ", "_")] = value if is_finite else None
        at = _end_of_separators(text, item.end())
    return Counted(**counters, values=values, loss=loss, bad_loss=bad_loss)  # type: ignore[arg-type]


def _end_of_separators(text: str, at: int) -> int:
    found = _SEPARATORS.match(text, at)
    return found.end() if found else at
