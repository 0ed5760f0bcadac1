"""A light task with the phases of a worker, which pauses or breaks at a given moment.

    staged_task.py MOMENT BREAKS VICTIM TIMES

At MOMENT every task creates a file `at-MOMENT-INDEX-N` and pauses until the file `go` exists. The task with index
VICTIM does BREAKS once all tasks and the file `break` are there. The file `lost` makes the other tasks fail as
TensorFlow workers do that lost a peer. TIMES: at how many visits, after restarts, this happens.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.01
_REPORT_S = 0.05
STEPS = 6
# The step at which the training pauses: after the first step.
PAUSE_STEP = 3
FLOOD_BYTES = 16 << 20
WORK_S = 0.4

MOMENT, BREAKS = sys.argv[1:3]
VICTIM, TIMES = int(sys.argv[3]), int(sys.argv[4])
CONFIG = json.loads(os.environ["TF_CONFIG"])
INDEX: int = CONFIG["task"]["index"]
ADDRESSES: list[str] = CONFIG["cluster"]["worker"]
PROGRESS_FD = int(os.environ["ORCH_PROGRESS_FD"])
_listeners: list[socket.socket] = []


def main() -> None:
    signal.signal(signal.SIGTERM, _on_sigterm)
    match BREAKS:
        case "daemonises":
            _leave_a_daemon()
        case "leaves a bare child":
            _leave_a_bare_child()
        case "all ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"worker:{INDEX} begins", flush=True)
    reach("importing")
    if not (MOMENT == "rendezvous" and INDEX == VICTIM):
        _listen()
    reach("rendezvous")
    if not _listeners:
        _listen()
    _train()
    if INDEX == 0:
        _save()
    else:
        reach("checkpointing")
    if INDEX == VICTIM:
        reach("finishing", alone=True)
    print(f"worker:{INDEX} is done", flush=True)


def starts_tensorflow() -> None:
    """Never called. orch expects a server on the port because the script imports TensorFlow."""
    import tensorflow  # noqa: F401


def reach(moment: str, alone: bool = False) -> None:
    """Pause or break if this is the moment. `alone`: the other tasks have exited."""
    if moment != MOMENT:
        return
    visit = 1 + sum(1 for n in range(1, TIMES + 1) if _mark(moment, INDEX, n).exists())
    if visit > TIMES:
        return
    _write(_mark(moment, INDEX, visit))
    reporter = _Reporter()
    if INDEX == VICTIM:
        marks = () if alone else tuple(_mark(moment, index, visit) for index in range(len(ADDRESSES)))
        _wait_for(*marks, Path("break"), meanwhile=reporter.report)
        _BREAKS.get(BREAKS, lambda: None)()
    _pause(reporter if INDEX != VICTIM or BREAKS == "keeps printing" else None)


def _mark(moment: str, index: int, visit: int) -> Path:
    return Path(f"at-{moment}-{index}-{visit}")


def _write(path: Path, pid: int | None = None) -> None:
    """Create a file with a process id, by default this process's, atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(str(pid or os.getpid()))
    new.rename(path)


