"""`--communication` is the default of MultiWorkerMirroredStrategy in a script that does not set it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks import finished

from worker.bootstrap.tensorflow_settings import set_communication

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
    """A module with the parts of TensorFlow's that are used."""

    class Strategy:
        def __init__(self, cluster_resolver: object = None, communication_options: object = None) -> None:
            self.given = (cluster_resolver, communication_options)

    collectives = SimpleNamespace(CommunicationImplementation=Implementation, Options=Options)
    return SimpleNamespace(collective_util=collectives, CollectiveAllReduceStrategy=Strategy)


@pytest.mark.parametrize(("word", "changed"), [(None, False), ("", False), ("auto", False), ("ring", True)])
def test_tensorflows_default_stays_unless_another_one_is_set(word: str | None, changed: bool) -> None:
    module = strategies()
    original = module.CollectiveAllReduceStrategy.__init__
    set_communication(module, {} if word is None else {"ORCH_COMMUNICATION": word})
    assert (module.CollectiveAllReduceStrategy.__init__ is not original) is changed


def test_only_the_default_changes() -> None:
    module = strategies()
    set_communication(module, {"ORCH_COMMUNICATION": "nccl"})
    strategy_class = module.CollectiveAllReduceStrategy
    assert strategy_class().given == (None, Options(Implementation.NCCL))
    assert strategy_class("resolver").given == ("resolver", Options(Implementation.NCCL))
    own = Options(Implementation.AUTO)
    assert strategy_class(communication_options=own).given[1] is own


def test_an_unknown_word_is_an_error() -> None:
    with pytest.raises(ValueError, match="ORCH_COMMUNICATION: 'fast' is none of auto, ring, nccl"):
        set_communication(strategies(), {"ORCH_COMMUNICATION": "fast"})


@pytest.mark.slow
def test_a_tensorflow_script_uses_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WITH_TENSORFLOW)
    task = finished(tmp_path, ["script.py"], env={"ORCH_COMMUNICATION": "ring", "TF_CONFIG": None})
    assert task.process.returncode == 0, task.output
    lines = [line.split()[1] for line in task.output.splitlines() if line.startswith("implementation")]
    assert lines == ["RING", "AUTO"]
