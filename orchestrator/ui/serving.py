"""Serves the page on a socket that listens, until a signal or another end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.host.headroom import many_files
from orchestrator.ui.access import Access, Guard
from orchestrator.ui.heap import use_one_heap
from orchestrator.ui.hubs import Hubs
from orchestrator.ui.peers import address_of, may_connect
from orchestrator.ui.run_list import RunList
from orchestrator.ui.site import Site

# Threads that read runs. Each read is short.
_THREADS = 4
# Seconds for the feeds to end before they are cut off.
_END_S = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Report = Callable[[str], object]


class _OwnConnections(H11Protocol):
    """Closes connections of other users before anything is read from them or sent to them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        try:
            ends = (transport.get_extra_info(name) for name in ("sockname", "peername"))
            is_own = may_connect(*map(address_of, ends))
        except (TypeError, ValueError, IndexError):
            is_own = False  # closed in the meantime
        super().connection_made(transport)
        if not is_own:
            transport.abort()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to serve(): uvicorn would raise them again after its end."""
        yield


def serve(
    listener: socket.socket, access: Access, report: Report, until: Callable[[], object] | None = None
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, or until the function `until`, which waits in a thread, returns.

    `report` gets the text of a fault of the server. Main thread only.
    """
    use_one_heap()
    handler = _log_to(report)
    try:
        with many_files():
            asyncio.run(_serve(listener, access, until))
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)


async def _serve(listener: socket.socket, access: Access, until: Callable[[], object] | None) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="read"))
    runs = RunList()
    hubs = Hubs(runs.view)
    runs.shown = hubs.view
    config = uvicorn.Config(
        Guard(Site(runs, hubs).application(), access),
        http=_OwnConnections,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_END_S,
    )
    server = _Server(config)

    def end() -> None:
        hubs.close()
        server.should_exit = True

    for number in _SIGNALS:
        # A signal that this process inherited as ignored (nohup) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, end)
    if until is not None:
        threading.Thread(target=_end_after, args=(until, loop, end), daemon=True).start()
    await server.serve(sockets=[listener])


def _end_after(until: Callable[[], object], loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    until()
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(end)


_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio")


class _Reporting(logging.Handler):
    def __init__(self, report: Report) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(self.format(record))


def _log_to(report: Report) -> logging.Handler:
    """Report errors only: addresses, which may hold the token, are not logged."""
    handler = _Reporting(report)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
        logger.addHandler(handler)
    return handler
