"""Which of TensorFlow's strategies work with the versions installed: what docs/tensorflow.md has, no more (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

# The Keras versions that orch mends, from the first and up to but without the second.
MENDED_KERAS = ((3, 10), (3, 16))
_KERAS_3, _TF_KERAS = "Keras 3", "tf_keras"
_FIT, _LOOP = "fit", "custom loop"


class Works(StrEnum):
    YES = "yes"
    FIXED = "with orch's fix"
    NO = "no"
    UNTRIED = "not tried"


@dataclass(frozen=True)
class StrategyRow:
    """`way` is fit or a custom loop, `keras` Keras 3 or tf_keras (or neither), `why` a word on it."""

    strategy: str
    way: str
    keras: str
    works: Works
    why: str = ""


def version_pair(version: str) -> tuple[int, int]:
    """(3, 15) of 3.15.1; (0, 0) of what has no such numbers."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def strategies(keras: str | None, tf_keras: str | None, *, is_tried: bool) -> tuple[StrategyRow, ...]:
    """A row each way to train that the installed versions allow; `is_tried`: TensorFlow's version was. Versions are
    None for what is not installed."""
    rows: list[StrategyRow] = []
    if keras is not None and version_pair(keras)[0] == 3:
        rows += _of_keras_3(version_pair(keras))
    if tf_keras is not None:
        rows += _of_tf_keras()
    rows.append(
        StrategyRow("DTensor", _LOOP, "", Works.YES, "as a multi-client job; a script of its own kind")
    )
    if is_tried:
        return tuple(rows)
    return tuple(StrategyRow(row.strategy, row.way, row.keras, Works.UNTRIED) for row in rows)


def _of_keras_3(version: tuple[int, int]) -> list[StrategyRow]:
    return [
        _fit_mended("MultiWorkerMirrored", "fails by itself with two workers or more", version),
        StrategyRow("MultiWorkerMirrored", _LOOP, _KERAS_3, Works.YES),
        StrategyRow(
            "ParameterServer", _FIT, _KERAS_3, Works.NO, "Keras 3 does not support it; tf_keras does"
        ),
        StrategyRow("ParameterServer", _LOOP, _KERAS_3, Works.YES, "on ClusterCoordinator"),
        StrategyRow("Mirrored, OneDevice", _FIT, _KERAS_3, Works.YES),
        _fit_mended("CentralStorage", "sums up metrics wrongly by itself", version),
    ]


def _fit_mended(strategy: str, fault: str, version: tuple[int, int]) -> StrategyRow:
    first, beyond = MENDED_KERAS
    if first <= version < beyond:
        return StrategyRow(strategy, _FIT, _KERAS_3, Works.FIXED, f"{fault}; off with --no-fixes")
    return StrategyRow(strategy, _FIT, _KERAS_3, Works.UNTRIED, "orch's fix stays off")


def _of_tf_keras() -> list[StrategyRow]:
    return [
        StrategyRow("MultiWorkerMirrored", _FIT, _TF_KERAS, Works.YES, "with TF_USE_LEGACY_KERAS=1"),
        StrategyRow("MultiWorkerMirrored", _LOOP, _TF_KERAS, Works.YES),
        StrategyRow("ParameterServer", _FIT, _TF_KERAS, Works.YES, "with DatasetCreator"),
        StrategyRow("ParameterServer", _LOOP, _TF_KERAS, Works.YES, "on ClusterCoordinator"),
        StrategyRow("Mirrored, OneDevice, CentralStorage", _FIT, _TF_KERAS, Works.YES),
    ]
