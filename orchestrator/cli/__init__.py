"""The command line: `main` is what the `orch` command calls."""

from __future__ import annotations


def main() -> int:
    """Run the command line and return its exit code. Ctrl-C during the import shows no traceback either."""
    try:
        import sys

        from orchestrator.cli.early import early_supervisor

        with early_supervisor(sys.argv[1:]):
            from orchestrator.cli.app import run_to_exit

            return run_to_exit()
    except KeyboardInterrupt:
        return 130
