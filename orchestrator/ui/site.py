"""The application: what each address of the server answers. The checks of access.py stand before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.client.page.pieces import json_bytes
from orchestrator.core.errors import EngineError, NoSuchRun, OrchError, UsageError
from orchestrator.core.text.clean import safe
from orchestrator.ui.browser import State
from orchestrator.ui.hub import Hub
from orchestrator.ui.hubs import Hubs
from orchestrator.ui.orders import execute_order
from orchestrator.ui.page_files import page_html, page_script, page_style
from orchestrator.ui.run_list import RunList

_FIRST_LINES, _MOST_FIRST_LINES = 2000, 20_000
_MOST_ORDER_BYTES = 64 << 10
_MOST_COMPARED = 20
_STATUS = ((NoSuchRun, 404), (UsageError, 409), (EngineError, 503))
T = TypeVar("T")


class Site:
    """The routes of the server, and the runs behind them."""

    def __init__(self, runs: RunList, hubs: Hubs) -> None:
        self._runs = runs
        self._hubs = hubs

    def application(self) -> Starlette:
        run = "/api/runs/{run}"
        routes = [
            Route("/", self._shell),
            Route("/page.js", self._script),
            Route("/page.css", self._style),
            Route("/api/runs", self._list),
            Route(run, self._document),
            Route(f"{run}/lines", self._lines),
            Route(f"{run}/feed", self._feed),
            Route(f"{run}/orders/{{verb}}", self._order, methods=["POST"]),
            Route("/api/compare", self._compare),
        ]
        return Starlette(routes=routes, exception_handlers={OrchError: _refused, HTTPException: _http_error})

    async def _shell(self, request: Request) -> Response:
        return HTMLResponse(page_html())

    async def _script(self, request: Request) -> Response:
        return Response(page_script(), media_type="text/javascript")

    async def _style(self, request: Request) -> Response:
        return Response(page_style(), media_type="text/css")

    async def _list(self, request: Request) -> Response:
        return _json(json_bytes(await asyncio.to_thread(self._runs.document)))

    async def _hub(self, request: Request) -> Hub:
        return await self._hubs.of(request.path_params["run"])

    async def _document(self, request: Request) -> Response:
        return _json(await (await self._hub(request)).document())

    async def _lines(self, request: Request) -> Response:
        hub = await self._hub(request)
        if "before" in request.query_params:
            before = _number(request, "before", 0, 1 << 62)
            return StreamingResponse(hub.lines_before(before), media_type="application/x-ndjson")
        return _json(await hub.last_lines(_number(request, "tail", _FIRST_LINES, _MOST_FIRST_LINES)))

    async def _feed(self, request: Request) -> Response:
        hub = await self._hub(request)
        # A browser that was interrupted says what it got last.
        last = request.headers.get("last-event-id")
        try:
            state = State.parse(last or request.query_params.get("state", ""))
        except ValueError:
            raise HTTPException(400, "feed: state is missing or wrong") from None
        return StreamingResponse(hub.feed(state, is_resumed=bool(last)), media_type="text/event-stream")

    async def _order(self, request: Request) -> Response:
        run, verb = request.path_params["run"], request.path_params["verb"]
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "an order is JSON")
        body = await _body(request)
        said = await in_thread(lambda: execute_order(self._runs.view(run), verb, body))
        return JSONResponse({"ok": True, "said": safe(said)})

    async def _compare(self, request: Request) -> Response:
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(wanted) <= _MOST_COMPARED:
            raise HTTPException(400, f"compare: name 2 to {_MOST_COMPARED} runs")
        return _json(await asyncio.to_thread(self._hubs.comparison, wanted))


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function that may take long, in a thread that does not delay the end of the server."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(finish, result, failure)
        except RuntimeError:
            pass  # the server has ended

    threading.Thread(target=call, daemon=True).start()
    return await done


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_ORDER_BYTES:
            raise HTTPException(413, "an order is shorter")
    return body


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise HTTPException(400, f"{name}: not a number")
    return min(int(text), most)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def _refused(request: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return JSONResponse({"error": safe(str(error))}, status)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)
