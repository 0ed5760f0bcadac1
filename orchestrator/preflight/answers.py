"""The answers of worker/programs/inspect_host.py, checked, and the report that they make of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from orchestrator.core.job.hosts import Address, Host


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Done(_Answer):
    """`error`: why something could not be done there; None if it could."""

    error: str | None = None


class Ran(Done):
    """`error`: what the program wrote to stderr, or why it did not start (`code` is None)."""

    code: int | None = None
    out: str = ""


class Hashed(Done):
    sha256: str | None = None


class Held(Done):
    port: int | None = None


class Read(Done):
    found: bool = False


class Identity(_Answer):
    """`machine`: equal for two names of one host. `reached`: the address that the connection came to."""

    version: tuple[int, int, int]
    python: str
    machine: tuple[str, ...]
    addresses: Mapping[str, Address]
    reached: Address | None
    home: str
    temporary: str

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


class Answers(_Answer):
    """The answers to all questions so far; None or empty for one that was not asked."""

    run: tuple[Ran, ...] = ()
    hash: Mapping[str, Hashed] = field(default_factory=dict)
    directory: Done | None = None
    free: Mapping[str, int] = field(default_factory=dict)
    write: Done | None = None
    read: Read | None = None
    hold: Held | None = None
    reach: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostReport:
    """`error`: why the host could not be asked (anything further), a whole sentence; None if it answered."""

    host: Host
    error: str | None = None
    identity: Identity | None = None
    answers: Answers = field(default_factory=Answers)
