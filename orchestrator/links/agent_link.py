"""The supervisor's end of the stream to one agent: messages of worker/wire as JSON lines."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from worker.wire.codec import BadMessage, encode
from worker.wire.messages import Begun, FromAgent, Hello, Run, ToAgent, decode_report
from worker.wire.stream import Stream


@dataclass(frozen=True)
class LinkSilent:
    """The agent of another host has confirmed nothing for this long. Its tasks may run on."""

    seconds: float


@dataclass(frozen=True)
class LinkBack:
    """The agent of a silent host answers again. No message was lost."""

    seconds: float


# The interval of tick() (seconds).
TICK_S = 0.5
# Messages of an agent, and reports of its link about itself.
AgentMessage = FromAgent | LinkSilent | LinkBack


class AgentLink:
    """The link to the agent of this machine, over a socket that it owns. Neither reading nor writing blocks.

    Call read() when `fileno()` is readable. send() returns False if the agent is gone; read() then returns the end of
    the stream, and `lost_reason` says why it ended if that is known. `clock`: the agent's monotonic clock minus ours,
    and the largest error of that (seconds).
    """

    def __init__(self, connected: socket.socket) -> None:
        self.lost_reason: str | None = None
        self.clock = (0.0, 0.0)
        self._is_open = True
        # A common descriptor for both directions, so that the owner only waits until it is readable.
        self._poller = select.epoll()
        self._socket: socket.socket | None = connected
        self._stream: Stream | None = Stream(connected.fileno(), connected.fileno(), self._poller, connected)
        # The run that the agent has not begun yet. Messages before its Begun belong to the run before.
        self._awaited_run: str | None = None

    def fileno(self) -> int:
        return self._poller.fileno()

    def tick(self, now: float) -> bool:
        """Call this each TICK_S. Return whether read() has something to return although nothing has arrived."""
        return not self._is_open

    def leave(self) -> None:
        """Send the end of the stream: the agent then ends everything and exits, and read() returns the end."""
        if self._stream is not None:
            self._stream.half_close()

    def close(self) -> None:
        """Close the stream. The agent then kills everything it started and exits."""
        if self._stream is not None and self._socket is not None:
            self._stream.close()
            self._socket.close()
            self._stream = self._socket = None
        self._poller.close()

    def serve(self, run: Run, descriptors: Sequence[int] = ()) -> bool:
        """Give a run to an agent that has none, or whose last run has ended. The agent can enter a private network
        but not leave it. `descriptors`: those that the run names."""
        if self._stream is not None and not self._stream.is_open:
            return False
        self._awaited_run = run.run_id
        return self.send_line(encode(run), descriptors)

    def send(self, message: ToAgent) -> bool:
        return self.send_line(encode(message))

    def send_line(self, line: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send a message that is encoded already, such as one for many agents."""
        return self._is_open and self._stream is not None and self._stream.send(line, descriptors)

    def read(self) -> tuple[list[AgentMessage], bool]:
        """Return (messages of the present run that have arrived, whether the stream is open).

        A message that cannot be read ends the stream; those before it are returned.
        """
        messages: list[AgentMessage] = []
        if self._is_open and self._stream is not None:
            try:
                lines, is_open = self._stream.read()
                for line in lines:
                    self._take_line(line, messages)
            except BadMessage as error:
                self._end(self._why_unreadable(error))
            else:
                if not is_open:
                    self._take_end()
        return messages, self._is_open

    def _take_line(self, line: bytes, messages: list[AgentMessage]) -> None:
        self._take(decode_report(line), messages)

    def _take(self, message: FromAgent, messages: list[AgentMessage]) -> None:
        """Add a message to `messages` if it is one for the owner."""
        if isinstance(message, Begun):
            if message.run_id == self._awaited_run:
                self._awaited_run = None
        elif self._awaited_run is None or isinstance(message, Hello):
            messages.append(message)

    def _why_unreadable(self, error: BadMessage) -> str:
        return f"the agent sent a message that this version cannot read: {error}"

    def _take_end(self) -> None:
        """The other end has closed the stream."""
        self._is_open = False

    def _end(self, reason: str | None) -> None:
        self._is_open = False
        self.lost_reason = self.lost_reason or reason
