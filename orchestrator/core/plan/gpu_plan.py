"""Decides which task sees which GPU, from the options and the GPUs of the machine (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.job.choices import Communication
from orchestrator.core.job.gpus import AUTO_GPUS, NO_GPUS, GpuChoice, GpuInventory, GpuWay, visible_names
from orchestrator.core.job.strategy import SettingMisfit, StrategyChoice
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, WORKER, TaskRef
from orchestrator.core.plan import gpu_messages
from orchestrator.core.text.counted import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
MEMORY = "ORCH_GPU_MEMORY"
GROW = "grow"
_HIDDEN = "-1"
# Named GPUs are assigned first, then counted ones. `auto` gets the rest.
_TURN = {GpuWay.NAMED: 0, GpuWay.PER_TASK: 1, GpuWay.AUTO: 2, GpuWay.NONE: 3}


@dataclass(frozen=True)
class GpuOptions:
    """A run's options about GPUs. `choice` None means auto; `by_role` takes precedence. `memory` is "grow", or bytes of
    each GPU, or None for TensorFlow's default, which allocates all. The user sets CUDA_VISIBLE_DEVICES for the roles
    `set_by_user`. `elsewhere` are the numbers of the run's tasks on other hosts, by role."""

    strategy: StrategyChoice = field(default_factory=StrategyChoice)
    choice: GpuChoice | None = None
    by_role: Mapping[str, GpuChoice] = field(default_factory=dict)
    memory: str | int | None = None
    set_by_user: frozenset[str] = frozenset()
    elsewhere: Mapping[str, int] = field(default_factory=dict)

    @property
    def clients_elsewhere(self) -> int:
        return self.elsewhere.get(WORKER, 0)


