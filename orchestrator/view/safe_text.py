"""Paths, names and messages as a terminal may see them: none of it can steer the terminal (pure)."""

from __future__ import annotations

from orchestrator.runs.log_text import one_line

# In a log line a carriage return overwrites; in a path it is a character like any other, as a newline is.
_PICTURES = str.maketrans({"\n": "\u240a", "\r": "\u240d"})


def safe(text: str) -> str:
    """One line: control sequences taken out, other control characters as their pictures, tabs as they are."""
    return text if text.isprintable() else one_line(text.translate(_PICTURES))


def safe_lines(text: str) -> str:
    """The same for words of ours that may take several lines."""
    return text if text.isprintable() else "\n".join(safe(line) for line in text.split("\n"))
