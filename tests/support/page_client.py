"""Browsers without a screen, which keep cookies: one asks the server of `orch ui`, one an application."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from http.cookies import SimpleCookie
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from waiting import PATIENCE_S

from orchestrator.ui.access import ORDER_HEADER

Headers = Mapping[str, str]
_NONE: Headers = MappingProxyType({})


@dataclass(frozen=True)
class Answer:
    """The answer to a request. The names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class _Browser:
    """Sends the cookies that it was given, and follows no redirection. `origin`: scheme, name and port."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.cookies: dict[str, str] = {}

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def get(self, path: str, headers: Headers = _NONE) -> Answer:
        return self.request("GET", path, headers)

    def request(self, method: str, path: str, headers: Headers = _NONE, body: bytes = b"") -> Answer:
        """Send a request. `path` may be a whole address of this origin."""
        own = {"host": urlsplit(self.origin).netloc, **({"cookie": self.cookie} if self.cookies else {})}
        sent = own | {name.lower(): value for name, value in headers.items()}
        answer = self.exchange(method, path.removeprefix(self.origin), sent, body)
        given = SimpleCookie(answer.headers.get("set-cookie", ""))
        self.cookies |= {name: morsel.value for name, morsel in given.items()}
        return answer

    def exchange(self, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        raise NotImplementedError


class AppBrowser(_Browser):
    """A browser whose requests are calls of an ASGI application."""

    def __init__(self, app: Callable[..., Any], origin: str) -> None:
        super().__init__(origin)
        self._app = app

    def exchange(self, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        address = urlsplit(path)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": address.path,
            "raw_path": address.path.encode(),
            "query_string": address.query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 50_000),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        start = next(message for message in sent if message["type"] == "http.response.start")
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(message.get("body", b"") for message in sent))


class PageBrowser(_Browser):
    """A browser that has opened the address that `orch ui` has printed."""

    def __init__(self, address: str) -> None:
        super().__init__(address.partition("/?")[0])
        self.address = address
        opened = self.get(address)
        assert opened.status == 303, opened

    @property
    def port(self) -> int:
        return urlsplit(self.origin).port or 0

    def exchange(self, method: str, path: str, headers: Headers, body: bytes) -> Answer:
        with self._sent(method, path, headers, body) as got:
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())

    def read(self, path: str) -> Any:
        """Return a document of the server."""
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.document

    def order(self, run: str, verb: str, **given: object) -> Answer:
        headers = {ORDER_HEADER: "1", "content-type": "application/json"}
        return self.request("POST", f"/api/runs/{run}/orders/{verb}", headers, json.dumps(given).encode())

    def events(self, run: str) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Yield what the page of a run gets after it was opened. Close it to leave the page."""
        document = self.read(f"/api/runs/{run}")
        lines = self.read(f"/api/runs/{run}/lines?tail=100")
        yield "opened", {"document": document, **lines}
        path = f"/api/runs/{run}/feed?state={document['feed']}.{lines['cursor']}"
        with self._sent("GET", path, {"cookie": self.cookie}) as answer:
            kind = ""
            while line := answer.readline():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)

    @contextlib.contextmanager
    def _sent(
        self, method: str, path: str, headers: Headers, body: bytes = b""
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body or None, dict(headers))
            yield connection.getresponse()
        finally:
            connection.close()
