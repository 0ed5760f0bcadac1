"""The hosts of a run as the user lists them: their text, and which options fit to them (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict

from orchestrator.core.job.choices import EngineName, NetworkOption
from orchestrator.core.job.roles import MOST_TASKS
from orchestrator.core.job.strategy import SettingMisfit
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.nearest import did_you_mean

if TYPE_CHECKING:
    from orchestrator.core.job.spec import JobSpec

MOST_HOSTS = MOST_TASKS
# A comment line of a hosts file, or the rest of a line after a blank.
_COMMENT = re.compile(r"(^|\s)#.*")
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
# A name of ssh_config, a DNS name or an IPv4 address. It never begins like an option of ssh.
_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?"
_IPV6 = r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?"
_HOST = re.compile(
    rf"((?P<user>{_USER})@)?(\[(?P<ipv6>{_IPV6})\]|(?P<name>{_NAME}))(:(?P<slots>[0-9]{{1,9}}))?\Z"
)
_PLAIN_IPV6 = re.compile(rf"({_USER}@)?[0-9A-Fa-f]{{0,4}}:[0-9A-Fa-f:.]{{0,45}}:[0-9A-Fa-f:.]{{0,45}}\Z")
# sbatch would wait for the end of its job. --no-shell is an option of salloc only.
_ENDLESS = re.compile(r"--no-shell|--wait(=.*)?|-W.*", re.DOTALL)
_HOW = "write a host such as node1, user@node1 or node1:4 (4 tasks)"


def _checked_address(text: str) -> str:
    return str(ip_address(text))


# An IP address that a host reports.
Address = Annotated[str, AfterValidator(_checked_address)]


def _checked_slots(slots: int) -> int:
    if not 1 <= slots <= MOST_TASKS:
        raise ValueError(f"a host has 1 to {MOST_TASKS:,} slots, not {slots:,}")
    return slots


class Host(BaseModel):
    """A host of a run. `destination` is what ssh connects to (`user@name`). `slots` is the number of tasks that it
    takes, None if none was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    destination: str
    slots: Annotated[int, AfterValidator(_checked_slots)] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `node1`, `user@node1:4` or `[fd00::1]:4`. Raises ValueError."""
        found = _HOST.match(text)
        if found is None:
            raise ValueError(f'"{_shortened(text)}" is not a host; {_correction(text)}')
        name = found["ipv6"] or found["name"]
        slots = None if found["slots"] is None else int(found["slots"])
        if slots is not None and not 1 <= slots <= MOST_TASKS:
            raise ValueError(f'"{text}": a host has 1 to {MOST_TASKS:,} slots, not {slots:,}')
        return cls(name=name, destination=f"{found['user']}@{name}" if found["user"] else name, slots=slots)

    def __str__(self) -> str:
        """The text that parse() reads."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        text = self.destination.removesuffix(self.name) + name
        return text if self.slots is None else f"{text}:{self.slots}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:76]} ..."


def _correction(text: str) -> str:
    if text.startswith("ssh://"):
        return "write user@node1, and put the port into ~/.ssh/config"
    if _PLAIN_IPV6.match(text):
        user, at, address = text.rpartition("@")
        return f"write an IPv6 address in brackets: {user}{at}[{address}]"
    name, _, rest = text.partition(" ")
    if found := re.search(r"\bslots=(\d+)", rest):
        return f"write {name}:{found[1]}"
    return _HOW


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `a,b:2,user@c:4`. Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not any(words):
        raise ValueError("no host is named; write a:2,b:2, or the path of a file with one host a line")
    if "" in words:
        raise ValueError(f'"{_shortened(text)}" has an empty name; {_HOW}')
    return distinct(map(Host.parse, words))


def parse_hosts_file(text: str, file: str) -> tuple[Host, ...]:
    """Read one host a line; `#` begins a comment. Raises ValueError, which names the file and the line."""
    hosts: dict[str, int] = {}
    found: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = _COMMENT.sub("", line).strip()
        if not word:
            continue
        try:
            host = Host.parse(word)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
        if host.name in hosts:
            raise ValueError(f"{file}, line {number}: {host.name} is in line {hosts[host.name]} already")
        hosts[host.name] = number
        found.append(host)
    if not found:
        raise ValueError(f"{file}: no host is named; write one host a line")
    return distinct(found)


def distinct(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts; ValueError if one is named twice, or if there are too many."""
    by_name: dict[str, Host] = {}
    for host in hosts:
        if host.name in by_name:
            raise ValueError(
                f"{host.name} is named twice; name it once, with its number of tasks: {host.name}:2"
            )
        by_name[host.name] = host
    if len(by_name) > MOST_HOSTS:
        raise ValueError(f"a run has at most {MOST_HOSTS:,} hosts, not {len(by_name):,}")
    return tuple(by_name.values())


def check_role_hosts(wanted: Mapping[str, tuple[str, ...]], hosts: Iterable[Host]) -> None:
    """Raise ValueError if a role names a host that the run does not have."""
    known = [host.name for host in hosts]
    for role, names in wanted.items():
        for name in names:
            if name not in known:
                meant = did_you_mean(name, known, f"it has {', '.join(known) or 'none: add --hosts'}")
                raise ValueError(f"{role}: {name} is not a host of the run; {meant}")


def check_engine(spec: JobSpec) -> None:
    """Raise SettingMisfit if options contradict the run's hosts or the lack of them."""
    for setting, reason in _misfits(spec):
        raise SettingMisfit(setting, reason)


def _misfits(spec: JobSpec) -> Iterator[tuple[str, str]]:
    is_slurm = spec.engine is EngineName.SLURM
    if not spec.hosts and not is_slurm:
        if spec.engine is EngineName.SSH:
            yield "engine", "ssh needs hosts: add --hosts a:2,b:2"
        return
    if is_slurm and spec.sync:
        yield (
            "sync",
            "it copies over ssh; under Slurm the directory must be on a file system that all nodes have",
        )
    if is_slurm and spec.hosts and spec.slurm_job is None:
        yield "hosts", 'Slurm chooses the hosts; write --nodes, or --slurm "--nodelist=n1,n2"'
    if spec.engine is EngineName.LOCAL:
        yield (
            "engine",
            "local runs all tasks on this machine, which contradicts --hosts; leave one of them out",
        )
    if is_slurm and (word := next(filter(_ENDLESS.fullmatch, spec.slurm), None)):
        yield (
            "slurm",
            f"{word}: orch has to learn when the allocation begins, and to end it; leave this option out",
        )
    if is_slurm and spec.time_s is not None and spec.time_s <= spec.notice_s:
        yield (
            "time",
            f"{format_duration(spec.time_s)} is not longer than --notice {format_duration(spec.notice_s)}, the time"
            " before the end at which the tasks are told to end; give more time, or a shorter --notice",
        )
    here_only = f"leave it out, or leave out {'--engine slurm' if is_slurm else '--hosts'}"
    if spec.network is NetworkOption.PRIVATE:
        yield (
            "network",
            "a private network exists on one machine only, and tasks on several hosts could not reach each other;"
            f" {here_only}",
        )
    if spec.profile is not None:
        yield (
            "profile",
            f"it reads the recordings on this machine, and tasks write theirs on their hosts; {here_only}",
        )
    if spec.tensorboard is not None:
        yield (
            "tensorboard",
            f"it reads the event files on this machine, and tasks write theirs on their hosts; {here_only}",
        )
