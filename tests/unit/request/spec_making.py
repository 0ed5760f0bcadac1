"""The types of the fixtures."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.job.spec import JobSpec
from orchestrator.request.settings.request import UpRequest

MakeSpec = Callable[..., JobSpec]
Load = Callable[..., UpRequest]
