"""The roles of a job: which counts are allowed, who leads it, and what follows when a task of one fails (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from orchestrator.core.job.choices import ChiefOption, FailurePolicy
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, ROLES, SINGLE_ROLES, WORKER
from orchestrator.core.text.counted import counted

# Every task's TF_CONFIG names all tasks: about 6,800 fit into one variable, fewer with addresses of IPv6.
MOST_TASKS = 4000
_RANGE = re.compile(r"\s*(?P<fewest>\d{1,9})\s*\.\.\s*(?P<most>\d{1,9})\s*\Z", re.ASCII)


@dataclass(frozen=True)
class WorkerRange:
    """The numbers of workers that an elastic run can have."""

    fewest: int
    most: int

    def __str__(self) -> str:
        return f"{self.fewest}..{self.most}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2..4`. Raises ValueError."""
        found = _RANGE.match(text)
        if found is None:
            raise ValueError(f'"{text:.40}" is not a range; write the fewest and the most workers: 2..4')
        fewest, most = int(found["fewest"]), int(found["most"])
        if not fewest:
            raise ValueError(f'"{text}": a run has at least 1 worker; write 1..{max(1, most)}')
        if fewest > most:
            raise ValueError(f'"{text}" begins with the larger number; write {most}..{fewest}')
        return cls(fewest, most)


class RoleMisfit(ValueError):
    """The number of tasks of `role` is not possible; the text says why."""

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(reason)
        self.role = role


def check_counts(counts: Mapping[str, int]) -> None:
    """Raise RoleMisfit unless a job can have these numbers of tasks. A role that is not in `counts` has none."""
    workers, servers, chiefs = (counts.get(role, 0) for role in (WORKER, PS, CHIEF))
    for role, count in counts.items():
        if count < 0:
            raise RoleMisfit(role, f"must be at least {int(role == WORKER)}, not {count}")
        if count > MOST_TASKS:
            raise RoleMisfit(role, f"a job has at most {MOST_TASKS:,} tasks, not {count:,}")
    if not workers and servers:
        raise RoleMisfit(WORKER, "must be at least 1, not 0: parameter servers need a worker to train with")
    if not workers and not chiefs:
        raise RoleMisfit(WORKER, "must be at least 1, not 0: without --chief separate, a worker is the chief")
    for role in SINGLE_ROLES:
        if counts.get(role, 0) > 1:
            raise RoleMisfit(role, f"a job has at most one {role}, not {counts[role]}")
    total = sum(counts.values())
    if total > MOST_TASKS:
        largest = max(counts, key=lambda role: counts[role])
        raise RoleMisfit(largest, f"a job has at most {MOST_TASKS:,} tasks, not {total:,}")


def default_chief(parameter_servers: int) -> ChiefOption:
    """With parameter servers, the chief coordinates and does not train: it is a separate task."""
    return ChiefOption.SEPARATE if parameter_servers else ChiefOption.WORKER0


def default_policy(role: str, roles: Collection[str], otherwise: FailurePolicy) -> FailurePolicy:
    """The policy after a failure of a task of `role`, where the user has not set one.

    A coordinator gives the steps of a dead worker to the others and uses the worker again after it restarts. The death
    of a parameter server loses variables, and the death of a chief ends the training: `otherwise` applies, as it does
    to every task of a cluster without parameter servers. An evaluator only reads checkpoints: its restart affects no
    other task.
    """
    if role == EVALUATOR or (role == WORKER and PS in roles):
        return FailurePolicy.RESTART_TASK
    return otherwise


def leader_role(roles: Collection[str]) -> str:
    """The role whose index 0 is the chief."""
    return CHIEF if CHIEF in roles else WORKER


def in_words(roles: Mapping[str, int]) -> str:
    """`3 workers`; of several roles `5 tasks (1 chief, 2 workers, 1 ps, 1 evaluator)`."""
    counts = [counted_of(role, roles[role]) for role in ROLES if roles.get(role)]
    return counts[0] if len(counts) == 1 else f"{counted(sum(roles.values()), 'task')} ({', '.join(counts)})"


def counted_of(role: str, count: int) -> str:
    """`1 worker`, `2 ps`"""
    return counted(count, role, PS if role == PS else None)
