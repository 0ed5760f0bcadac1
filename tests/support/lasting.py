"""Processes that outlive tests: those of the pretend machines, and kept agents (tests/conftest.py)."""

from __future__ import annotations

# Ids of child processes of this one. Their fixtures check what a test leaves below them.
LASTING: set[int] = set()
