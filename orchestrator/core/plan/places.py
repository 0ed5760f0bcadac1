"""Where tasks run: the facts of a host, the paths of a run on it, and the address of each task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.core.job.cpu_budget import Cores
from orchestrator.core.job.gpus import GpuInventory


class RunLayout(Protocol):
    """The paths of a run that tasks need."""

    @property
    def run_id(self) -> str: ...

    @property
    def root(self) -> Path: ...

    @property
    def checkpoints(self) -> Path: ...

    @property
    def profile(self) -> Path: ...

    @property
    def preloader_log(self) -> Path: ...

    def task_log(self, task: str) -> Path: ...

    def task_scratch(self, task: str) -> Path: ...

    def task_exception(self, task: str) -> Path: ...

    def task_stacks(self, task: str) -> Path: ...


@dataclass(frozen=True)
class HostFacts:
    """The facts that the agent of a host reports. `address` is the IP address that the other hosts reach it by,
    `directory` the run's private directory on it."""

    address: str
    cores: Cores
    memory_bytes: int | None = None
    gpus: GpuInventory = field(default_factory=GpuInventory)
    python: str = ""
    directory: str = ""


@dataclass(frozen=True)
class TaskPlace:
    """Where a task runs. `host` is None for this machine, `address` is `ip:port`. `layout` holds the paths on the host;
    None: those of the run itself."""

    host: str | None
    address: str
    layout: RunLayout | None = None


def local_places(addresses: Iterable[str]) -> list[TaskPlace]:
    """The places of tasks that all run on this machine."""
    return [TaskPlace(None, address) for address in addresses]
