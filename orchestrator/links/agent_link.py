"""The supervisor's end of one agent's stream: messages of worker/wire as JSON lines."""

from __future__ import annotations

from orchestrator.links.stream import LinkBack, LinkSilent, Stream
from worker.wire.codec import BadMessage, encode
from worker.wire.messages import Begun, FromAgent, Hello, Run, ToAgent, decode_report

# Messages of an agent, and reports of its link about itself.
AgentMessage = FromAgent | LinkSilent | LinkBack


class AgentLink:
    """Neither reading nor writing blocks.

    Call read() when `fileno()` is readable, or at `due` (monotonic seconds; None: only when readable). send() returns
    False if the agent is gone; read() then returns the end of the stream, and `lost_reason` says why it ended if that
    is known.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._fault: str | None = None
        # What an agent sends before it has begun this run belongs to the run before.
        self._awaited_run: str | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def due(self) -> float | None:
        return self._stream.due

    @property
    def clock(self) -> tuple[float, float]:
        """The agent's monotonic clock minus ours, and the largest error of that: seconds."""
        return self._stream.clock

    @property
    def lost_reason(self) -> str | None:
        """Why the stream has ended; None if it is open, or ended without a known reason."""
        return self._fault or self._stream.lost_reason

    def leave(self) -> None:
        """Order the agent to end everything and to exit. read() returns the end of the stream when it has."""
        self._stream.leave()

    def close(self) -> None:
        """Close the stream. An agent on this machine then kills everything it started and exits."""
        self._stream.close()

    def serve(self, run: Run) -> bool:
        """Give a run to an agent that has none, or whose last run has ended. It can enter a private network but not
        leave it."""
        if not self._stream.is_open:
            return False
        self._awaited_run = run.run_id
        return self.send(run)

    def send(self, message: ToAgent) -> bool:
        return self.send_line(encode(message))

    def send_line(self, line: bytes) -> bool:
        """Send an encoded message, as one that goes to many agents."""
        return self._fault is None and self._stream.send(line)

    def read(self) -> tuple[list[AgentMessage], bool]:
        """Return (messages of the present run that have arrived, whether the stream is open).

        A message that cannot be read ends the stream; those before it are returned.
        """
        if self._fault is not None:
            return [], False
        messages: list[AgentMessage] = []
        try:
            lines, is_open = self._stream.read()
            for line in lines:
                message = decode_report(line) if isinstance(line, bytes) else line
                if isinstance(message, Begun):
                    if message.run_id == self._awaited_run:
                        self._awaited_run = None
                elif self._awaited_run is None or isinstance(message, Hello | LinkSilent | LinkBack):
                    messages.append(message)
        except ValueError as error:
            what = f": {error}" if isinstance(error, BadMessage) else f" ({error})"
            self._fault = f"the agent sent a message that this version cannot read{what}"
            is_open = False
        return messages, is_open
