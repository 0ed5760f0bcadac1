"""The scripts in examples/ train with the command in their docstrings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from orch_command import Orch
from waiting import lives

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples"
NOT_RUN_HERE = ("digits.py", "tpu.py")
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in NOT_RUN_HERE)
LONGEST_RUN_S = 300.0
LEAST_ACCURACY = 0.85
pytestmark = pytest.mark.timeout(320)


def command_of(script: str) -> list[str]:
    """The words after `orch` in the docstring of the script."""
    (line,) = re.findall(r"\borch (up .*?)\"*$", (EXAMPLES / script).read_text(), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_example_trains(orch: Orch, script: str) -> None:
    words = command_of(script)
    assert words[-1] == f"examples/{script}"
    done = orch(*words, cwd=ROOT, timeout_s=LONGEST_RUN_S)
    assert done.code == 0, done.out + done.err
    accuracies = [float(number) for number in re.findall(r"accuracy:? (\d\.\d+)", done.out)]
    assert accuracies and accuracies[-1] > LEAST_ACCURACY, done.out
    assert not any(lives(event["pid"]) for event in orch.events("task_started"))


def test_example_on_a_tpu_starts_nothing_without_one(orch: Orch) -> None:
    words = [word for word in command_of("tpu.py") if word not in ("--tpu", "NAME")]
    done = orch(*words, cwd=ROOT)
    assert done.code == 2 and "TPU" in done.err
    assert not orch.run_dirs()


@pytest.mark.slow
def test_readme_script_trains(orch: Orch) -> None:
    (script,) = re.findall(r"```python\n(# train.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (orch.directory / "train.py").write_text(script)
    done = orch("up", "--workers", "2", "--", "train.py", timeout_s=LONGEST_RUN_S)
    assert done.code == 0, done.out + done.err
    losses = [float(number) for number in re.findall(r"worker:0 \|.*loss: (\S+)", done.out)]
    assert losses[-1] < losses[0] / 10
