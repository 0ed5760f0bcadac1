"""The command line: `main` is what the `orch` command calls."""

from __future__ import annotations


def main() -> int:
    """Run the command line and return its exit code. Ctrl-C during the import shows no traceback either."""
    try:
        import sys

        _import_own_worker()
        from orchestrator.cli.early import early_supervisor

        with early_supervisor(sys.argv[1:]):
            from orchestrator.cli.app import run_to_exit

            return run_to_exit()
    except KeyboardInterrupt:
        return 130


def _import_own_worker() -> None:
    """Import orch's package `worker`, also if a directory of PYTHONPATH has a module of that name, as many projects do.
    Tasks are other processes: they find the user's."""
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    own = Path(__file__).parents[2] / "worker"
    spec = spec_from_file_location("worker", own / "__init__.py", submodule_search_locations=[str(own)])
    assert spec is not None and spec.loader is not None
    sys.modules["worker"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["worker"])
