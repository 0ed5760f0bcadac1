"""TF_CONFIG: the tasks of a TensorFlow cluster and their addresses, checked before anything starts.

core/plan/plan.py makes those of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestrator.core.text.nearest import did_you_mean, nearest

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
ROLES = (CHIEF, WORKER, PS, EVALUATOR)
SINGLE_ROLES = (CHIEF, EVALUATOR)
VARIABLE = "TF_CONFIG"
# The limit of execve for one variable with its name and its NUL (MAX_ARG_STRLEN).
MOST_BYTES = 128 << 10
# Bytes of a TF_CONFIG besides its addresses, rounded up.
_BESIDE_ADDRESSES = 256
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)\Z")
_MOST_DIGITS = 6
_TASK = re.compile(r"(?P<role>[a-z_]+)(:(?P<index>\d{1,6}))?\Z", re.ASCII)


def _known_role(role: str) -> str:
    if role not in ROLES:
        meant = did_you_mean(role, ROLES, f"known: {', '.join(ROLES)}")
        raise ValueError(f"{role!r} is not a task type of TF_CONFIG; {meant}")
    return role


def _host_and_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not _HOST.match(host):
        raise ValueError(f"{address!r} is not host:port")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{address!r}: the port must be 1 to 65535")
    return address


Role = Annotated[str, AfterValidator(_known_role)]
Address = Annotated[str, AfterValidator(_host_and_port)]


class TaskRef(BaseModel):
    """A task, by its type and index in TF_CONFIG. Its text is `worker:0`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    type: Role
    index: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskRef:
        """Read `worker:1`, `chief` (= chief:0), or an index for a worker. Raises ValueError."""
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return cls(type=WORKER, index=int(text))
        match = _TASK.match(text)
        if match is None or match["role"] not in ROLES:
            near = nearest_task(text)
            meant = (
                "write worker:0, chief, ps:1, evaluator or 0" if near is None else f'did you mean "{near}"?'
            )
            raise ValueError(f"{text!r} is not a task; {meant}")
        if match["index"] is None and match["role"] not in SINGLE_ROLES:
            raise ValueError(f"{text!r} names a role; which task? Write {text}:0")
        return cls(type=match["role"], index=int(match["index"] or 0))

    def among(self, roles: Collection[str]) -> TaskRef:
        """Return the task in a cluster of these roles. Without a separate chief, worker:0 is the chief."""
        if self.type == CHIEF and CHIEF not in roles:
            return TaskRef(type=WORKER, index=0)
        return self


def nearest_task(text: str) -> str | None:
    """Return the task that a word like `workr:1` probably means."""
    role, colon, index = text.partition(":")
    near = nearest(role, ROLES)
    if near is None or (colon and not (index.isascii() and index.isdigit() and len(index) <= _MOST_DIGITS)):
        return None
    return near if near in SINGLE_ROLES and not index else f"{near}:{index or 0}"


class ClusterSpec(BaseModel):
    """Addresses by role, in index order. No address is repeated; at most one chief and one evaluator."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    addresses: dict[Role, tuple[Address, ...]] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: dict[str, str] = {}
        for role, addresses in self.addresses.items():
            if not addresses:
                raise ValueError(f"role {role} has no address")
            if role in SINGLE_ROLES and len(addresses) > 1:
                raise ValueError(f"a cluster has at most one {role}, not {len(addresses)}")
            for index, address in enumerate(addresses):
                if address in seen:
                    raise ValueError(f"{address} is given twice: to {seen[address]} and {role}:{index}")
                seen[address] = f"{role}:{index}"
        return self

    def seen_by(self, role: str) -> ClusterSpec:
        """The cluster in the TF_CONFIG of a task of this role.

        The evaluator starts no server, and a coordinator would wait for it: only its own TF_CONFIG lists it."""
        if role == EVALUATOR or EVALUATOR not in self.addresses:
            return self
        seen = {each: those for each, those in self.addresses.items() if each != EVALUATOR}
        return self.model_copy(update={"addresses": seen})


class TFConfigTooLong(ValueError):
    """The TF_CONFIG of a cluster cannot be passed to a process; the text has the figures."""


def check_length(cluster: ClusterSpec) -> None:
    """Raise TFConfigTooLong if a task's TF_CONFIG is longer than a variable can be."""
    role, those = max(cluster.addresses.items(), key=lambda entry: len(entry[1]))
    longest = TFConfig(cluster=cluster, task=TaskRef(type=role, index=len(those) - 1))
    length = len(VARIABLE) + len("=") + len(longest.to_json().encode()) + len("\0")
    if length > MOST_BYTES:
        tasks = sum(map(len, cluster.addresses.values()))
        fewer = tasks * (MOST_BYTES - _BESIDE_ADDRESSES) // length
        raise TFConfigTooLong(
            f"TF_CONFIG of {tasks:,} tasks has {length:,} bytes, and Linux passes at most {MOST_BYTES:,} in one"
            f" variable: start fewer tasks, about {fewer:,}"
        )


class TFConfig(BaseModel):
    """The TF_CONFIG of one task, which must be in the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    cluster: ClusterSpec
    task: TaskRef

    @model_validator(mode="after")
    def _check(self) -> Self:
        addresses = self.cluster.addresses.get(self.task.type)
        if addresses is None:
            raise ValueError(f"task {self.task}: the cluster does not have its role")
        if self.task.index >= len(addresses):
            raise ValueError(f"task {self.task}: the cluster has only {len(addresses)} of {self.task.type}")
        return self

    def as_dict(self) -> dict[str, object]:
        """`{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}`."""
        cluster = {role: list(addresses) for role, addresses in self.cluster.addresses.items()}
        return {"cluster": cluster, "task": {"type": self.task.type, "index": self.task.index}}

    def to_json(self) -> str:
        return json.dumps(self.as_dict())
