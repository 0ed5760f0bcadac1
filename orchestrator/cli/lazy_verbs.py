"""Imports the module of a verb when the verb is called: `orch --help` imports none of them, each verb only its own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from orchestrator.cli.parameters import Verb
from orchestrator.core.errors import UsageError
from orchestrator.core.text.nearest import nearest

# Verbs of other tools, and the verb of orch that does the same.
_VERB_MEANT: Mapping[str, str] = {
    **dict.fromkeys(("run", "start", "launch", "exec", "submit", "train"), "up"),
    **dict.fromkeys(("stop", "end", "cancel", "terminate"), "down"),
    **dict.fromkeys(("log", "tail", "cat", "output"), "logs"),
    **dict.fromkeys(("list", "runs"), "ls"),
    **dict.fromkeys(("show", "info", "inspect", "describe", "top"), "status"),
    **dict.fromkeys(("plan", "dry-run", "render"), "config"),
    **dict.fromkeys(("follow", "watch", "join"), "attach"),
    **dict.fromkeys(("rm", "remove", "delete", "clean", "cleanup", "gc"), "prune"),
    **dict.fromkeys(("check", "diagnose", "test"), "doctor"),
    **dict.fromkeys(("dump", "py-spy"), "stacks"),
    **dict.fromkeys(("dashboard", "web", "serve", "page", "gui"), "ui"),
    **dict.fromkeys(("preempt", "checkpoint", "evict"), "notice"),
    **dict.fromkeys(("metrics", "curves", "plot"), "history"),
}


class LazyVerb(TyperCommand):
    """`place` is "module.function" below orchestrator.cli; `settings` are those of the verb's click context."""

    def __init__(
        self,
        name: str,
        place: str,
        summary: str,
        *,
        hidden: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name=name, short_help=summary, hidden=hidden)
        self._place = place
        self._settings = settings

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._imported().make_context(info_name, args, parent, **extra)

    def _imported(self) -> Any:
        module, _, function = self._place.partition(".")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        command = app.command(self.name, cls=Verb, context_settings=self._settings)
        command(getattr(import_module(f"orchestrator.cli.{module}"), function))
        return get_command(app)


class VerbGroup(TyperGroup):
    """A command with the verbs of `verbs`, which a subclass sets. Another word is refused with the likely verb."""

    verbs: tuple[LazyVerb, ...] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {str(verb.name): verb for verb in self.verbs}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            self._refuse(word)
        return super().resolve_command(ctx, args)

    def _refuse(self, word: str) -> NoReturn:
        shown = [name for name, verb in self.commands.items() if not verb.hidden]
        if word.endswith(".py"):
            raise UsageError(f'"{word}" is not a verb; did you mean "orch up -- {word}"?')
        meant = _VERB_MEANT.get(word.lower()) or nearest(word, [*self.commands, *_VERB_MEANT])
        meant = _VERB_MEANT.get(meant or "", meant)
        if meant is None:
            raise UsageError(f'"{word}" is not a verb; the verbs are {", ".join(shown)}')
        raise UsageError(f'"{word}" is not a verb; did you mean "orch {meant}"?')
