"""The thread pools of each task: their share of the cores, and the variables that set their size (pure).

TensorFlow sizes each pool by the cores of the affinity mask. It ignores a CPU quota and the other tasks.
`scripts/bench threads` compares alternatives; docs/cpu.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.text.counted import counted

INTRA_OP, INTER_OP = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
# Other thread pools: OpenMP, and OpenBLAS in NumPy. --threads does not set them: orch cannot know whether that makes a
# script faster.
OTHER_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
VARIABLES = (INTRA_OP, INTER_OP, *OTHER_POOLS)


@dataclass(frozen=True)
class Cores:
    """Numbers of cores: `machine` are online, `allowed` in the affinity mask (which includes cpusets). `quota` is the
    CPU time, in cores, that the tightest cgroup allows, `quota_at` its directory; both None without a quota."""

    machine: int
    allowed: int
    quota: float | None = None
    quota_at: str | None = None

    @property
    def usable(self) -> float:
        return float(self.allowed) if self.quota is None else min(float(self.allowed), self.quota)

    @property
    def is_limited_unseen(self) -> bool:
        """Whether a quota limits the tasks. TensorFlow only reads the mask."""
        return self.usable < self.allowed

    def __str__(self) -> str:
        """`1 core`, `a quota of 3 of 64 cores`"""
        if self.is_limited_unseen:
            return f"a quota of {self.usable:g} of {counted(self.allowed, 'core')}"
        return counted(self.allowed, "core")


@dataclass(frozen=True)
class CpuBudget:
    """`cores` shared by `tasks`. `asked` is --threads (None: not given), `env` the variables that orch sets, `users`
    those that the user has set."""

    cores: Cores
    tasks: int
    asked: int | None
    env: Mapping[str, str]
    users: tuple[str, ...]

    @property
    def share(self) -> int:
        return threads_each(self.cores.usable, self.tasks)

    def __str__(self) -> str:
        """`2 cores for 4 tasks: TensorFlow's own pools, of 2 threads each`"""
        variables = ", ".join(f"{name}={value}" for name, value in self.env.items())
        own = f"TensorFlow's own pools, of {counted(self.cores.allowed, 'thread')} each"
        kept = f"; set already: {', '.join(self.users)}" if self.users else ""
        return f"{self.cores} for {counted(self.tasks, 'task')}: {variables or own}{kept}"


def threads_each(cores: float, tasks: int) -> int:
    """A task's share of the cores, rounded up: an idle core costs more than a shared one."""
    return max(1, math.ceil(cores / tasks))


def cpu_budget(
    cores: Cores, tasks: int, asked: int | None, users: Mapping[str, str], in_run: int | None = None
) -> CpuBudget:
    """Return the budget of the tasks on a host. `asked` is --threads or None. `users` is the tasks' environment as the
    user has it, whose variables stay. `in_run`: the tasks on all hosts, if there are several.

    There are never fewer inter-op threads than tasks + 1: TensorFlow warns that a cluster can hang with fewer.
    """
    least = (in_run or tasks) + 1
    values = {} if asked is None else {INTRA_OP: str(asked), INTER_OP: str(max(asked, least))}
    return CpuBudget(
        cores=cores,
        tasks=tasks,
        asked=asked,
        env={name: value for name, value in values.items() if name not in users},
        users=tuple(name for name in VARIABLES if name in users),
    )