@dataclass(frozen=True)
class GpuPlan:
    """`shares` are the GPUs that each task sees, () for none, without an entry for a task whose GPUs orch does not
    choose. `env` are the variables of each task. `is_shared`: two tasks see the same GPU. `notes` are for the user."""

    shares: Mapping[str, tuple[str, ...]]
    env: Mapping[str, Mapping[str, str]]
    is_shared: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Tasks that split the GPUs of one choice."""

    tasks: tuple[TaskRef, ...]
    choice: GpuChoice


def plan_gpus(
    tasks: Sequence[TaskRef], request: GpuOptions, inventory: GpuInventory, users: Mapping[str, str]
) -> GpuPlan:
    """Split the GPUs. `users` is the tasks' environment as the user has it; its CUDA_VISIBLE_DEVICES limits the GPUs to
    split. Raises SettingMisfit with the reason and what to do.

    Tasks that do not compute get no GPU: parameter servers, the chief that coordinates them, and an evaluator, unless
    their role asks for GPUs. Without any GPU, and without options, orch sets nothing for the other tasks.
    """
    pool = _pool(inventory, users)
    request = _by_strategy(request)
    own = [task for task in tasks if task.type not in request.set_by_user]
    has_servers = PS in request.elsewhere or any(task.type == PS for task in tasks)
    groups = _groups(own, request, has_servers)
    shares: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    for group in sorted(groups, key=lambda each: _TURN[each.choice.way]):
        taken = {name for share in shares.values() for name in share}
        left = tuple(name for name in pool if name not in taken)
        shares |= _split(group, pool, left, inventory, request, notes)
    shared = _shared(shares, inventory)
    _check(tasks, request, shares, shared, inventory)
    if request.memory is not None and not any(shares.values()) and not request.set_by_user:
        notes.append("--gpu-memory: no task sees a GPU, so it changes nothing")
    if shared:
        notes += gpu_messages.sharing_notices(shared, request.memory, request.strategy)
    env = {str(task): _env(str(task), shares, request, bool(shared), users) for task in tasks}
    return GpuPlan(
        {str(task): shares[str(task)] for task in own if str(task) in shares}, env, bool(shared), tuple(notes)
    )


def _pool(inventory: GpuInventory, users: Mapping[str, str]) -> tuple[str, ...]:
    if not inventory.gpus:
        return ()
    if VISIBLE in users:
        return visible_names(users[VISIBLE])
    return tuple(gpu.name for gpu in inventory.gpus)


def _by_strategy(request: GpuOptions) -> GpuOptions:
    """Hide the GPUs from workers that compute on logical CPU devices or on CPU:0."""
    strategy = request.strategy
    setting = "replicas" if strategy.replicas is not None else "device"
    if strategy.replicas is None and strategy.device != "CPU:0":
        return request
    if request.choice is not None and request.choice.way in (GpuWay.NAMED, GpuWay.PER_TASK):
        raise SettingMisfit(
            setting,
            f"means that the workers compute on the CPU, which contradicts --gpus {request.choice}; leave one out",
        )
    of_others = {role: own for role, own in request.by_role.items() if role != WORKER}
    return replace(request, choice=NO_GPUS, by_role=of_others)


def _groups(tasks: Sequence[TaskRef], request: GpuOptions, has_servers: bool) -> list[_Group]:
    """Group the tasks by choice: a role's own is split among its tasks, the common one among the others that compute.
    All tasks with `auto` are one group."""
    idle = {PS, EVALUATOR, *((CHIEF,) if has_servers else ())}
    common = request.choice or AUTO_GPUS
    by_key: dict[tuple[str, GpuChoice], list[TaskRef]] = {}
    for task in tasks:
        own = request.by_role.get(task.type)
        choice = own or (NO_GPUS if task.type in idle else common)
        role = task.type if own is not None and own.way is not GpuWay.AUTO else ""
        by_key.setdefault((role, choice), []).append(task)
    return [_Group(tuple(those), choice) for (_, choice), those in by_key.items()]


def _split(
    group: _Group,
    pool: tuple[str, ...],
    left: tuple[str, ...],
    inventory: GpuInventory,
    request: GpuOptions,
    notes: list[str],
) -> dict[str, tuple[str, ...]]:
    count, choice = len(group.tasks), group.choice
    if choice.way is GpuWay.NONE:
        return {str(task): () for task in group.tasks}
    if choice.way is GpuWay.NAMED:
        return _named(group, pool, inventory)
    if choice.way is GpuWay.PER_TASK:
        if len(left) < choice.each * count:
            raise SettingMisfit("gpus", gpu_messages.too_few_gpus(choice.each, group.tasks, left, inventory))
        return _dealt(group.tasks, left, choice.each)
    if not pool:
        return {}
    each = _local_devices(request, count) or len(left) // count
    if each * count > len(left) or not each:
        notes.append(gpu_messages.no_gpus(group.tasks, each, left))
        return {str(task): () for task in group.tasks}
    unused = left[each * count :]
    if unused:
        notes.append(gpu_messages.unused_gpus(group.tasks, each, len(left), unused))
    return _dealt(group.tasks, left, each)


def _local_devices(request: GpuOptions, clients: int) -> int | None:
    mesh = request.strategy.mesh
    return None if mesh is None else mesh.devices // (clients + request.clients_elsewhere)


def _named(group: _Group, pool: tuple[str, ...], inventory: GpuInventory) -> dict[str, tuple[str, ...]]:
    names, count = group.choice.names, len(group.tasks)
    for name in names:
        if name not in pool and not _is_another_name(name, pool, inventory):
            raise SettingMisfit("gpus", gpu_messages.missing_gpu(name, pool, inventory))
    if len(names) % count:
        raise SettingMisfit("gpus", gpu_messages.uneven_split(names, group.tasks))
    shares = _dealt(group.tasks, names, len(names) // count)
    for task, share in shares.items():
        if len({_identity(name, inventory) for name in share}) < len(share):
            raise SettingMisfit(
                "gpus",
                f"{','.join(names)}: {task} would see one GPU twice ({','.join(share)});"
                " GPUs are assigned in the order of their names",
            )
    return shares


def _is_another_name(name: str, pool: tuple[str, ...], inventory: GpuInventory) -> bool:
    """Return whether the pool has the GPU under another name. Accepts any MIG name if no GPU is hidden."""
    found = inventory.find(name)
    if found is None:
        whole = {gpu.name for gpu in inventory.gpus}
        return name.startswith("MIG-") and whole <= set(pool)
    return _identity(name, inventory) in {_identity(each, inventory) for each in pool}


def _identity(name: str, inventory: GpuInventory) -> str:
    found = inventory.find(name)
    return found.name if found else name


def _dealt(tasks: Sequence[TaskRef], names: Sequence[str], each: int) -> dict[str, tuple[str, ...]]:
    return {str(task): tuple(names[at * each : (at + 1) * each]) for at, task in enumerate(tasks)}


def _shared(shares: Mapping[str, tuple[str, ...]], inventory: GpuInventory) -> dict[str, list[str]]:
    """Return the tasks by GPU, for GPUs that several tasks see."""
    users: dict[str, list[str]] = {}
    for task, share in shares.items():
        for name in share:
            users.setdefault(_identity(name, inventory), []).append(task)
    return {name: those for name, those in users.items() if len(those) > 1}


def _check(
    tasks: Sequence[TaskRef],
    request: GpuOptions,
    shares: Mapping[str, tuple[str, ...]],
    shared: Mapping[str, list[str]],
    inventory: GpuInventory,
) -> None:
    strategy = request.strategy
    if strategy.communication is Communication.NCCL:
        _check_nccl(
            [task for task in tasks if task.type not in request.set_by_user], shares, shared, inventory
        )
    if strategy.device is not None and strategy.device.startswith("GPU:"):
        seen = [shares.get(str(task), ()) for task in tasks if task.type not in request.set_by_user]
        if seen and int(strategy.device[4:]) >= len(seen[0]):
            sees = (
                f"sees {gpu_messages.counted_gpus(len(seen[0]))} of its own"
                if inventory.gpus
                else f"has none: {inventory.lack}"
            )
            raise SettingMisfit(
                "device", f"there is no {strategy.device}: the process {sees}; use --device CPU:0"
            )
    if strategy.mesh is not None:
        _check_mesh(request, shares)
    if isinstance(request.memory, int):
        for name, those in shared.items():
            gpu = inventory.find(name)
            if gpu is not None and gpu.memory_bytes and len(those) * request.memory > gpu.memory_bytes:
                raise SettingMisfit(
                    "gpu_memory",
                    f"{len(those)} tasks share GPU {name}: {len(those)} x {request.memory:,} bytes are more than"
                    f" its {gpu.memory_bytes:,}; ask for {gpu.memory_bytes // len(those):,} or less",
                )


def _check_nccl(
    tasks: Sequence[TaskRef],
    shares: Mapping[str, tuple[str, ...]],
    shared: Mapping[str, list[str]],
    inventory: GpuInventory,
) -> None:
    for name, those in shared.items():
        raise SettingMisfit(
            "communication",
            f"NCCL refuses two processes on one GPU, and {' and '.join(those)} share GPU {name};"
            " use --communication ring",
        )
    for task in tasks:
        if task.type not in (PS, EVALUATOR) and not shares.get(str(task)):
            why = "sees none" if inventory.gpus else f"has none: {inventory.lack}"
            raise SettingMisfit(
                "communication", f"NCCL sums on GPUs, and {task} {why}; use --communication ring"
            )


def _check_mesh(request: GpuOptions, shares: Mapping[str, tuple[str, ...]]) -> None:
    """Check that each process sees as many GPUs as it has devices of the mesh, or none."""
    wanted = _local_devices(request, max(1, len(shares))) if shares else None
    for task, share in shares.items():
        if share and len(share) != wanted:
            raise SettingMisfit(
                "gpus",
                f"the mesh {request.strategy.mesh} over {counted(len(shares), 'process', 'processes')} needs"
                f" {gpu_messages.counted_gpus(wanted or 0)} each,"
                f" and {task} would see {len(share)}; name {(wanted or 0) * len(shares)}, or use --gpus none",
            )


def _env(
    task: str,
    shares: Mapping[str, tuple[str, ...]],
    request: GpuOptions,
    is_shared: bool,
    users: Mapping[str, str],
) -> dict[str, str]:
    env = {}
    if task in shares:
        env[VISIBLE] = ",".join(shares[task]) or _HIDDEN
        # Then an index is that of nvidia-smi. In the user's own variable it keeps the meaning of CUDA.
        if any(name.isdigit() for name in shares[task]) and not {ORDER, VISIBLE} & users.keys():
            env[ORDER] = "PCI_BUS_ID"
    if request.memory is not None:
        env[MEMORY] = str(request.memory)
    if (request.memory == GROW or (is_shared and request.memory is None)) and GROWTH not in users:
        env[GROWTH] = "true"
    return env
