"""A client of the Debug Adapter Protocol, as VS Code is one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from waiting import PATIENCE_S


class DapClient:
    """Attached to a debugger that listens on 127.0.0.1. Leaving the `with` closes the connection without a request, and
    the program continues."""

    def __init__(self, port: int) -> None:
        self._stream = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._file = self._stream.makefile("rb")
        self._sent = 0
        self._waiting: list[dict[str, Any]] = []

    def __enter__(self) -> DapClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._stream.close()

    def attach(self, file: Path, *lines: int) -> None:
        """Attach, with breakpoints at these lines."""
        self.request("initialize", adapterID="test", pathFormat="path")
        attached = self._send("attach", justMyCode=True)
        self.event("initialized")
        points = [{"line": line} for line in lines]
        self.request("setBreakpoints", source={"path": str(file)}, breakpoints=points)
        self.request("configurationDone")
        self._answer(attached)

    def stopped(self) -> int:
        """Wait until the program stops at a breakpoint; return the thread."""
        thread: int = self.event("stopped")["threadId"]
        return thread

    def evaluate(self, thread: int, expression: str) -> str:
        """The value of an expression in the innermost frame of a stopped thread."""
        frame = self.request("stackTrace", threadId=thread)["stackFrames"][0]["id"]
        value: str = self.request("evaluate", expression=expression, frameId=frame)["result"]
        return value

    def resume(self, thread: int) -> None:
        self.request("continue", threadId=thread)

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer(self._send(command, **arguments))

    def event(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = self._take(lambda message: message.get("event") == name).get("body", {})
        return body

    def _send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._stream.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return self._sent

    def _answer(self, number: int) -> dict[str, Any]:
        answer = self._take(lambda message: message.get("request_seq") == number)
        assert answer["success"], answer
        body: dict[str, Any] = answer.get("body") or {}
        return body

    def _take(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that is wanted, and keep the others for later."""
        for message in self._waiting:
            if is_wanted(message):
                self._waiting.remove(message)
                return message
        while True:
            message = self._read()
            if is_wanted(message):
                return message
            self._waiting.append(message)

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            length = int(line.partition(b":")[2]) if line.lower().startswith(b"content-length") else length
        assert length, "the debugger has closed the connection"
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message
