"""The processes that are pretend machines, for the check of what a test leaves (tests/conftest.py)."""

from __future__ import annotations

# Children of this process that last longer than a test. The fixture `machines` checks what runs on them.
PROCESSES: set[int] = set()
