"""What a forked task has of its interpreter's own making: words and variables other than those ordered."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_SEARCH_PATH = "PYTHONPATH"


class CannotFork(Exception):
    """Why a task must be started the ordinary way."""


class Surroundings:
    """This interpreter's command line, directory and environment as its start has left them.

    A `python` that is a shell script (a version manager's shim), or Python's site, changes what was ordered: both
    would do the same to a spawned task. To be made before anything is imported; takes what belongs to the preloader
    out of os.environ.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: interpreter and cwd as ordered, placeholder; inject_preloader and inject, the directories put in
        front of PYTHONPATH; pythonpath, what it was without them."""
        self.cwd: str = options["cwd"]
        self._ordered: list[str] = options["interpreter"]
        if sys.orig_argv[-1] != options["placeholder"]:
            raise CannotFork("its interpreter is a script that adds words to the command line")
        self.interpreter = sys.orig_argv[:-1]
        path = [
            entry
            for entry in os.environ.pop(_SEARCH_PATH, "").split(":")
            if entry != options["inject_preloader"]
        ]
        self._search_path = ":".join(path)
        own = [entry for entry in path if entry != options["inject"]]
        if own:
            os.environ[_SEARCH_PATH] = ":".join(own)
        elif options["pythonpath"] is not None:
            os.environ[_SEARCH_PATH] = options["pythonpath"]
        self._found = {name: value for name, value in os.environ.items() if name != _SEARCH_PATH}

    def words(self, argv: Sequence[str]) -> list[str]:
        """What follows the interpreter and its options; CannotFork if those are not this one's."""
        if list(argv[: len(self._ordered)]) != self._ordered:
            raise CannotFork("it runs under another interpreter, or with other options")
        return list(argv[len(self._ordered) :])

    def env(self, task: Mapping[str, str], ordered: Mapping[str, str]) -> dict[str, str]:
        """The environment that a task of environment `task` would find itself in, this interpreter having been
        started with `ordered`."""
        env = dict(task)
        for name in self._found.keys() | ordered.keys():
            found = self._found.get(name)
            if found == ordered.get(name) or name == _SEARCH_PATH:
                continue
            if found is None:
                env.pop(name, None)
            else:
                env[name] = found
        env[_SEARCH_PATH] = self._search_path
        return env
