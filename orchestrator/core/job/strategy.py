"""The strategies of tf.distribute: the processes that each needs, and the options that apply to it (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.core.job.choices import Communication, Strategy
from orchestrator.core.job.tf_config import CHIEF, EVALUATOR, PS, WORKER
from orchestrator.core.text.counted import counted
from orchestrator.core.text.nearest import did_you_mean, listed, nearest

MOST_DEVICES = 1024
MOST_REPLICAS = 64
_DEVICE = re.compile(r"/?(?:device:)?(?P<kind>cpu|gpu):(?P<index>\d{1,4})\Z", re.IGNORECASE | re.ASCII)
_MESH_DIMENSIONS = ("batch", "model")


ONE_PROCESS = frozenset((Strategy.MIRRORED, Strategy.ONE_DEVICE, Strategy.CENTRAL_STORAGE, Strategy.TPU))
_WHY_ONE_PROCESS = {
    Strategy.MIRRORED: "it mirrors the model on the devices of one process",
    Strategy.ONE_DEVICE: "it puts everything on one device",
    Strategy.CENTRAL_STORAGE: "its variables are kept on the CPU of the process that computes",
    Strategy.TPU: "one process drives all cores of a TPU",
}
# The strategies that an option applies to.
_SETTING_OF: Mapping[str, tuple[Strategy, ...]] = {
    "replicas": (Strategy.MIRRORED, Strategy.CENTRAL_STORAGE),
    "device": (Strategy.ONE_DEVICE,),
    "tpu": (Strategy.TPU,),
    "mesh": (Strategy.DTENSOR,),
    "communication": (Strategy.MULTI_WORKER_MIRRORED,),
}
# Default numbers of tasks, by option, where they differ from orch's own.
DEFAULT_COUNTS: Mapping[Strategy, Mapping[str, int]] = {
    Strategy.PARAMETER_SERVER: {"workers": 2, "ps": 1},
}
_MEANS = {
    "replicas": "logical CPU devices",
    "device": "the one device that everything is put on",
    "tpu": "the name of a TPU",
    "mesh": "a DTensor mesh",
    "communication": "how the gradients of several workers are summed",
}


class SettingMisfit(ValueError):
    """The option `setting` (in snake case) contradicts the others; the text says why and what to do."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting


@dataclass(frozen=True)
class Mesh:
    """Into how many parts the batch and the model are split. Each pair of parts has one device."""

    batch: int = 1
    model: int = 1

    @property
    def devices(self) -> int:
        return self.batch * self.model

    def __str__(self) -> str:
        return f"batch={self.batch},model={self.model}"

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read `batch=2,model=2`; a missing dimension is 1. Raises ValueError."""
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = (word.strip() for word in part.partition("="))
            if name not in _MESH_DIMENSIONS or name in sizes:
                raise ValueError(f'"{text}" is not a mesh; write batch=2,model=2')
            if not (size.isascii() and size.isdigit() and 1 <= int(size[:9]) <= MOST_DEVICES):
                raise ValueError(f'"{text}": {name} must be a whole number from 1 to {MOST_DEVICES}')
            sizes[name] = int(size)
        return cls(**sizes)


@dataclass(frozen=True)
class StrategyChoice:
    """The options about the strategy. `strategy` None: the script chooses. `replicas` are logical CPU devices,
    `device` is CPU:0 or GPU:i (i counts the GPUs that the task sees), `tpu` is a name or an address."""

    strategy: Strategy | None = None
    replicas: int | None = None
    device: str | None = None
    tpu: str | None = None
    mesh: Mesh | None = None
    communication: Communication | None = None

    @property
    def is_one_process(self) -> bool:
        return self.strategy in ONE_PROCESS

    @property
    def starts_servers(self) -> bool:
        """Whether its tasks connect through TensorFlow servers. True for an unknown strategy of a script."""
        return not self.is_one_process

    def logical_cpus(self, clients: int) -> int | None:
        """Logical CPU devices of each of `clients` processes that compute on the CPU; None: TensorFlow's default."""
        if self.replicas is not None:
            return self.replicas
        return self.mesh.devices // clients if self.mesh is not None else None

    def __str__(self) -> str:
        """`mirrored: 2 logical CPU devices`"""
        parts = (
            self.replicas and counted(self.replicas, "logical CPU device"),
            self.device,
            self.tpu and f"TPU {self.tpu}",
            self.mesh and str(self.mesh),
            self.communication and f"communication {self.communication}",
        )
        details = ", ".join(word for word in parts if word)
        return f"{self.strategy}: {details}" if details else str(self.strategy)


def parse_strategy(text: str) -> Strategy:
    """Raises ValueError with the known names."""
    try:
        return Strategy(text.strip().lower().replace("_", "-"))
    except ValueError:
        meant = did_you_mean(text, Strategy, f"write {listed(tuple(Strategy))}")
        raise ValueError(f'"{text}" is not known; {meant}') from None


