"""A light task that goes through what a worker goes through, and pauses or breaks at the moment it is told.

    staged_task.py MOMENT BREAKS VICTIM TIMES

At MOMENT every task says that it is there (a file `at-MOMENT-INDEX-N`) and pauses until there is a file `go`; the one
of index VICTIM does BREAKS as soon as all are there, and a file `break`. A file `lost` makes the others fail as
TensorFlow's workers do that lost a peer. TIMES: at its first visit only, or at as many (after restarts).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 0.01
_TELL_S = 0.05
STEPS = 6
# How far a training is when it pauses: a first step has been taken.
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
    if BREAKS == "daemonises":
        _leave_a_daemon()
    if BREAKS == "all deaf" or (BREAKS == "deaf" and INDEX == VICTIM):
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
    """Never called. Whether a server is to be expected on its port is read from what a script imports."""
    import tensorflow  # noqa: F401


def reach(moment: str, alone: bool = False) -> None:
    """Pause here, or break, if this is the moment; `alone`: the others are done by now and do not come."""
    if moment != MOMENT:
        return
    visit = 1 + sum(1 for n in range(1, TIMES + 1) if _mark(moment, INDEX, n).exists())
    if visit > TIMES:
        return
    _write(_mark(moment, INDEX, visit))
    voice = _Voice()
    if INDEX == VICTIM:
        marks = () if alone else tuple(_mark(moment, index, visit) for index in range(len(ADDRESSES)))
        _wait_for(*marks, Path("break"), meanwhile=voice.speak)
        _BREAKS[BREAKS]()
    _pause(voice if INDEX != VICTIM or BREAKS == "talks on" else None)


def _mark(moment: str, index: int, visit: int) -> Path:
    return Path(f"at-{moment}-{index}-{visit}")


def _write(path: Path) -> None:
    """The whole file at once, with this process's id in it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(str(os.getpid()))
    new.rename(path)


def _wait_for(*paths: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    while not all(path.exists() for path in paths):
        meanwhile()
        time.sleep(_LOOK_S)


class _Voice:
    """A training that waits for somebody still has something to say now and then."""

    def __init__(self) -> None:
        self._step, self._told = PAUSE_STEP, time.monotonic()

    def speak(self) -> None:
        now = time.monotonic()
        if MOMENT != "training" or now < self._told + _TELL_S:
            return
        # What a step brings about must not come before all are there, however late one of them has begun.
        self._step += all(_mark(MOMENT, index, 1).exists() for index in range(len(ADDRESSES)))
        self._told = now
        _tell(phase="training", epoch=1, epochs=1, step=self._step, steps=10_000, loss=1 / now)


def _pause(voice: _Voice | None = None) -> None:
    """Until the word is given."""
    while not Path("go").exists():
        if Path("lost").exists() and INDEX != VICTIM:
            _lose_a_peer()
        if voice is not None:
            voice.speak()
        time.sleep(_LOOK_S)


def _await_the_stop() -> None:
    _write(Path(f"up-{INDEX}"))
    while True:
        time.sleep(_LOOK_S)


def _on_sigterm(*_: object) -> None:
    """An orderly stop that takes its time, if that is the moment."""
    reach("stopping")
    sys.exit(143)


def _listen() -> None:
    """As TensorFlow's server does: on the port it was given, which orch holds."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", int(ADDRESSES[INDEX].rpartition(":")[2])))
    listener.listen()
    _listeners.append(listener)


def _train() -> None:
    for step in range(1, STEPS + 1):
        _tell(phase="training", epoch=1, epochs=1, step=step, steps=STEPS, loss=1 / step)
        print(f"worker:{INDEX} step {step}", flush=True)
        if step == PAUSE_STEP:
            reach("training")
            if MOMENT == "stopping":
                _await_the_stop()


def _save() -> None:
    """A checkpoint is beside its place until it is whole."""
    directory = Path(os.environ["ORCH_CHECKPOINT_DIR"])
    part = directory / f"checkpoint-{os.environ['ORCH_ATTEMPT']}.part"
    with part.open("w") as file:
        file.write("half of it\n")
        file.flush()
        reach("checkpointing")
        file.write("the other half\n")
    part.rename(part.with_suffix(""))


def _tell(**progress: object) -> None:
    try:
        os.write(PROGRESS_FD, json.dumps(progress).encode() + b"\n")
    except OSError:
        pass  # it may have been closed on purpose


# -- what can break


def _raise() -> None:
    raise ValueError("boom")


def _end_by(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _lose_a_peer() -> None:
    print(
        'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
        "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _leave_a_daemon() -> None:
    """A grandchild that is deaf, in a session of its own, and nobody's child any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _write(Path(f"grandchild-{INDEX}"))
            time.sleep(600)
        os._exit(0)
    os.wait()
    _wait_for(Path(f"grandchild-{INDEX}"))


def _close_output() -> None:
    os.close(1)
    os.close(2)
    sys.stdout = sys.stderr = Path(os.devnull).open("w")
    _go_on()


def _flood() -> None:
    lines = b"a line of a flood\n" * 4096
    for _ in range(FLOOD_BYTES // len(lines)):
        os.write(1, lines)
    _go_on()


def _cut_its_log() -> None:
    os.ftruncate(1, 0)
    print("what comes after", flush=True)
    _go_on()


def _close_progress() -> None:
    os.close(PROGRESS_FD)
    _go_on()


def _tell_nonsense() -> None:
    nonsense = (
        b"\xff\xfe\0\n[[[\n{}\nnull\n" + b'{"step": 1e999, "epoch": -1, "phase": "\\ud800"}\n',
        b'{"metrics": ' + b'{"a":' * 300 + b"1" + b"}" * 301 + b"\n",
        b'{"sigterm": "later", "step": ' + b"9" * 5000 + b"}\n",
        b"x" * 300_000 + b"\n{",
    )
    for words in nonsense:
        while words:
            try:
                words = words[os.write(PROGRESS_FD, words) :]
            except BlockingIOError:
                time.sleep(_LOOK_S)
    _go_on()


def _eat_descriptors() -> None:
    kept = []
    while True:
        kept.append(os.open(os.devnull, os.O_RDONLY))


def _eat_memory() -> None:
    """Touched, page by page, or it would not count."""
    eaten = bytearray(200 << 20)
    eaten[:: 1 << 12] = b"x" * len(eaten[:: 1 << 12])
    _pause()


def _go_on() -> None:
    """What it did harms nobody: the run goes on by itself."""
    _write(Path("go"))


def _work() -> None:
    """For a while, and nothing breaks."""
    until = time.monotonic() + WORK_S
    while time.monotonic() < until:
        print(f"worker:{INDEX} works", flush=True)
        time.sleep(_TELL_S)
    _go_on()


def _nothing() -> None:
    """It is broken from outside, or has been all along."""


_BREAKS: dict[str, Callable[[], object]] = {
    "nothing": _nothing,
    "talks on": _nothing,
    "deaf": _nothing,
    "all deaf": _nothing,
    "works": _work,
    "daemonises": _nothing,
    "exits 3": lambda: os._exit(3),
    "exits 42": lambda: os._exit(42),
    "leaves": lambda: os._exit(0),
    "raises": _raise,
    "crashes": _end_by(signal.SIGSEGV),
    "kills itself": _end_by(signal.SIGKILL),
    "closes its output": _close_output,
    "floods": _flood,
    "cuts its log": _cut_its_log,
    "closes its progress": _close_progress,
    "tells nonsense": _tell_nonsense,
    "eats descriptors": _eat_descriptors,
    "eats memory": _eat_memory,
}

if __name__ == "__main__":
    main()
