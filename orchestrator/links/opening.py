"""The opening of a link to another host: it sends stage 1, its parameters and the bundle, and gets one answer.

worker/agent/stage1.py is the other end. Its answer is one line with a mark that it was given, so that a login banner or
the output of a start-up file is not taken for an answer.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex

from orchestrator.links.bundle import bundle

# The end of what a host prints before its answer is kept, for the message if the start fails.
_MOST_OTHER_BYTES = 4096
_LONGEST_REASON = 1000
# Limit on what a host prints before its answer.
_MOST_PRINTED_BYTES = 4 << 20
ENDLESS = "it prints without end; correct what its login files (.bashrc) do without a terminal"
# It reads byte by byte, because the bytes after the line are for the next reader. All shells understand these quotes.
_STAGE_0 = "import sys;exec(sys.stdin.buffer.raw.readline())"


def remote_command(python: str) -> str:
    """The command for a host's shell. Everything else, also the program itself, is sent over its stdin."""
    return f"exec {shlex.quote(python)} -I -S -c '{_STAGE_0}'"


class OpeningFailed(Exception):
    """The host cannot serve: the message is for the user."""


class Opening:
    """The exchange with one host. Call take() with each line that it sends until that returns True."""

    def __init__(self, run_id: str, host: str, link_timeout_s: float) -> None:
        """`agent` names run and host: an earlier agent of that name is ended first.

        The new one ends everything if the supervisor does not answer for `link_timeout_s`."""
        self._mark = f"orch-{secrets.token_hex(8)} ".encode()
        self._other = b""
        self._printed_bytes = 0
        self.agent = hashlib.sha256(f"{run_id}/{host}".encode()).hexdigest()[:16]
        self._link_timeout_s = link_timeout_s

    @property
    def header(self) -> bytes:
        """The bytes that are sent before the bundle."""
        parameters = {
            "mark": self._mark.decode(),
            "agent": self.agent,
            "link_timeout_s": self._link_timeout_s,
            "bundle_bytes": len(bundle().data),
        }
        return bundle().stage_1 + json.dumps(parameters).encode() + b"\n"

    @property
    def other_text(self) -> str:
        """The end of what the host has printed before its answer."""
        return self._other.decode(errors="replace").strip()

    def keep_other(self, data: bytes) -> None:
        """Keep output of the host that is not its answer."""
        self._other = (self._other + data)[-_MOST_OTHER_BYTES:]

    def take(self, line: bytes) -> bool:
        """Return whether the lines after this one are those of the agent. OpeningFailed."""
        before, mark, text = line.partition(self._mark)
        self.keep_other(before if mark else line + b"\n")
        if not mark:
            self._printed_bytes += len(line) + 1
            if self._printed_bytes > _MOST_PRINTED_BYTES:
                raise OpeningFailed(ENDLESS)
            return False
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise OpeningFailed("the host sends an answer that cannot be read")
        if answer.get("state") != "ready":
            # JSON can have surrogates, which cannot be written anywhere.
            raise OpeningFailed(str(answer.get("reason")).encode(errors="replace").decode()[:_LONGEST_REASON])
        return True
