# Python runs this before the script: it takes itself back out, then brings in the bootstrap.
#
# Read by whatever interpreter the command has, so it keeps to what every Python understands, and does nothing
# in one that is too old or of another kind. What comes after is what would have been found without it: the
# user's or the distribution's own sitecustomize, or none.
# ruff: noqa: PTH118, PTH120, RUF012, UP031
# mypy: ignore-errors


def _take_back():
    """Undo in os.environ, sys.path and the import system what brought this file here; the options, or None."""
    import os
    import sys

    here = os.path.dirname(__file__)
    text = os.environ.pop("ORCH_BOOTSTRAP", None)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    options = None
    if text is not None:
        try:
            options = _parse(text)
        except Exception:
            options = None
    if text is None and here not in os.environ.get("PYTHONPATH", "").split(":"):
        return None  # a subinterpreter: all has been taken back
    # The command may have put something of its own in front: only this directory is taken away.
    left = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry != here]
    original = options.get("pythonpath") if options else None
    if left:
        os.environ["PYTHONPATH"] = ":".join(left)
    elif original is not None:
        os.environ["PYTHONPATH"] = original
    else:
        os.environ.pop("PYTHONPATH", None)
    if options is None or sys.version_info < (3, 11) or sys.implementation.name != "cpython":
        return None
    return options


def _parse(text):
    """A JSON document. By the C scanner: the json package imports re, which costs more than all of the bootstrap."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)

    class Context:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        memo = {}
        parse_constant = float

    return make_scanner(Context)(text, 0)[0]


def _bring_in(options):
    import os
    import sys
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    package = os.path.dirname(os.path.dirname(__file__))
    spec = spec_from_file_location(
        "_orch_bootstrap",
        os.path.join(package, "__init__.py"),
        submodule_search_locations=[package],
    )
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    from _orch_bootstrap.install import install

    install(options)


def _start():
    import sys

    try:
        options = _take_back()
        if options is not None:
            _bring_in(options)
    except Exception:
        error = sys.exc_info()[1]
        try:
            sys.stderr.write("orch: the bootstrap failed: %s: %s\n" % (type(error).__name__, error))
        except Exception:
            pass


_start()

import sys  # noqa: E402

del sys.modules["sitecustomize"]
# Whatever this raises goes to Python's site module, which handles it as it would have done without orch: that there
# is no sitecustomize, too.
import sitecustomize  # noqa: E402, F401
