"""The command line: `main` is what the `orch` command calls."""

from __future__ import annotations

from orchestrator.cli.app import main

__all__ = ["main"]
