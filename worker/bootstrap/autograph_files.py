"""Has TensorFlow write the code that it makes of a script's functions into the task's scratch directory.

It writes one `__autograph_generated_file*.py` a function into the directory for temporary files, and removes them at an
orderly exit alone: those of a task that is killed would stay there. The scratch directory goes with the run. The
script's own temporary files stay where they are.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

SCRATCH = "ORCH_SCRATCH_DIR"


def into_scratch(loader: Any) -> None:
    """`loader` is the imported tensorflow.python.autograph.pyct.loader."""
    scratch = os.environ.get(SCRATCH)
    if scratch and hasattr(loader, "tempfile"):
        loader.tempfile = _Tempfile(loader.tempfile, scratch)


class _Tempfile:
    """The module tempfile, but for where named files go when nobody says where."""

    def __init__(self, module: ModuleType, directory: str) -> None:
        self._module, self._directory = module, directory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def NamedTemporaryFile(self, *args: Any, **named: Any) -> Any:
        if os.access(self._directory, os.W_OK):
            named.setdefault("dir", self._directory)
        return self._module.NamedTemporaryFile(*args, **named)
