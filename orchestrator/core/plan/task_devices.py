"""The variables that give each task its strategy and its devices, from the spec and the addresses (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.core.job.choices import Communication, Strategy
from orchestrator.core.job.gpus import GpuInventory
from orchestrator.core.job.spec import JobSpec
from orchestrator.core.job.strategy import SettingMisfit, StrategyChoice
from orchestrator.core.job.tf_config import WORKER, TaskRef
from orchestrator.core.plan.gpu_plan import VISIBLE, GpuOptions, GpuPlan, plan_gpus

STRATEGY, REPLICAS, DEVICE = "ORCH_STRATEGY", "ORCH_REPLICAS", "ORCH_DEVICE"
TPU, MESH, COMMUNICATION = "ORCH_TPU", "ORCH_MESH", "ORCH_COMMUNICATION"
_GPU_MEMORY = "ORCH_GPU_MEMORY"
_OF_ONE_RUN = (STRATEGY, REPLICAS, DEVICE, TPU, MESH, COMMUNICATION, _GPU_MEMORY)
_TPU_NAME, _LOCAL_TPU = "TPU_NAME", "local"
# With these, DTensor does not look for other processes.
_ALONE = {"DTENSOR_CLIENT_ID": "0", "DTENSOR_JOBS": ""}


def gpu_plan_of(spec: JobSpec, environ: Mapping[str, str]) -> GpuPlan:
    """Return which task sees which GPU of this machine. Tasks inherit `environ`. Raises SettingMisfit."""
    return _gpu_plan(spec, spec.tasks, spec.gpu_inventory, environ)


def gpu_plan_of_hosts(
    spec: JobSpec,
    tasks: Mapping[str, Sequence[TaskRef]],
    inventories: Mapping[str, GpuInventory],
    environ: Mapping[str, str],
) -> GpuPlan:
    """The same for the tasks on each host. For a host without an inventory nothing is chosen."""
    # A host's own variable decides there.
    inherited = {name: value for name, value in environ.items() if name != VISIBLE}
    shares: dict[str, tuple[str, ...]] = {}
    env: dict[str, Mapping[str, str]] = {str(task): {} for task in spec.tasks}
    notes: list[str] = []
    is_shared = False
    for host, those in tasks.items():
        if host not in inventories:
            continue
        try:
            plan = _gpu_plan(spec, those, inventories[host], inherited)
        except SettingMisfit as misfit:
            raise SettingMisfit(misfit.setting, f"{host}: {misfit}") from misfit
        shares |= plan.shares
        env |= plan.env
        notes += [f"{host}: {note}" for note in plan.notes]
        is_shared = is_shared or plan.is_shared
    return GpuPlan(shares, env, is_shared, tuple(notes))


def _gpu_plan(
    spec: JobSpec, tasks: Sequence[TaskRef], inventory: GpuInventory, environ: Mapping[str, str]
) -> GpuPlan:
    here = Counter(task.type for task in tasks)
    request = GpuOptions(
        strategy=spec.strategy,
        choice=spec.gpus,
        by_role={
            role: its.gpus
            for role, its in spec.role_settings.items()
            if its.gpus is not None and role in spec.roles
        },
        memory=spec.gpu_memory,
        set_by_user=frozenset(role for role in spec.roles if VISIBLE in spec.env_of(role)),
        elsewhere={role: count - here[role] for role, count in spec.roles.items() if count > here[role]},
    )
    return plan_gpus(tasks, request, inventory, environ)


def strategy_env(
    choice: StrategyChoice, environ: Mapping[str, str], is_shared: bool = False
) -> dict[str, str]:
    """Return the variables about the strategy, common to all tasks. `is_shared`: two tasks see the same GPU, which NCCL
    does not support.

    Inherited variables of an outer run are set to empty.
    """
    communication = choice.communication
    if (
        is_shared
        and choice.strategy is Strategy.MULTI_WORKER_MIRRORED
        and communication is not Communication.NCCL
    ):
        communication = Communication.RING
    values = {
        STRATEGY: choice.strategy,
        REPLICAS: choice.replicas,
        DEVICE: choice.device,
        TPU: choice.tpu,
        MESH: choice.mesh,
        COMMUNICATION: communication,
    }
    env = {name: "" for name in _OF_ONE_RUN if environ.get(name)}
    if choice.tpu is not None and choice.tpu != _LOCAL_TPU:
        # Scripts that do not name a TPU read it from this variable.
        env[_TPU_NAME] = choice.tpu
    if MESH in env:
        env |= _ALONE
    return env | {name: str(value) for name, value in values.items() if value is not None}


def task_devices_env(
    spec: JobSpec, addresses: Sequence[str], environ: Mapping[str, str], gpus: GpuPlan
) -> dict[str, dict[str, str]]:
    """Return the variables by task. `addresses` (host:port) are those of `spec.tasks`, in order."""
    common = strategy_env(spec.strategy, environ, gpus.is_shared)
    by_task = {str(task): {**common, **gpus.env[str(task)]} for task in spec.tasks}
    if spec.strategy.mesh is None:
        return by_task
    clients = [
        (task, address) for task, address in zip(spec.tasks, addresses, strict=True) if task.type == WORKER
    ]
    for task, _ in clients:
        by_task[str(task)] |= {
            "DTENSOR_CLIENT_ID": str(task.index),
            "DTENSOR_NUM_CLIENTS": str(len(clients)),
            "DTENSOR_JOB_NAME": WORKER,
            "DTENSOR_JOBS": ",".join(address for _, address in clients),
        }
    return by_task
