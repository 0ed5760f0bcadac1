"""The agent's command line, and the stream that it asks for."""

from __future__ import annotations

import argparse
import select
from pathlib import Path
from typing import TYPE_CHECKING

from worker.agent.stream import Stream

if TYPE_CHECKING:
    from worker.agent.host_stream import HostStream

_STDIN, _STDOUT = 0, 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m worker.agent.agent")
    remote = parser.add_argument_group("on another host, started by worker/remote/keeper.py")
    remote.add_argument("--remote", type=Path, metavar="DIRECTORY")
    remote.add_argument("--agent-id")
    remote.add_argument("--listener", type=int, metavar="DESCRIPTOR")
    remote.add_argument("--link-timeout", type=float, metavar="SECONDS")
    return parser.parse_args()


def open_stream(arguments: argparse.Namespace, poller: select.epoll) -> Stream | HostStream:
    """The stream to the supervisor: stdin and stdout, or on another host a HostStream."""
    if arguments.remote is None:
        return Stream(_STDIN, _STDOUT, poller)
    from worker.agent.host_stream import HostStream

    return HostStream(
        arguments.remote, arguments.agent_id, arguments.listener, arguments.link_timeout, poller
    )
