"""The fixture that makes requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_making import Load

from orchestrator.request.settings.request import UpRequest
from orchestrator.request.settings.settings import load


@pytest.fixture
def load_here(tmp_path: Path) -> Load:
    """Call load() in an empty directory, with flags as keywords, an orch.toml and an environment.

    The command is /bin/true unless something else is named, so that no test here needs TensorFlow.
    """

    def load_it(toml: str | None = None, environ: dict[str, str] | None = None, **flags: object) -> UpRequest:
        if toml is not None:
            (tmp_path / "orch.toml").write_text(toml)
        if "command" not in flags and "command" not in (toml or "") and "ORCH_COMMAND" not in (environ or {}):
            flags["command"] = ["/bin/true"]
        return load(flags, environ or {}, tmp_path)

    return load_it
