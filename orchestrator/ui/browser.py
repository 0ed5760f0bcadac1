"""The feed of one browser: the messages that bring it from the state that it has to the newest one.

A state is a version of the document's parts and a cursor in the lines. Only the newest values are sent, so that a slow
browser misses none and delays no other one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.client.page.pieces import json_list, json_object
from orchestrator.ui.log_pieces import Cursor

if TYPE_CHECKING:
    from orchestrator.ui.hub import Hub

# Something is sent at least so often, so that a dead connection is noticed.
_HEARTBEAT_S = 15.0
# A large part is sent so rarely that it takes at most this many bytes a second.
LARGE_BYTES, _PART_BYTES_PER_S = 100_000, 200_000


class State(NamedTuple):
    """The state of a browser. `hub`: versions of another hub mean something else."""

    hub: int
    version: int
    cursor: Cursor

    @classmethod
    def parse(cls, text: str) -> State:
        """ValueError if it is not a state."""
        hub, version, cursor = text.split(".")
        return cls(int(hub), int(version), Cursor.parse(cursor))

    def __str__(self) -> str:
        return f"{self.hub}.{self.version}.{self.cursor}"


class Reader:
    """The state of one browser, and the messages that it gets next."""

    def __init__(self, hub: Hub, state: State, *, is_resumed: bool) -> None:
        self._hub = hub
        self._state = state
        # Large parts that wait: the version that the browser has. It is not known after an interruption.
        self._versions: dict[str, int] = dict.fromkeys(hub.large_parts() if is_resumed else (), -1)
        self._sent: dict[str, float] = {}
        self.pause_s = _HEARTBEAT_S

    @property
    def can_continue(self) -> bool:
        state = self._state
        return (
            state.hub == self._hub.name
            and state.version <= self._hub.version
            and self._hub.has_points_after(state.version)
        )

    async def messages(self) -> AsyncIterator[bytes]:
        is_behind = self._state.version < self._hub.version or self._versions
        if is_behind and (fields := self._changed()):
            yield event("change", json_object(fields), self._state)
        while self._state.cursor < self._hub.cursor:
            batch = self._hub.batch_after(self._state.cursor)
            if batch is not None:
                self._state = self._state._replace(cursor=batch.end)
                if batch.rows:
                    yield event("lines", batch.rows, self._state)
                continue
            until = self._hub.cursor._replace(is_end=False)
            if self._state.cursor >= until:
                break
            async for cursor, rows in self._hub.catch_up(self._state.cursor, until):
                self._state = self._state._replace(cursor=cursor)
                yield event("lines", rows, self._state)
            self._state = self._state._replace(cursor=until)

    def _changed(self) -> list[tuple[str, bytes]]:
        """Return the fields that are newer, and count them as sent. A large part waits until it is due."""
        version, now = self._state.version, time.monotonic()
        fields: list[tuple[str, bytes]] = []
        self.pause_s = _HEARTBEAT_S
        later: dict[str, int] = {}
        for name, part in self._hub.parts_after(self._versions, version):
            is_large = len(part.data) > LARGE_BYTES
            due = self._sent.get(name, 0.0) + len(part.data) / _PART_BYTES_PER_S
            if is_large and now < due:
                later[name] = self._versions.get(name, version)
                self.pause_s = min(self.pause_s, due - now)
                continue
            self._sent[name] = now
            fields.append((name, part.data))
        if tasks := self._hub.tasks_after(version):
            fields.append(("tasks", json_list(tasks)))
        if points := self._hub.points_after(version):
            fields.append(("series", json_list(points)))
        self._versions = later
        self._state = self._state._replace(version=self._hub.version)
        return fields


def gap_rows(gap: Mapping[str, int]) -> dict[str, Any]:
    size = sum(gap.values()) / 1_000_000
    text = f"{size:,.1f} MB of lines skipped here ({', '.join(list(gap)[:8])}); `orch logs` prints them"
    return {"names": [], "time": [-1], "task": [-1], "attempt": 1, "text": [text]}


def event(kind: str, data: bytes, state: State | None = None) -> bytes:
    """Return a server-sent event. JSON has no newline."""
    number = b"" if state is None else f"id: {state}\n".encode()
    return b"%bevent: %b\ndata: %b\n\n" % (number, kind.encode(), data)
