"""Turns declared options into parameters of verbs. Options of `up` are declared in request/settings/options.py."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import islice, takewhile
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from orchestrator.cli.completion import log_words, run_words
from orchestrator.core.errors import UsageError
from orchestrator.core.text.nearest import did_you_mean, listed
from orchestrator.request.settings.declaration import Kind, Option, Part, Where
from orchestrator.request.settings.options import (
    AS_ROOT_ANYWAY,
    COLOR,
    GROUPS,
    JSON,
    QUIET,
    SETTINGS,
    UP_OPTIONS,
    VERBOSE,
)
from orchestrator.request.settings.request import ColorMode, TimeFormat

_Function = TypeVar("_Function", bound=Callable[..., object])
_Value = TypeVar("_Value")


def flag(option: Option, group: str | None = None) -> Any:
    """Return a declared option for typer. `group` is its heading in the help."""
    letter = [f"-{option.letter}"] if option.letter else []
    return typer.Option(
        option.flag,
        *letter,
        metavar=f"[={option.placeholder}]" if option.bare else option.placeholder or None,
        help=option.help_with_default,
        show_default=False,
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
        rich_help_panel=group,
    )


def takes_options(*parts: Part) -> Callable[[_Function], _Function]:
    """Let a verb take the declared options of these parts, by groups, as its keyword arguments."""

    def decorate(verb: _Function) -> _Function:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        declared = [
            _parameter(option, group)
            for group, options in GROUPS.items()
            for option in options
            if option.part in parts and Where.COMMAND_LINE in option.where
        ]
        parameters = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
        verb.__signature__ = inspect.Signature([*parameters, *declared])  # type: ignore[attr-defined]
        return verb

    return decorate


def _parameter(option: Option, group: str) -> inspect.Parameter:
    info = flag(option, group)
    annotation: Any = Annotated[str | None, info]
    if option.kind is Kind.SWITCH:
        annotation = Annotated[bool, info]
    elif option.is_repeatable:
        annotation = Annotated[list[str] | None, info]
    default = False if option.kind is Kind.SWITCH else None
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


class Verb(TyperCommand):
    """A verb whose usage line shows its arguments, and whose help shows its options by groups.

    typer's own notes, such as the Python type or `[x>=0]`, are left out.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = _with_values(args, self.params, interspersed=ctx.allow_interspersed_args)
        return super().parse_args(ctx, list(words))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = (param for param in self.params if param.param_type_name == "argument")
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((str(param.metavar), getattr(param, "help", "")))
            elif (record := param.get_help_record(ctx)) is not None:
                heading = getattr(param, "rich_help_panel", "") or "Options"
                forms = record[0].replace(" [=", "[=")
                sections.setdefault(heading, []).append((forms, getattr(param, "help", "")))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _with_values(words: Iterable[str], params: Iterable[Any], *, interspersed: bool) -> Iterator[str]:
    """Yield the words of a verb; a flag with an optional value, such as --timestamps[=iso], gets its value if it has
    none. typer only knows flags that always or never have one."""
    valued = {form for param in params if not getattr(param, "is_flag", False) for form in param.opts}
    # `orch status --watch` never has a value.
    bare = {
        form: option
        for option in UP_OPTIONS
        if option.bare
        for form in (option.flag, *([f"-{option.letter}"] if option.letter else []))
        if form in valued
    }
    valued -= bare.keys()
    rest = iter(words)
    for word in rest:
        if word == "--" or not (interspersed or word.startswith("-")):
            yield word
            break
        forms = [word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]]
        # The first letter that takes a value takes the rest of the word or, if it is the last, the next word.
        own = list(takewhile(lambda form: form not in valued, forms))
        found = next((form for form in own if form in bare), None) if word.startswith("-") else None
        if found is None:
            yield word
        else:
            yield f"{bare[found].flag}={bare[found].bare}"
            others = word[1:].replace(found[1:], "", 1) if len(forms) > 1 else ""
            yield from ([f"-{others}"] if others else [])
        if word.startswith("-") and len(own) == len(forms) - 1:
            yield from islice(rest, 1)
    yield from rest


