"""orch's own processes never import the user's modules, whatever their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_command import Orch

NAMES = (
    *("json", "socket", "subprocess", "select", "signal", "worker", "orchestrator", "portpicker", "pydantic"),
    *("rich", "platformdirs", "psutil", "typing_extensions", "sitecustomize", "usercustomize"),
)
# Records which process imported it.
MODULE = """
import os, sys
fd = os.open({seen!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, ({name!r} + " " + " ".join(sys.orig_argv).replace("\\n", " ") + "\\n").encode())
os.close(fd)
"""


def plant(directory: Path, names: tuple[str, ...], seen: Path) -> None:
    for name in names:
        (directory / f"{name}.py").write_text(MODULE.format(seen=str(seen), name=name))


def test_modules_in_the_current_directory_are_not_imported(orch: Orch) -> None:
    seen = orch.directory / "seen"
    plant(orch.directory, NAMES, seen)
    done = orch("up", "--", "sleep", "0")
    assert done.code == 0, done.err
    assert not seen.exists(), seen.read_text()


@pytest.mark.slow
def test_pythonpath_affects_only_client_and_tasks(orch: Orch) -> None:
    """The supervisor and the agent are started with -I -S."""
    seen = orch.directory / "seen"
    plant(orch.directory, ("sitecustomize", "worker"), seen)
    done = orch("up", "--", "python", "-c", "import worker", env={"PYTHONPATH": str(orch.directory)})
    assert done.code == 0, done.err
    lines = seen.read_text().splitlines()
    assert any(line.startswith("sitecustomize") and line.endswith("import worker") for line in lines)
    assert any(line.startswith("worker") for line in lines)
    assert not [line for line in lines if "-I" in line.split()], lines
