"""The cells of strategy x loop: the command of each, and the outcome of one run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ORCH = Path(sys.executable).with_name("orch")
# Held-out accuracy that every cell must reach.
STATED_ACCURACY = 0.95
LONGEST_RUN_S = 400.0
_REFUSED = 2
_HELD_OUT = re.compile(r"held-out accuracy (\d\.\d+)")


@dataclass(frozen=True)
class Cell:
    """A strategy and a loop; `words` follow `orch up`."""

    strategy: str
    loop: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.loop}"

    @property
    def keras(self) -> str:
        """Keras 3 has no `fit` on parameter servers."""
        return "tf_keras" if self.name == "parameter-server-fit" else "Keras 3"

    @property
    def command(self) -> str:
        return " ".join(("orch", "up", *self.words))


def _both(strategy: str, *words: str) -> tuple[Cell, Cell]:
    return (
        Cell(strategy, "fit", (*words, "--", "--loop", "fit")),
        Cell(strategy, "custom", (*words, "--", "--loop", "custom")),
    )


CELLS = (
    *_both("multi-worker-mirrored", "--workers", "2"),
    *_both("mirrored", "--strategy", "mirrored", "--replicas", "2"),
    *_both("one-device", "--strategy", "one-device"),
    *_both("central-storage", "--strategy", "central-storage", "--replicas", "2"),
    *_both("parameter-server", "--strategy", "parameter-server", "--workers", "2", "--ps", "1"),
    *_both("tpu", "--strategy", "tpu"),
    *_both("dtensor", "--mesh", "batch=2,model=2", "--workers", "2"),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a cell: the held-out accuracy, or the sentence with which it was refused."""

    cell: Cell
    code: int
    accuracy: float | None
    refusal: str | None
    output: str

    @property
    def row(self) -> str:
        if self.accuracy is not None:
            result = f"trains: held-out accuracy {self.accuracy:.3f}"
        else:
            result = f"refused: {self.refusal}" if self.refusal else f"failed with {self.code}"
        return f"| {self.cell.strategy} | {self.cell.loop} | {self.cell.keras} | `{self.cell.command}` | {result} |"


def run_cell(cell: Cell, directory: Path, environ: dict[str, str] | None = None) -> Outcome:
    """Run the cell in `directory`; subprocess.TimeoutExpired after LONGEST_RUN_S."""
    done = subprocess.run(
        [str(ORCH), "up", *cell.words],
        cwd=directory,
        env=environ or dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
        check=False,
    )
    found = _HELD_OUT.findall(done.stdout)
    accuracy = min(float(number) for number in found) if found and done.returncode == 0 else None
    refusal = _sentence(done.stderr) if done.returncode == _REFUSED else None
    return Outcome(cell, done.returncode, accuracy, refusal, done.stdout + done.stderr)


def _sentence(err: str) -> str:
    """Return the text of the error without the program's name."""
    text = " ".join(line.strip() for line in err.splitlines() if line.strip())
    return re.sub(r"^(orch|worker): (error: )?|; `orch up -- --help` lists its options$", "", text)
