"""The declaration of an option, and the names and texts that derive from it.

`orch --help` imports it, so it imports little. readers.py reads the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto

from orchestrator.core.text.durations import format_duration

VARIABLE_PREFIX = "ORCH_"


class Kind(Enum):
    """The types of values."""

    SWITCH = auto()
    CHOICE = auto()
    TEXT = auto()
    PATH = auto()
    WORDS = auto()
    WHOLE_NUMBER = auto()
    WORKERS = auto()  # a whole number or a range
    THREADS = auto()  # a whole number or auto
    DURATION = auto()
    LIMIT = auto()  # a duration or off
    SIZE = auto()
    GPU_MEMORY = auto()  # a size or grow
    ENVIRONMENT = auto()
    MODULES = auto()
    TASKS = auto()
    DEBUGGED = auto()  # tasks or all
    FAULTS = auto()
    STRATEGY = auto()
    DEVICE = auto()
    MESH = auto()
    GPUS = auto()
    HOSTS = auto()
    TIMESTAMPS = auto()  # a format of times, or a switch
    WARM = auto()  # a duration, or a switch
    WATCH = auto()  # a pattern of files, or a switch
    STEPS = auto()


_PLACEHOLDERS = {
    Kind.DURATION: "TIME",
    Kind.LIMIT: "TIME",
    Kind.WARM: "TIME",
    Kind.PATH: "DIR",
    Kind.SIZE: "SIZE",
    Kind.WHOLE_NUMBER: "N",
}
_UNITS = {Kind.DURATION: "_s", Kind.LIMIT: "_s", Kind.SIZE: "_bytes", Kind.WARM: "_s"}


class Part(Enum):
    """Which part of the request an option's value goes to."""

    JOB = auto()  # the field of JobSpec
    ROLES = auto()  # the numbers of tasks
    STRATEGY = auto()  # the field of StrategyChoice
    COMMAND = auto()  # the words of the command
    START = auto()  # the fields of CommandOptions and JobSpec
    DISPLAY = auto()  # the field of DisplayOptions; `orch config` does not have these options
    SCREEN = auto()  # the output of any verb


class Where(Flag):
    """Where an option may be set."""

    COMMAND_LINE = auto()
    KEYWORD = auto()  # of Cluster and Session
    VARIABLE = auto()
    FILE = auto()
    ROLE = auto()  # in a table [roles.*] of the file


ELSEWHERE = Where.KEYWORD | Where.VARIABLE | Where.FILE
EVERYWHERE = Where.COMMAND_LINE | ELSEWHERE
# About the screen and the background, which a run of Cluster does not have.
NOT_IN_PYTHON = EVERYWHERE & ~Where.KEYWORD


@dataclass(frozen=True)
class Option:
    """An option of `orch up`. The name `failure_grace` is the keyword in Python. It makes the flag --failure-grace, the
    variable ORCH_FAILURE_GRACE and the key failure-grace in orch.toml.

    `default` is a value, or words for the user. `bare` is the value of a flag without one: such a flag takes a value
    only after `=`. `role`: the option is the number of tasks of this role. `more` is Markdown that only the
    documentation shows.
    """

    name: str
    kind: Kind
    help: str
    metavar: str = ""
    letter: str = ""
    choices: Sequence[str] = ()
    bare: str = ""
    default: str | float | None = None
    where: Where = EVERYWHERE
    part: Part = Part.JOB
    role: str = ""
    more: str = ""

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        return f"{VARIABLE_PREFIX}{self.name.upper()}"

    @property
    def field(self) -> str:
        """The name of the field that the value goes to: the option's name with the unit."""
        return self.name + _UNITS.get(self.kind, "")

    @property
    def placeholder(self) -> str:
        """The placeholder of the value after the flag; empty for a switch."""
        return self.metavar or "|".join(self.choices) or _PLACEHOLDERS.get(self.kind, "")

    @property
    def usage(self) -> str:
        """`--name NAME`, `--timestamps[=iso]`, `--detach`"""
        if self.bare:
            return f"{self.flag}[={self.placeholder}]"
        return f"{self.flag} {self.placeholder}".rstrip()

    @property
    def default_text(self) -> str:
        if self.kind in (Kind.DURATION, Kind.LIMIT) and isinstance(self.default, float):
            return format_duration(self.default)
        return "" if self.default is None else str(self.default)

    @property
    def help_with_default(self) -> str:
        return f"{self.help} Default: {self.default_text}." if self.default_text else self.help

    @property
    def is_repeatable(self) -> bool:
        return self.kind in (Kind.ENVIRONMENT, Kind.MODULES)
