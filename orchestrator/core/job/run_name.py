"""The name of a run: safe in a path, in a shell and on a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
_LONGEST = 63
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


def _checked_name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(
            f'"{name}" is not a name; use 1 to 63 of A-Z a-z 0-9 . _ - and begin with a letter or digit'
        )
    return name


RunName = Annotated[str, AfterValidator(_checked_name)]


def default_name(directory: Path) -> str:
    """Return a run's name made of the directory's. Other characters become dashes; `run` if nothing is left."""
    name = _NOT_IN_NAMES.sub("-", directory.name).lstrip("._-")[:_LONGEST].rstrip("-")
    return name or "run"


def element_name(name: str, element: str) -> str:
    """Return the name of an element of a job array: `digits-3`. A name that ends so already stays."""
    end = f"-{element}"
    return name if name.endswith(end) else name[: _LONGEST - len(end)].rstrip("-") + end