JsonOut = Annotated[bool, flag(JSON)]
Color = Annotated[str | None, flag(COLOR)]
Quiet = Annotated[bool, flag(QUIET)]
Verbose = Annotated[bool, flag(VERBOSE)]
AsRootAnyway = Annotated[bool, flag(AS_ROOT_ANYWAY)]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        autocompletion=run_words,
        help="A run's id, its beginning, or a name. Default: this directory's newest live run, else its newest.",
        show_default=False,
    ),
]
Timestamps = Annotated[str | None, flag(SETTINGS["timestamps"])]
NoPrefix = Annotated[bool, typer.Option("--no-prefix", help="Lines without `worker:0 | `.")]
Everywhere = Annotated[bool, typer.Option("--all", "-a", help="Also the runs of other directories.")]


def run_and_tasks_argument(what: str) -> Any:
    """Return the words that name a run and some of its tasks, for typer. `what` is what is shown of them."""
    return typer.Argument(
        metavar="[RUN] [TASK...]",
        autocompletion=log_words,
        help=f"A run (default: this directory's newest), and whose {what}: worker:0, chief, or 0.",
        show_default=False,
    )


def read_option(flag: str, text: str | None, read: Callable[[str], _Value]) -> _Value | None:
    """Return the value of an option, None if it was not given; UsageError with the flag if `read` refuses it."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def time_format(timestamps: str | None) -> TimeFormat | None:
    """Return the format of --timestamps, None without it."""
    return read_option("--timestamps", timestamps, TimeFormat.parse)


@dataclass(frozen=True)
class Screen:
    """The options about output, given before or after the verb."""

    json: bool = False
    color: str | None = None
    quiet: bool = False
    verbose: bool = False


_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_SCREEN_PARAMETERS = tuple(
    _parameter(option, "Options") for option in (JSON, COLOR, QUIET, VERBOSE, AS_ROOT_ANYWAY)
)


def takes_screen(verb: Callable[..., int]) -> Callable[..., int]:
    """Let a verb take the options about output, which it gets as the argument `screen`."""

    @wraps(verb)
    def command(context: typer.Context, **given: Any) -> int:
        screen = screen_of(context, *(given.pop(one.name) for one in _SCREEN_PARAMETERS))
        return verb(screen=screen, **given)

    own = inspect.signature(verb, eval_str=True).parameters
    parameters = [*(one for name, one in own.items() if name != "screen"), _CONTEXT, *_SCREEN_PARAMETERS]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def screen_of(
    context: typer.Context,
    json: bool = False,
    color: str | None = None,
    quiet: bool = False,
    verbose: bool = False,
    as_root_anyway: bool = False,
) -> Screen:
    """Return the verb's own options together with those given before it. --as-root-anyway takes effect."""
    if as_root_anyway:
        from orchestrator.store.runs.paths import accept_owner_of_state

        accept_owner_of_state()
    before = context.obj if isinstance(context.obj, Screen) else Screen()
    screen = Screen(
        json or before.json, color or before.color, quiet or before.quiet, verbose or before.verbose
    )
    color_mode(screen)  # refuses a wrong word, whether or not the verb uses colours
    return screen


def color_mode(screen: Screen) -> ColorMode:
    """Return --color, else ORCH_COLOR, else auto."""
    word = screen.color or ("" if os.environ.get("ORCH_RUN_ID") else os.environ.get(COLOR.variable, ""))
    if not word:
        return ColorMode.AUTO
    if word not in set(ColorMode):
        source = COLOR.flag if screen.color else COLOR.variable
        meant = did_you_mean(word, ColorMode, f"write {listed(tuple(ColorMode))}")
        raise UsageError(f'{source}: "{word}" is not known; {meant}')
    return ColorMode(word)
