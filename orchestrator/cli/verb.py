"""A verb's usage line: its arguments stand there as their metavars have them, brackets and all."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Verb(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = (param for param in self.params if param.param_type_name == "argument")
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]
