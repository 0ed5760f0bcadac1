"""`--communication` is what MultiWorkerMirroredStrategy takes in a script that says nothing of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks import finished

from worker.bootstrap.communication import apply, is_asked_for

WITH_TENSORFLOW = """
import tensorflow as tf
own = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
)
for options in (None, own):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    print("implementation", strategy.extended._communication_options.implementation.value)
"""


class Implementation(enum.Enum):
    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclass
class Options:
    implementation: Implementation


def strategies() -> Any:
    """What of TensorFlow's module is touched."""

    class Strategy:
        def __init__(self, cluster_resolver: object = None, communication_options: object = None) -> None:
            self.given = (cluster_resolver, communication_options)

    collectives = SimpleNamespace(CommunicationImplementation=Implementation, Options=Options)
    return SimpleNamespace(collective_util=collectives, CollectiveAllReduceStrategy=Strategy)


@pytest.mark.parametrize(("word", "asked"), [(None, False), ("", False), ("auto", False), ("ring", True)])
def test_what_is_tensorflows_default_needs_nothing(word: str | None, asked: bool) -> None:
    assert is_asked_for({} if word is None else {"ORCH_COMMUNICATION": word}) is asked


def test_it_is_the_default_and_no_more() -> None:
    module = strategies()
    apply(module, {"ORCH_COMMUNICATION": "nccl"})
    strategy_class = module.CollectiveAllReduceStrategy
    assert strategy_class().given == (None, Options(Implementation.NCCL))
    assert strategy_class("resolver").given == ("resolver", Options(Implementation.NCCL))
    own = Options(Implementation.AUTO)
    assert strategy_class(communication_options=own).given[1] is own


def test_another_word_is_an_error() -> None:
    with pytest.raises(ValueError, match="ORCH_COMMUNICATION: 'fast' is none of auto, ring, nccl"):
        apply(strategies(), {"ORCH_COMMUNICATION": "fast"})


@pytest.mark.slow
def test_a_script_of_tensorflow_takes_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WITH_TENSORFLOW)
    task = finished(tmp_path, ["script.py"], env={"ORCH_COMMUNICATION": "ring", "TF_CONFIG": None})
    assert task.process.returncode == 0, task.output
    lines = [line.split()[1] for line in task.output.splitlines() if line.startswith("implementation")]
    assert lines == ["RING", "AUTO"]
