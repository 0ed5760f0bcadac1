"""Makes this interpreter the preloader; in the tasks forked from it, goes on as a spawned task's start-up does."""

import os
import sys


def _serve() -> None:
    """Comes back in forked tasks only. Loaded by path: no module of the user's can stand in for it."""
    # Nothing may be imported before its importers are recorded: these two are there from the beginning.
    machinery, external = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]
    at_start = frozenset(sys.modules)
    here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 (pathlib is not to be imported yet)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    home = os.path.dirname(here)  # noqa: PTH120
    spec = external.spec_from_file_location(
        "_orch_bootstrap", f"{home}/__init__.py", submodule_search_locations=[home]
    )
    package = sys.modules[spec.name] = machinery.module_from_spec(spec)
    spec.loader.exec_module(package)
    from _orch_bootstrap.import_record import ImportRecord  # type: ignore[import-not-found]

    with ImportRecord(at_start) as record:
        from _orch_bootstrap.preloader import serve  # type: ignore[import-not-found]
    serve(record)


if "ORCH_PRELOAD" in os.environ:
    _serve()
    # What a spawned task's interpreter would have found here: the bootstrap's own, then the user's.
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
