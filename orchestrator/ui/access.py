"""Decides who may use the server: checks every request before the application sees it, and sets headers of the answers.

The address that is printed holds a token. It is exchanged for a cookie, which the browser sends to this machine only
from pages of this server. Names other than those of this machine are refused, because the name of a foreign page may
be made to lead here (DNS rebinding). An order needs a header that a page of another origin cannot send.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.ui.address import is_loopback, new_token, origin, token_address

ORDER_HEADER = "X-Orch"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# A browser opens the address within some seconds.
_ONCE_VALID_S = 60.0
_READS = ("GET", "HEAD")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NO_COOKIE = "open the address with the token that `orch ui` has printed"


@dataclass
class Access:
    """The secrets of one server, and the names that its address may have. `host`: what it listens on."""

    host: str
    port: int
    token: str = field(default_factory=new_token, repr=False)
    names: frozenset[str] = frozenset()
    _session: str = field(default_factory=new_token, repr=False)
    _once: tuple[str, float] | None = field(default=None, repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie. Servers on other ports share the browser's cookies of this machine."""
        return f"orch-{self.port}"

    @property
    def address(self) -> str:
        """The address for the user, with the token."""
        return token_address(self.host, self.port, self.token)

    def address_once(self) -> str:
        """Return an address that works once, soon. It may appear in the command line of a browser."""
        code = new_token()
        self._once = (code, time.monotonic() + _ONCE_VALID_S)
        return f"{origin(self.host, self.port)}/?once={code}"

    def knows_name(self, host: str) -> bool:
        """Whether a Host header names this server. Its port is that of a tunnel (ssh -L), or ours."""
        name = _name_of(host)
        if name in _LOOPBACK_NAMES:
            return True
        if is_loopback(self.host):
            return False
        # Only names can be made to lead here, not addresses.
        return name in (self.host.lower(), *self.names) or _is_address(name)

    def accepts_token(self, query: Mapping[str, list[str]]) -> bool:
        """Whether the query of an address holds the token, or the code that works once, which it uses up."""
        if _is_same(query.get("token", ()), self.token):
            return True
        code, until = self._once or ("", 0.0)
        if not code or time.monotonic() > until or not _is_same(query.get("once", ()), code):
            return False
        self._once = None
        return True

    def accepts_cookies(self, header: str) -> bool:
        """Whether one of the cookies is ours. Another server of this machine may have set one of the same name."""
        pairs = (pair.strip().partition("=") for pair in header.split(";"))
        return _is_same((value for name, _, value in pairs if name == self.cookie), self._session)

    def set_cookie(self, response: Response) -> None:
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")


class Guard:
    """The application behind the checks."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no other protocol is served
        refused = self._answer(scope)
        await (refused or self._app)(scope, receive, _with_headers(send))

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused, or that brings the token; None to pass it on."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._access.knows_name(host):
            return refusal(scope, 421, f"this server has another name than {host!a}")
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return refusal(scope, 403, "a page of another origin has sent this")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        is_read = scope["method"] in _READS
        if is_foreign and not (is_read and _is_navigation(scope, headers)):
            return refusal(scope, 403, "a page of another origin has sent this")
        if scope["path"] == "/" and is_read:
            query = parse_qs(scope["query_string"].decode("ascii", "replace"))
            if "token" in query or "once" in query:
                return self._exchange(query, is_foreign=is_foreign)
        if not self._access.accepts_cookies(headers.get("cookie", "")):
            return refusal(scope, 401, _NO_COOKIE)
        if not is_read and headers.get(ORDER_HEADER) != "1":
            return refusal(scope, 403, f"an order needs the header {ORDER_HEADER}: 1")
        return None

    def _exchange(self, query: Mapping[str, list[str]], *, is_foreign: bool) -> Response:
        """Give the cookie for the token, and lead to the address without it."""
        if not self._access.accepts_token(query):
            return HTMLResponse(_page(f"This is not the token of this server: {_NO_COOKIE}."), 403)
        response: Response = RedirectResponse("/", 303)
        if is_foreign:
            # A browser withholds the cookie when a link on another site is redirected, but not after this page.
            response = HTMLResponse(_page("", refresh=True))
        self._access.set_cookie(response)
        return response


def refusal(scope: Scope, status: int, why: str) -> Response:
    """An answer that says why: a page for a person, JSON for a script."""
    if scope["path"] == "/":
        return HTMLResponse(_page(f"Refused: {why}."), status)
    return JSONResponse({"error": why}, status)


def _page(text: str, *, refresh: bool = False) -> str:
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    meta = '<meta http-equiv="refresh" content="0; url=/">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{meta}<title>orch</title><p>{shown}</p></html>'
    )


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return send_with_headers


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """Whether a link on another page leads here: it shows the page to the user, not to that other page."""
    return (
        scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_same(given: Iterable[str], secret: str) -> bool:
    """Whether one of these is the secret. The time does not depend on how much of it is right."""
    return any(secrets.compare_digest(one.encode(), secret.encode()) for one in given)


def _name_of(host: str) -> str:
    """Return the name of a Host header without its port, in lower case."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
