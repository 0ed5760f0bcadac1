"""Gives MultiWorkerMirroredStrategy the way of summing gradients that orch was told, where the script says none."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "ORCH_COMMUNICATION"
_AUTO = "auto"  # TensorFlow's own default


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether there is anything for `apply` to do."""
    return environ.get(VARIABLE, "") not in ("", _AUTO)


def apply(strategies: Any, environ: Mapping[str, str]) -> None:
    """Take what `environ` says for the default from now on; ValueError if it says nothing sensible.

    `strategies` is the imported tensorflow.python.distribute.collective_all_reduce_strategy.
    """
    implementations = strategies.collective_util.CommunicationImplementation
    word = environ[VARIABLE].upper()
    if word not in implementations.__members__:
        raise ValueError(f"{VARIABLE}: {environ[VARIABLE]!r} is none of auto, ring, nccl")
    told = strategies.collective_util.Options(implementation=implementations[word])
    strategy_class = strategies.CollectiveAllReduceStrategy
    original = strategy_class.__init__

    @functools.wraps(original)
    def init(self: Any, cluster_resolver: Any = None, communication_options: Any = None) -> None:
        original(self, cluster_resolver, told if communication_options is None else communication_options)

    strategy_class.__init__ = init
