"""A valid JobSpec with changes, the type of `load_here`, the sentence of a refusal, and values as TOML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.job.spec import Command, CommandKind, JobSpec
from orchestrator.request.settings.request import UpRequest

Load = Callable[..., UpRequest]


def make_spec(**changes: Any) -> JobSpec:
    """Make a JobSpec that is valid, except for the given fields."""
    command = Command(
        kind=CommandKind.SCRIPT, words=("t.py",), argv=("/usr/bin/python3", "t.py"), serves=True
    )
    fields: dict[str, Any] = {
        "roles": {"worker": 2},
        "name": "job",
        "command": command,
        "directory": Path("/somewhere"),
        "cwd": Path("/somewhere"),
    }
    return JobSpec(**(fields | changes))


def refusal(act: Callable[..., object], *words: object, **given: Any) -> str:
    """Return the sentence with which `act` refuses its arguments, or "" if it accepts them."""
    try:
        act(*words, **given)
    except (UsageError, ValueError) as error:
        return str(error)
    return ""


def toml_value(value: object) -> str:
    """Return the value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value.encode(errors="replace").decode()).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{toml_value(name)} = {toml_value(entry)}' for name, entry in value.items())}}}"
        )
    return repr(value)
