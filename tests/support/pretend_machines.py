"""The processes of the pretend machines, which a test may leave behind (tests/conftest.py)."""

from __future__ import annotations

# Ids of child processes that live longer than a test. The fixture `machines` checks which processes are left on them.
PROCESSES: set[int] = set()