def parse_device(text: str) -> str:
    """Return `GPU:1` for `gpu:1` or `/device:GPU:1`. Raises ValueError."""
    found = _DEVICE.match(text.strip())
    if found is None:
        raise ValueError(f'"{text}" is not a device of one machine; {_device_meant(text)}')
    kind, index = found["kind"].upper(), int(found["index"])
    if kind == "CPU" and index:
        raise ValueError(f'"{text}": there is one CPU device, CPU:0, however many cores it has')
    return f"{kind}:{index}"


def _device_meant(text: str) -> str:
    kind, _, index = text.rpartition(":")
    near = nearest(kind, ("CPU", "GPU")) if index.isdecimal() else None
    return "write CPU:0 or GPU:1" if near is None else f'did you mean "{near}:{index}"?'


def example_strategy(choice: StrategyChoice, roles: Mapping[str, int]) -> StrategyChoice:
    """Return the choice for an example of orch, whose default strategy follows from the roles."""
    if choice.strategy is not None:
        return choice
    by_tasks = Strategy.PARAMETER_SERVER if roles.get(PS) else Strategy.MULTI_WORKER_MIRRORED
    return replace(choice, strategy=by_tasks)


def check_settings(choice: StrategyChoice) -> None:
    """Raise SettingMisfit for an option that the strategy does not use, or one that it needs and does not have."""
    for setting, users in _SETTING_OF.items():
        if getattr(choice, setting) is not None and choice.strategy not in users:
            names = " or ".join(users)
            given = choice.strategy or "a script without --strategy"
            raise SettingMisfit(
                setting,
                f"means {_MEANS[setting]}, which {given} does not use; add --strategy {names}, or leave it out",
            )
    if choice.replicas is not None and not 1 <= choice.replicas <= MOST_REPLICAS:
        raise SettingMisfit("replicas", f"must be between 1 and {MOST_REPLICAS}, not {choice.replicas}")
    if choice.strategy is Strategy.DTENSOR and choice.mesh is None:
        raise SettingMisfit("strategy", "dtensor needs a mesh; add --mesh batch=2,model=2")


def check_roles(choice: StrategyChoice, roles: Mapping[str, int]) -> None:
    """Raise SettingMisfit unless the strategy can run with these numbers of tasks by role."""
    strategy = choice.strategy
    if strategy is Strategy.PARAMETER_SERVER:
        _require_parameter_servers(roles)
    elif strategy is not None and roles.get(PS):
        raise SettingMisfit(
            "ps", f"{strategy} has no parameter servers; use --strategy parameter-server, or leave it out"
        )
    if strategy in ONE_PROCESS:
        _require_one_process(strategy, roles)
    if choice.mesh is not None:
        _require_whole_share(choice.mesh, roles)


def _require_parameter_servers(roles: Mapping[str, int]) -> None:
    for role, setting in ((WORKER, "workers"), (PS, "ps")):
        if not roles.get(role):
            raise SettingMisfit(setting, "parameter-server needs at least 1")
    if not roles.get(CHIEF):
        raise SettingMisfit(
            "chief", "parameter-server has a chief of its own, which coordinates the workers; leave it out"
        )


def _require_one_process(strategy: Strategy, roles: Mapping[str, int]) -> None:
    for role, setting in ((WORKER, "workers"), (CHIEF, "chief")):
        count, most = roles.get(role, 0), int(role == WORKER)
        if count > most:
            raise SettingMisfit(
                setting,
                f"{strategy} runs as one process, since {_WHY_ONE_PROCESS[strategy]};"
                f" {_instead(strategy, role, count)}",
            )


def _instead(strategy: Strategy, role: str, count: int) -> str:
    if role != WORKER:
        return "leave it out"
    if strategy in _SETTING_OF["replicas"]:
        return f"use --replicas {count}, or --strategy multi-worker-mirrored for {count} processes"
    return "leave it out, or use --strategy multi-worker-mirrored for several processes"


def _require_whole_share(mesh: Mesh, roles: Mapping[str, int]) -> None:
    others = [role for role in (CHIEF, EVALUATOR) if roles.get(role)]
    if others:
        raise SettingMisfit(others[0], "dtensor has only workers, all equal; leave it out")
    clients = roles.get(WORKER, 0)
    if not clients or mesh.devices % clients:
        fitting = [count for count in range(1, mesh.devices + 1) if mesh.devices % count == 0]
        raise SettingMisfit(
            "workers",
            f"the mesh {mesh} has {counted(mesh.devices, 'device')}, which"
            f" {counted(clients, 'process', 'processes')} cannot share equally;"
            f" use --workers {' or '.join(map(str, fitting[:6]))}, or another mesh",
        )