def _wait_for(*paths: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    while not all(path.exists() for path in paths):
        meanwhile()
        time.sleep(_LOOK_S)


class _Reporter:
    """Reports progress now and then while the training waits."""

    def __init__(self) -> None:
        self._step, self._reported_mono = PAUSE_STEP, time.monotonic()

    def report(self) -> None:
        now = time.monotonic()
        if MOMENT != "training" or now < self._reported_mono + _REPORT_S:
            return
        # A step may trigger a planned fault, which must not come before all tasks are there.
        self._step += all(_mark(MOMENT, index, 1).exists() for index in range(len(ADDRESSES)))
        self._reported_mono = now
        _report(phase="training", epoch=1, epochs=1, step=self._step, steps=10_000, loss=1 / now)


def _pause(reporter: _Reporter | None = None) -> None:
    """Wait for the file `go`."""
    while not Path("go").exists():
        if Path("lost").exists() and INDEX != VICTIM:
            _lose_a_peer()
        if reporter is not None:
            reporter.report()
        time.sleep(_LOOK_S)


def _wait_for_the_stop() -> None:
    _write(Path(f"up-{INDEX}"))
    while True:
        time.sleep(_LOOK_S)


def _on_sigterm(*_: object) -> None:
    """Exit in order; pause first if the moment is `stopping`."""
    reach("stopping")
    sys.exit(143)


def _listen() -> None:
    """Listen, as TensorFlow's server does, on the assigned port, which orch holds."""
    address = ("127.0.0.1", int(ADDRESSES[INDEX].rpartition(":")[2]))
    _listeners.append(socket.create_server(address, reuse_port=True))


def _train() -> None:
    for step in range(1, STEPS + 1):
        _report(phase="training", epoch=1, epochs=1, step=step, steps=STEPS, loss=1 / step)
        print(f"worker:{INDEX} step {step}", flush=True)
        if step == PAUSE_STEP:
            reach("training")
            if MOMENT == "stopping":
                _wait_for_the_stop()


def _save() -> None:
    """Write a checkpoint under a temporary name and rename it."""
    directory = Path(os.environ["ORCH_CHECKPOINT_DIR"])
    part = directory / f"checkpoint-{os.environ['ORCH_ATTEMPT']}.part"
    with part.open("w") as file:
        file.write("half of it\n")
        file.flush()
        reach("checkpointing")
        file.write("the other half\n")
    part.rename(part.with_suffix(""))


def _report(**progress: object) -> None:
    with suppress(OSError):  # it may have been closed on purpose
        os.write(PROGRESS_FD, json.dumps(progress).encode() + b"\n")


# -- what can break


def _raise() -> None:
    raise ValueError("boom")


def _lose_a_peer() -> None:
    print(
        'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
        "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _leave_a_daemon() -> None:
    """Start a grandchild that ignores SIGTERM, in its own session and reparented."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _write(Path(f"grandchild-{INDEX}"))
            time.sleep(600)
        os._exit(0)
    os.wait()
    _wait_for(Path(f"grandchild-{INDEX}"))


def _leave_a_bare_child() -> None:
    """Start a child in its own session, without the environment by which orch finds a run's processes."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
        time.sleep(_LOOK_S)
    _write(Path(f"grandchild-{INDEX}"), pid)


def _close_output() -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")
    os.closerange(1, 3)


def _flood() -> None:
    lines = b"a line of a flood\n" * 4096
    for _ in range(FLOOD_BYTES // len(lines)):
        os.write(1, lines)


def _truncate_its_log() -> None:
    os.ftruncate(1, 0)
    print("output after the truncation", flush=True)


def _flood_progress() -> None:
    while True:
        _send(b"{}\n" * 20_000)


def _report_invalid_progress() -> None:
    for data in (
        b"\xff\xfe\0\n[[[\n{}\nnull\n" + b'{"step": 1e999, "epoch": -1, "phase": "\\ud800"}\n',
        b'{"metrics": ' + b'{"a":' * 300 + b"1" + b"}" * 301 + b"\n",
        b'{"sigterm": "later", "step": ' + b"9" * 5000 + b"}\n",
        b"x" * 300_000 + b"\n{",
    ):
        _send(data)


def _send(data: bytes) -> None:
    """Write to the progress pipe, which may be full."""
    while data:
        try:
            data = data[os.write(PROGRESS_FD, data) :]
        except BlockingIOError:
            time.sleep(_LOOK_S)


def _open_too_many_files() -> None:
    while True:
        os.open(os.devnull, os.O_RDONLY)


def _use_too_much_memory() -> None:
    """Write to each page, because untouched pages do not count."""
    eaten = bytearray(200 << 20)
    eaten[:: 1 << 12] = b"x" * len(eaten[:: 1 << 12])
    _pause()


def _work() -> None:
    """Work for a while without a fault, then let the run continue."""
    until = time.monotonic() + WORK_S
    while time.monotonic() < until:
        print(f"worker:{INDEX} works", flush=True)
        time.sleep(_REPORT_S)
    _write(Path("go"))


# With other words the task does nothing at the moment: the fault comes from outside, or exists from the start.
_BREAKS: dict[str, Callable[[], object]] = {
    "works": _work,
    "exits with 3": lambda: os._exit(3),
    "exits with 42": lambda: os._exit(42),
    "exits with 0": lambda: os._exit(0),
    "raises": _raise,
    "crashes with SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "closes its output": _close_output,
    "floods its output": _flood,
    "truncates its log": _truncate_its_log,
    "closes its progress pipe": lambda: os.close(PROGRESS_FD),
    "reports invalid progress": _report_invalid_progress,
    "floods its progress": _flood_progress,
    "opens too many files": _open_too_many_files,
    "uses too much memory": _use_too_much_memory,
}

if __name__ == "__main__":
    main()
