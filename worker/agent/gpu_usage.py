"""Memory and utilisation of GPUs by process, as NVIDIA's library reports them.

A helper of the agent calls the library: a call may block as long as a broken driver does, and an agent that is blocked
could not stop the run. The helper answers each message with JSON: {pid: {gpu_memory_bytes, gpu_percent (of one GPU)}}.
"""

from __future__ import annotations

import ctypes
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_uint, c_ulonglong

from worker.agent.helper import Helper

_LIBRARY = "libnvidia-ml.so.1"
_MEMORY, _PERCENT = "gpu_memory_bytes", "gpu_percent"
_SUCCESS, _NOT_FOUND = 0, 6
_NOT_AVAILABLE = 2**64 - 1
# Processes of a GPU, and bytes of an answer.
_MOST_PROCESSES, _ANSWER_BYTES = 1024, 1 << 18
Usage = dict[str, int]


class GpuUsage:
    """The agent's side. Without the library or after its failure, no usage is known."""

    def __init__(self) -> None:
        self._helper: Helper | None = None
        self._was_started = False
        self._of_pid: dict[str, Usage] = {}

    @property
    def pid(self) -> int | None:
        """The helper's pid."""
        return None if self._helper is None else self._helper.pid

    def refresh(self) -> None:
        """Take the answer to the last message and send another one. Never waits: a late answer is taken later."""
        self._of_pid = {}
        if not self._was_started:
            self._was_started = True
            with suppress(OSError):
                ctypes.CDLL(_LIBRARY)
                self._helper = Helper.fork("orch-gpus", _answer, kind=socket.SOCK_SEQPACKET)
                self._helper.stream.send(b"\n")
        elif self._helper is not None:
            with suppress(BlockingIOError):
                try:
                    self._of_pid = json.loads(self._helper.stream.recv(_ANSWER_BYTES))
                    self._helper.stream.send(b"\n")
                except (ConnectionError, ValueError):  # it has exited
                    self._helper.stream.close()
                    self._helper = None

    def of(self, pids: Iterable[int]) -> Usage:
        """Return what these processes use together, as far as it is known."""
        return _sum(self._of_pid.get(str(pid), {}) for pid in pids)


def _sum(usages: Iterable[Mapping[str, int]]) -> Usage:
    total: Usage = {}
    for usage in usages:
        for name, value in usage.items():
            total[name] = total.get(name, 0) + value
    return total


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("bytes", c_ulonglong), ("gpu_instance", c_uint), ("instance", c_uint))


class _Work(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("time", c_ulonglong), ("percent", c_uint), ("others", 3 * c_uint))


class _Device:
    def __init__(self, nvml: ctypes.CDLL, index: int) -> None:
        self._nvml = nvml
        self._handle = ctypes.c_void_p()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(self._handle))
        # The second version has the same structure.
        running = "nvmlDeviceGetComputeRunningProcesses_v"
        self._running = getattr(nvml, f"{running}3", None) or getattr(nvml, f"{running}2")
        self._since = 0

    def usage(self) -> Iterator[tuple[int, Usage]]:
        """Yield what each process uses; nothing if the GPU is lost."""
        count, processes = c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not self._handle or self._running(self._handle, byref(count), processes) != _SUCCESS:
            return
        percent = self._percent()
        for process in processes[: count.value]:
            memory = {} if process.bytes == _NOT_AVAILABLE else {_MEMORY: process.bytes}
            yield (
                process.pid,
                memory if percent is None else {**memory, _PERCENT: percent.get(process.pid, 0)},
            )

    def _percent(self) -> dict[int, int] | None:
        """Return the utilisation since the last call by pid, without idle processes; None if it is not supported."""
        count, work = c_uint(_MOST_PROCESSES), (_Work * _MOST_PROCESSES)()
        since = c_ulonglong(self._since)
        status = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, work, byref(count), since)
        if status != _SUCCESS:
            return {} if status == _NOT_FOUND else None
        recent = sorted(work[: count.value], key=lambda each: each.time)
        self._since = max((each.time for each in recent), default=self._since)
        return {each.pid: each.percent for each in recent}


def _answer(stream: socket.socket) -> None:
    """Answer until the agent closes the stream."""
    nvml, count = ctypes.CDLL(_LIBRARY), c_uint()
    if nvml.nvmlInit_v2() != _SUCCESS or nvml.nvmlDeviceGetCount_v2(byref(count)) != _SUCCESS:
        return
    devices = [_Device(nvml, index) for index in range(count.value)]
    while stream.recv(1):
        of_pid: dict[int, Usage] = {}
        for device in devices:
            for pid, usage in device.usage():
                of_pid[pid] = _sum((of_pid.get(pid, {}), usage))
        stream.send(json.dumps(of_pid).encode())
