"""Terminals for the tests of journeys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from orch_command import ORCH, Orch
from terminal import OpenTerminal, Terminal


@pytest.fixture
def terminal() -> Iterator[OpenTerminal]:
    """Open a terminal that runs `orch WORDS`, or the command line `argv`; `env` as in Orch."""
    opened: list[Terminal] = []

    def open_one(
        orch: Orch,
        *words: str,
        argv: Sequence[str] = (),
        env: dict[str, str | None] | None = None,
        **settings: Any,
    ) -> Terminal:
        kept = None if argv else orch.kept
        command = argv or (words if kept else (str(ORCH), *words))
        opened.append(Terminal([*command], orch.directory, orch.environ(env), kept=kept, **settings))
        return opened[-1]

    yield open_one
    for one in opened:
        one.end()
