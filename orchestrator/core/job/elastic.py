"""Elastic jobs: what fits to a range of workers and to a global batch, and the job with fewer workers (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from types import MappingProxyType

from orchestrator.core.job.choices import FailurePolicy, Strategy
from orchestrator.core.job.hosts import Host
from orchestrator.core.job.spec import CommandKind, JobSpec
from orchestrator.core.job.strategy import ONE_PROCESS, SettingMisfit
from orchestrator.core.job.tf_config import CHIEF, PS, WORKER
from orchestrator.core.text.counted import counted


def check_elastic(spec: JobSpec) -> None:
    """Raise SettingMisfit if options contradict a range of workers, or if a global batch cannot be shared equally."""
    for setting, reason in (*_range_misfits(spec), *_batch_misfits(spec)):
        raise SettingMisfit(setting, reason)


def _range_misfits(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if spec.fewest_workers is None:
        return
    asked = f"{spec.fewest_workers}..{spec.workers}"
    if spec.roles.get(PS):
        yield (
            "workers",
            f"{asked}: with parameter servers a lost worker restarts alone, and the others train on;"
            " write one number, or leave out --ps",
        )
    if spec.strategy.mesh is not None:
        yield (
            "workers",
            f"{asked}: the mesh {spec.strategy.mesh} is cut for one number of workers; write that",
        )
    if any(command.kind is CommandKind.FUNCTION for command in spec.commands):
        yield "workers", f"{asked}: a function returns a result for each task; write one number"
    if spec.policy_of(WORKER) is not FailurePolicy.RESTART:
        yield (
            "on_failure",
            f"{spec.policy_of(WORKER)} never starts the run with fewer workers, which --workers {asked} asks for; leave"
            " it out, or write restart",
        )


def _batch_misfits(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """A cluster shares a global batch equally, whichever number of workers it has."""
    batch, strategy = spec.global_batch, spec.strategy.strategy
    is_one_cluster = strategy not in (*ONE_PROCESS, Strategy.DTENSOR) and not spec.roles.get(PS)
    if batch is None or not is_one_cluster:
        return
    chiefs = spec.roles.get(CHIEF, 0)
    fewest = spec.workers if spec.fewest_workers is None else spec.fewest_workers
    numbers = range(fewest + chiefs, spec.workers + chiefs + 1)
    if odd := [number for number in numbers if batch % number]:
        step = math.lcm(*numbers)
        near = sorted({max(step, batch // step * step), (batch // step + 1) * step})
        yield (
            "global_batch",
            f"{counted(odd[0], 'worker')} cannot share {counted(batch, 'example')} equally;"
            f" write {' or '.join(map(str, near))}",
        )


def resized(spec: JobSpec, workers: int, hosts: Collection[Host]) -> JobSpec:
    """Return the job of one attempt: with so many workers, on these of its hosts."""
    names = {host.name for host in hosts}
    settings = {
        role: its
        if its.hosts is None
        else its.model_copy(update={"hosts": tuple(name for name in its.hosts if name in names)})
        for role, its in spec.role_settings.items()
    }
    return spec.model_copy(
        update={
            "roles": MappingProxyType({**spec.roles, WORKER: workers}),
            "role_settings": MappingProxyType(settings),
            "hosts": tuple(hosts),
        }
    )
