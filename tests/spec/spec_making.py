"""The kinds of this directory's fixtures."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.configuration.request import UpRequest
from orchestrator.spec import JobSpec

MakeSpec = Callable[..., JobSpec]
Load = Callable[..., UpRequest]
