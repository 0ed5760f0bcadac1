"""`orch ui`: serves the page of all runs of this user."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.parameters import Screen, takes_screen
from orchestrator.cli.selection import sweep
from orchestrator.cli.words import print_json, print_lines, say
from orchestrator.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from orchestrator.ui.registry import Server


@takes_screen
def ui(
    screen: Screen,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", help="The port; 0 picks a free one. Default: 7117.", show_default=False
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDR",
            help="Listen on this address. Other machines need --i-know.",
            show_default=False,
        ),
    ] = "127.0.0.1",
    i_know: Annotated[
        bool, typer.Option("--i-know", help="With --host: serve other machines without encryption.")
    ] = False,
) -> int:
    """Serve the page of all your runs on this machine. Ctrl-C ends it; the runs continue."""
    from orchestrator.ui.address import PORT, is_loopback, listen, require_extra
    from orchestrator.ui.registry import Registration, Server, running_server

    require_extra("orch ui")
    if not is_loopback(host) and not i_know:
        raise UsageError(
            f"--host: {host} can be reached by other machines, the page is not encrypted, and whoever reads its token"
            " can stop your runs; use a tunnel (ssh -L) instead, or add --i-know"
        )
    sweep()
    registration = Registration.take()
    if registration is None:
        server = running_server()
        if server is None:
            raise UsageError("another `orch ui` is starting or ending; try again")
        return _show_running(server, port, screen, open_browser)
    with listen(host, PORT if port is None else port) as listener:
        # Imported only now: a port in use is reported at once.
        from orchestrator.ui.access import Access
        from orchestrator.ui.serving import serve

        number = listener.getsockname()[1]
        access = Access(host, number, names=frozenset({platform.node().lower()}))
        try:
            registration.publish(Server(access.address, os.getpid()))
            _show(access.address, number, screen)
            if open_browser:
                _open(access.address_once())
            serve(listener, access, say)
        finally:
            registration.withdraw()
    return ExitCode.OK


def _show(address: str, port: int, screen: Screen) -> None:
    if screen.json:
        print_json({"schema_version": 1, "address": address, "pid": os.getpid()})
        return
    from orchestrator.ui.address import tunnel_hint

    print_lines([address])
    if not screen.quiet:
        say("this is the page of all your runs; Ctrl-C ends it, and the runs continue")
        if hint := tunnel_hint(port, os.environ):
            say(hint)


def _show_running(server: Server, port: int | None, screen: Screen, open_browser: bool) -> int:
    """Show the address of the server that runs already. There is one for each user."""
    own_port = server.address.partition("/?")[0].rpartition(":")[2]
    if port not in (None, 0) and str(port) != own_port:
        raise UsageError(
            f"--port: your `orch ui` runs already, on port {own_port} (pid {server.pid}); end it first, or leave out"
            " --port"
        )
    if screen.json:
        print_json({"schema_version": 1, "address": server.address, "pid": server.pid})
    else:
        print_lines([server.address])
    if not screen.quiet:
        until = "the last `orch up --ui` ends" if server.is_shared else "that command ends"
        say(f"your page is served already (pid {server.pid}), until {until}")
    if open_browser:
        say("--open: open this address yourself; only the command that serves the page can open a browser")
    return ExitCode.OK


def _open(address: str) -> None:
    """Open a browser, without waiting for it. The address works once: other users can read it in the process list."""
    import threading

    from orchestrator.cli.browser import open_page

    def open_it() -> None:
        has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
        if not has_screen or not open_page(address):
            say("--open: no browser was found; open the address above")

    threading.Thread(target=open_it, daemon=True).start()
