"""The first exchange with another host: the program of stage 1, the bundle if the host lacks it, then agent frames.

worker/remote/stage1.py is the other end. Each of its answers is one line with a mark that it was given, so that a login
banner or the output of a start-up file is not taken for an answer.
"""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.links.bundle import Bundle

# The end of what a host prints before its first answer is kept, for the message if the start fails.
_MOST_OTHER_BYTES = 4096
_LONGEST_ANSWER_BYTES = 1 << 16
# It reads byte by byte, because what follows the line is for the next reader. All shells understand these quotes.
_STAGE_0 = "import sys;exec(sys.stdin.buffer.raw.readline())"


def remote_command(python: str) -> str:
    """The command for a host's shell. Everything else, also the program itself, is sent over its stdin."""
    return f"exec {shlex.quote(python)} -I -S -c '{_STAGE_0}'"


@dataclass(frozen=True)
class RemoteAgent:
    """Names the agent that a host is asked for. `host` is its name, for messages.

    The agent ends everything if nothing is heard of the orchestrator for `link_timeout_s`.
    """

    agent_id: str
    host: str
    link_timeout_s: float

    @classmethod
    def new(cls, host: str, link_timeout_s: float) -> RemoteAgent:
        return cls(secrets.token_hex(8), host, link_timeout_s)


class OpeningFailed(Exception):
    """The host cannot serve: the message is for the user."""


class AgentGone(OpeningFailed):
    """The agent and everything that it started have ended, and its files are removed."""


class Opening:
    """The exchange over one connection. Call feed() with what the host sends."""

    def __init__(self, bundle: Bundle, agent: RemoteAgent, is_first: bool) -> None:
        """`is_first`: start the agent. Otherwise the host only connects to it."""
        self._bundle = bundle
        self._mark = f"orch-{secrets.token_hex(8)} ".encode()
        self._received = b""
        self._other = b""
        parameters = {
            **asdict(agent),
            "mark": self._mark.decode(),
            "is_first": is_first,
            "bundle": bundle.digest,
            "bundle_bytes": len(bundle.data),
        }
        self.to_send = bundle.stage_1 + json.dumps(parameters).encode() + b"\n"

    @property
    def other_text(self) -> str:
        """The end of what the host has printed before the first answer."""
        rest = b"" if self._mark in self._received else self._received
        return (self._other + rest)[-_MOST_OTHER_BYTES:].decode(errors="replace").strip()

    def feed(self, data: bytes) -> bytes | None:
        """Return the first bytes of the agent once it is reached, else None. `to_send` then may have more to send.

        OpeningFailed.
        """
        self._received += data
        while (answer := self._take_answer()) is not None:
            match answer.get("state"):
                case "need":
                    self.to_send += self._bundle.data
                case "ready":
                    rest, self._received = self._received, b""
                    return rest
                case "gone":
                    raise AgentGone(str(answer.get("reason")))
                case _:
                    raise OpeningFailed(str(answer.get("reason")))
        return None

    def _take_answer(self) -> dict[str, Any] | None:
        before, mark, after = self._received.partition(self._mark)
        line, end, rest = after.partition(b"\n")
        if not mark or not end:
            if len(after) > _LONGEST_ANSWER_BYTES:
                raise OpeningFailed("the host sends an answer without an end")
            # The mark may be cut anywhere.
            kept = len(self._mark) - 1 if not mark else len(self._received) - len(before)
            self._keep_other(self._received[:-kept])
            self._received = self._received[-kept:]
            return None
        self._keep_other(before)
        self._received = rest
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise OpeningFailed("the host sends an answer that cannot be read")
        return answer

    def _keep_other(self, data: bytes) -> None:
        self._other = (self._other + data)[-_MOST_OTHER_BYTES:]
