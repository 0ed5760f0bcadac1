"""The network between the pretend machines: passes frames on, late or not at all. It runs in its own namespace.

Frames are passed on here, and not by a bridge, because not every kernel can delay them (the module sch_netem).
Each line of standard input is a JSON document {"latency": {name: seconds}, "cut_to": [name], "cut_from": [name]}. The
answer is an empty line. The end of the input ends the process.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import select
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
# Each frame stands behind a virtio_net_hdr, which keeps what the sender's kernel left to its network card:
# checksums and the division of large segments.
_HEADER_BYTES = 10
_LARGEST_BYTES = _HEADER_BYTES + 70_000


class Switch:
    """Ports by machine name. A machine's number is the last byte of its hardware address."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._ports = {name: _port(name) for name in names}
        self._latency = dict.fromkeys(names, 0.0)
        self._cut_to: set[str] = set()
        self._cut_from: set[str] = set()
        self._waiting: list[tuple[float, int, str, bytes]] = []
        self._count = itertools.count()

    def serve(self) -> None:
        names = {port.fileno(): name for name, port in self._ports.items()}
        poller = select.poll()
        for fd in (0, *names):
            poller.register(fd, select.POLLIN)
        while True:
            wait_s = max(self._waiting[0][0] - time.monotonic(), 0) if self._waiting else None
            for fd, _ in poller.poll(None if wait_s is None else wait_s * 1000):
                if fd in names:
                    self._receive(names[fd])
                elif not self._obey():
                    return
            self._send_due()

    def _obey(self) -> bool:
        line = os.read(0, 65_536)
        if line:
            order = json.loads(line)
            self._latency.update(order["latency"])
            self._cut_to, self._cut_from = set(order["cut_to"]), set(order["cut_from"])
            os.write(1, b"\n")
        return bool(line)

    def _receive(self, sender: str) -> None:
        frame, address = self._ports[sender].recvfrom(_LARGEST_BYTES)
        if address[2] == socket.PACKET_OUTGOING:
            return
        destination, number = frame[_HEADER_BYTES], frame[_HEADER_BYTES + 5]
        is_for_all = destination & 1  # broadcast and multicast
        receivers = self._names if is_for_all else self._names[number : number + 1]
        for receiver in receivers:
            if receiver != sender and sender not in self._cut_from and receiver not in self._cut_to:
                due = time.monotonic() + self._latency[sender] + self._latency[receiver]
                heapq.heappush(self._waiting, (due, next(self._count), receiver, frame))

    def _send_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, receiver, frame = heapq.heappop(self._waiting)
            try:
                self._ports[receiver].send(frame)
            except OSError:
                pass  # its queue is full, or it is gone: the frame is lost, as in any network


def _port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    port.setblocking(False)
    port.bind((name, _ALL_PROTOCOLS))
    return port


if __name__ == "__main__":
    Switch(sys.argv[1:]).serve()
