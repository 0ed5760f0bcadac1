"""Writes the table of options in docs/cli.md from their declarations."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.request.settings.declaration import Option, Where
from orchestrator.request.settings.options import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BEGIN = "<!-- begin: written by scripts/tools/options -->\n"
END = "<!-- end -->\n"
_FLAG = re.compile(r"(?<![`\w-])--[a-z][a-z-]*")


def option_table() -> str:
    """Return the table of the options of `orch up` as Markdown, a heading row before each group."""
    lines = ["| option | means | default |", "|---|---|---|"]
    for group, options in GROUPS.items():
        lines.append(f"| **{group}** | | |")
        lines += [_row(option) for option in options if Where.COMMAND_LINE in option.where]
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    """Return the page with the current table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} has no line {END.strip()}")
    return f"{before}{BEGIN}\n{option_table()}\n{END}{after}"


def _row(option: Option) -> str:
    letter = f"`-{option.letter}`, " if option.letter else ""
    flag = f"{letter}`{option.usage}`"
    means = " ".join(filter(None, (option.help, option.more)))
    cells = (flag, _with_flags_as_code(means), _with_flags_as_code(option.default_text))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _with_flags_as_code(text: str) -> str:
    parts = text.split("`")
    return "`".join(part if at % 2 else _FLAG.sub(r"`\g<0>`", part) for at, part in enumerate(parts))


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
