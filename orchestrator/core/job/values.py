"""The types of a job's values, with their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar

from pydantic import AfterValidator, PlainSerializer

from orchestrator.core.job.tf_config import ROLES, Role
from orchestrator.core.text.durations import check_duration

# Seconds. Hosts are asked every second, and a shorter break is not worth a lost run.
LEAST_LINK_TIMEOUT_S = 3.0
# The longest name of a network interface (IFNAMSIZ).
_INTERFACE = re.compile(r"[^\s/]{1,15}\Z")
_Value = TypeVar("_Value")
_SET_BY_ORCH = "TF_CONFIG"
_ORCH_PREFIX = "ORCH_"


def _plain_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a process")
    return text


def _checked_variable(name: str) -> str:
    _plain_text(name)
    if not name or "=" in name:
        raise ValueError(f'"{name}" is not the name of an environment variable')
    if name == _SET_BY_ORCH or name.startswith(_ORCH_PREFIX):
        raise ValueError(f"{name} is set by orch for each task and cannot be given; leave it out")
    return name


def checked_count(count: int) -> int:
    if count < 1:
        raise ValueError(f"must be at least 1, not {count}")
    return count


def between(least: int, most: int) -> AfterValidator:
    def check(number: int) -> int:
        if not least <= number <= most:
            raise ValueError(f"must be between {least} and {most:,}, not {number}")
        return number

    return AfterValidator(check)


def checked_timeout(seconds: float, no_limit: str = "leave it out") -> float:
    if seconds == 0:
        raise ValueError(f"a time-out of 0 would end the run at once; {no_limit} for no limit")
    return check_duration(seconds)


def _absolute(path: Path) -> Path:
    _plain_text(str(path))
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return path


def checked_link_timeout(seconds: float) -> float:
    if seconds < LEAST_LINK_TIMEOUT_S:
        raise ValueError(f"must be at least {LEAST_LINK_TIMEOUT_S:g}s, not {seconds:g}s")
    return check_duration(seconds)


def checked_interface(name: str) -> str:
    if not _INTERFACE.match(_plain_text(name)):
        raise ValueError(f'"{name}" is not the name of a network interface; write eth0 or ib0')
    return name


def checked_ssh(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0]:
        raise ValueError('names no program; write "ssh -F FILE", or leave it out')
    return words


def _module_name(name: str) -> str:
    if not name.isascii() or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f'"{name}" is not the name of a Python module; write numpy or scipy.linalg')
    return name


def frozen(table: Mapping[str, _Value]) -> Mapping[str, _Value]:
    return MappingProxyType(dict(table))


def _frozen_roles(roles: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType({role: roles[role] for role in ROLES if role in roles})


START_TIMEOUT = AfterValidator(partial(checked_timeout, no_limit="write off"))
Word = Annotated[str, AfterValidator(_plain_text)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
ModuleName = Annotated[str, AfterValidator(_module_name)]
Seconds = Annotated[float, AfterValidator(check_duration)]
Roles = Annotated[
    Mapping[Role, Annotated[int, AfterValidator(checked_count)]],
    AfterValidator(_frozen_roles),
    PlainSerializer(dict, return_type=dict[str, int]),
]
Environment = Annotated[
    Mapping[Annotated[str, AfterValidator(_checked_variable)], Word],
    AfterValidator(frozen),
    PlainSerializer(dict, return_type=dict[str, str]),
]
