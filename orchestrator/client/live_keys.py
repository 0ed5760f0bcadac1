"""The keys of the live view: which task is shown, stacks, help, and detaching."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

from orchestrator.client.api import Run
from orchestrator.client.view.stacks import stack_lines
from orchestrator.client.view.terminal import View
from orchestrator.core.errors import OrchError
from orchestrator.store.runs.paths import RunPaths
from orchestrator.store.runs.reader import RunView

HINT = "? for keys"
RETURN_KEY = "i"
# Seconds without effect after any other key: the user may be typing the shell's next command, and "ls" contains an s.
_WORD_S = 1.0


class KeySource(Protocol):
    """`descriptors` are readable when a key is pressed; without a terminal there are none."""

    @property
    def descriptors(self) -> tuple[int, ...]: ...
    def read(self) -> str: ...


class NoKeys:
    """For output that is not a terminal."""

    descriptors: tuple[int, ...] = ()

    def read(self) -> str:
        return ""


class LiveKeys:
    """Acts on the pressed keys. `leave_keys` end the view and leave the run as it is."""

    def __init__(
        self, keys: KeySource, run: Run, view: View, leave_keys: str, *, stops: bool, terminal_of: str = ""
    ) -> None:
        """`stops`: Ctrl-C stops the run; otherwise it leaves the view, too. `terminal_of`: the task that a key connects
        the terminal to."""
        self._keys = keys
        self._run = run
        self._view = view
        self._leave_keys = leave_keys
        self._stops = stops
        self._terminal_of = terminal_of
        self._wants_terminal = False
        self._focus: str | None = None
        self._ignored_until = 0.0
        self._stacks: _StacksRequest | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self._keys.descriptors

    def handle(self) -> bool:
        """Act on the keys that were pressed. Return whether one of them leaves."""
        self._show_stacks()
        for key in self._keys.read().lower():
            now = time.monotonic()
            if now < self._ignored_until:
                self._ignored_until = now + _WORD_S
            elif key in self._leave_keys:
                return True
            elif key == "f":
                self._focus_next()
            elif key == RETURN_KEY and self._terminal_of:
                self._wants_terminal = True
            elif key == "s":
                self._ask_stacks()
            elif key == "?":
                self._view.say(f"orch: {self._help}")
            elif key.strip():
                self._ignored_until = now + _WORD_S
        return False

    def take_return(self) -> bool:
        """Whether the key was pressed that returns to the task with the terminal."""
        wanted, self._wants_terminal = self._wants_terminal, False
        return wanted

    @property
    def hint(self) -> str:
        """The text beside the run's state."""
        return HINT if self.descriptors else ""

    @property
    def _help(self) -> str:
        leave = f"{self._leave_keys[0]} leaves, and the run continues; " if self._leave_keys else ""
        interrupt = "Ctrl-C stops the run" if self._stops else "Ctrl-C leaves, too"
        if self._terminal_of:
            leave += f"{RETURN_KEY} returns to {self._terminal_of}; "
        return f"{leave}f shows one task or all; s shows the stacks of all tasks; {interrupt}"

    def _focus_next(self) -> None:
        """Show the next choice: all tasks, then the first alone, the second alone, and so on."""
        choices: list[str | None] = [None, *self._run.view.state.tasks]
        at = choices.index(self._focus) if self._focus in choices else 0
        self._focus = choices[(at + 1) % len(choices)]
        self._view.focus(self._focus)
        if self._focus is None:
            self._view.say("orch: showing all tasks")
        else:
            self._view.say(
                f"orch: showing {self._focus} only; `orch logs {self._focus}` has its earlier lines"
            )

    def _ask_stacks(self) -> None:
        if self._stacks is None:
            self._view.say("orch: asking all tasks for their stacks")
            self._stacks = _StacksRequest(self._run)

    def _show_stacks(self) -> None:
        if self._stacks is not None and self._stacks.lines is not None:
            for line in self._stacks.lines:
                self._view.say(line)
            self._stacks = None


class _StacksRequest:
    """Asks in a thread, since tasks may take seconds to answer. `lines` is None until then."""

    def __init__(self, run: Run) -> None:
        self.lines: list[str] | None = None
        threading.Thread(target=self._ask, args=(run.dir,), daemon=True).start()

    def _ask(self, directory: Path) -> None:
        lines = []
        try:
            # The reader of the view must not be used in two threads.
            view = RunView.open(RunPaths(directory))
            if view is not None:
                lines = stack_lines(Run(view).stacks(), None)
        except (OrchError, OSError) as error:
            lines = [f"orch: {error}"]
        self.lines = lines or ["orch: no task has answered"]
