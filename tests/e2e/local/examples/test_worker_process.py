"""The process of the training program: signals, start-up messages, kept iterators, and its place in TF_CONFIG."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref

import pytest
from cluster import LONGEST_RUN_S, ROOT
from hypothesis import given
from hypothesis import strategies as st

from worker.training.options.checks import check_place
from worker.training.process.environment import ClusterError, Place, read_place
from worker.training.process.output import drop_startup_messages, name_other_workers, print_as_task

# PyDLL, unlike CDLL, holds the lock during the call, as TensorFlow does while it waits for its peers.
BLOCKED = """
import ctypes, os, sys
from worker.training.process.ending import exit_on_signals
exit_on_signals()
libc = ctypes.CDLL(None)
libc.signal(15, ctypes.cast(libc.getpid, ctypes.c_void_p))  # as native code may do: it ignores SIGTERM
print("blocking", flush=True)
while True:
    ctypes.PyDLL(None).sleep(1000)
"""

HANDED_OVER = """
import os, signal, sys, threading
from worker.training.process.ending import exit_on_signal_again, exit_on_signals, pass_signal_to_python
exit_on_signals()
handled = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: handled.set())
pass_signal_to_python(signal.SIGTERM)
if sys.argv[1] == "signalled":
    os.kill(os.getpid(), signal.SIGTERM)
    # The handler runs only between Python instructions, so do not block.
    while not handled.wait(0.01):
        pass
    print("handled", flush=True)
exit_on_signal_again(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(60)
"""

WRITES = """
import os, sys
from worker.training.process.output import without_startup_messages
def write(text): os.write(2, text)
try:
    with without_startup_messages():
        write(b"oneDNN custom operations are on.\\nkept\\n")
        exec(sys.argv[1])
except ValueError:
    pass
write(b"after\\n")
"""


def start(code: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_blocked_process_exits_with_the_code_of_the_signal(number: signal.Signals, code: int) -> None:
    with start(BLOCKED) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "blocking\n"
            process.send_signal(number)
            assert process.wait(LONGEST_RUN_S) == code
        finally:
            process.kill()


@pytest.mark.parametrize(("before", "printed"), [("signalled", "handled\n"), ("not-signalled", "")])
def test_signal_passed_to_python_calls_its_handler_until_that_is_undone(before: str, printed: str) -> None:
    process = start(HANDED_OVER, before)
    assert process.communicate(timeout=LONGEST_RUN_S) == (printed, "")
    assert process.returncode == 143


# -- start-up messages of TensorFlow


def test_only_startup_messages_are_dropped() -> None:
    """Errors of the driver are kept if there is a driver."""
    message = b"I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on. You may see different results\n"
    no_gpu = b"E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n"
    real = b"E0000 00:00:1 1 server.cc:1] Could not start gRPC server\nno newline"
    assert drop_startup_messages(message + no_gpu + real, has_gpu=False) == real
    assert drop_startup_messages(no_gpu, has_gpu=True) == no_gpu


@pytest.mark.parametrize(
    ("code", "level", "written"),
    [
        ("pass", {}, "kept\nafter\n"),
        ("raise ValueError", {}, "kept\nafter\n"),
        # A log level of the user turns the filter off.
        ("pass", {"TF_CPP_MIN_LOG_LEVEL": "0"}, "oneDNN custom operations are on.\nkept\nafter\n"),
    ],
)
def test_other_lines_are_written_also_after_an_error(code: str, level: dict[str, str], written: str) -> None:
    assert start(WRITES, code, **level).communicate(timeout=LONGEST_RUN_S)[1] == written


def test_crash_while_lines_are_held_back_is_reported() -> None:
    process = start(WRITES, "os.abort()")
    assert "Fatal Python error: Aborted" in process.communicate(timeout=LONGEST_RUN_S)[1]
    assert process.returncode == -signal.SIGABRT


def test_task_prints_its_name_unless_orch_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three, two = (Place("worker:1", 1, ("a:1", "a:2", "a:3")[:workers]) for workers in (3, 2))
    print_as_task(three, f"waiting for {name_other_workers(three)}")
    monkeypatch.setenv("ORCH_RUN_ID", "run-1")
    print_as_task(two, f"waiting for {name_other_workers(two)}")
    assert capsys.readouterr().out.splitlines() == [
        "worker:1: waiting for the 2 other workers",
        "waiting for the other worker",
    ]


# -- iterators of fit


class Iterator:
    """A fake tf.data iterator."""


class Model:
    """A fake Keras model: creates its train function on demand, and calls it with an iterator in each step."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Iterator]] = []
        self.train_function = None

    def make_train_function(self) -> None:
        def step(iterator: Iterator) -> str:
            self.seen.append(weakref.ref(iterator))
            return "logs"

        self.train_function = step  # type: ignore[assignment]

    def fit(self, steps: int) -> None:
        iterator = Iterator()
        for _ in range(steps):
            assert self.train_function is not None
            assert self.train_function(iterator) == "logs"


def test_iterator_outlives_fit_only_if_kept() -> None:
    """Each is kept once, and is still passed to the step."""
    from worker.training.replicas import distribution

    plain, held = Model(), Model()
    plain.make_train_function()
    plain.fit(3)
    before = len(distribution._kept_iterators)
    distribution.keep_fit_iterators(held)
    held.fit(3)
    held.fit(2)
    gc.collect()
    assert plain.seen[-1]() is None
    assert held.seen[-1]() is not None
    assert len(distribution._kept_iterators) == before + 2
    assert len(held.seen) == 5


# -- the place in the cluster


def config(cluster: object, task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


SERVED = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"]}
WORKERS = {"worker": ["a:1", "b:2", "c:3"]}


@pytest.mark.parametrize(
    ("cluster", "role", "index", "place"),
    [
        (WORKERS, "worker", 0, Place("worker:0", 0, ("a:1", "b:2", "c:3"))),
        (WORKERS, "worker", 2, Place("worker:2", 2, ("a:1", "b:2", "c:3"))),
        # An evaluator need not be listed in its cluster.
        ({}, "evaluator", 0, Place("evaluator:0", 1)),
        ({"worker": ["a:1"]}, "evaluator", 0, Place("evaluator:0", 1, ("a:1",))),
        ({"worker": ["a:1"], "evaluator": ["c:3"]}, "evaluator", 0, Place("evaluator:0", 1, ("a:1",))),
        *(
            (SERVED, role, index, Place(f"{role}:{index}", rank, ("a:1", "b:2", "c:3"), ("d:4", "e:5"), True))
            for rank, (role, index) in enumerate(
                [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("evaluator", 0)]
            )
        ),
    ],
)
def test_place_of_a_task(cluster: dict[str, list[str]], role: str, index: int, place: Place) -> None:
    assert read_place(config(cluster, {"type": role, "index": index})) == place


def test_peers_are_the_other_workers_and_the_first_of_them_is_the_chief() -> None:
    places = [read_place(config(WORKERS, {"type": "worker", "index": index})) for index in range(3)]
    assert [place.peers for place in places] == [("b:2", "c:3"), ("a:1", "c:3"), ("a:1", "b:2")]
    assert [place.is_chief for place in places] == [True, False, False]
    alone = read_place({})
    assert (alone.task, alone.workers, alone.is_chief, alone.peers) == ("worker:0", 1, True, ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"cluster": 3}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "does not have"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', "does not have"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "master", "index": 0}}',
            "knows chief, worker, ps",
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "does not have"),
    ],
)
def test_invalid_tf_config_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        read_place({"TF_CONFIG": text})


def check(cluster: object, role: str, strategy: str) -> None:
    check_place(read_place(config(cluster, {"type": role, "index": 0})), strategy)


def test_roles_that_a_strategy_can_use_are_accepted() -> None:
    for role in ("chief", "worker", "ps", "evaluator"):
        check(SERVED, role, "parameter-server")
    check(WORKERS, "evaluator", "multi-worker-mirrored")
    with pytest.raises(ClusterError, match="leave the evaluator out"):
        check(WORKERS, "evaluator", "dtensor")


@pytest.mark.parametrize(
    ("cluster", "strategy", "says"),
    [
        (SERVED, "multi-worker-mirrored", "multi-worker-mirrored takes no parameter servers"),
        (SERVED, "mirrored", "mirrored takes no parameter servers"),
        ({"worker": ["a:1", "b:2"]}, "parameter-server", "has no parameter server:"),
        ({"worker": ["a:1"], "ps": ["b:2"]}, "parameter-server", "has no chief:"),
        ({"chief": ["a:1"], "ps": ["b:2"]}, "parameter-server", "has no worker besides the chief:"),
        ({"worker": ["a:1", "b:2"]}, "one-device", "one-device is one process"),
    ],
)
def test_role_that_a_strategy_cannot_use_is_refused(
    cluster: dict[str, list[str]], strategy: str, says: str
) -> None:
    for role in cluster:
        with pytest.raises(ClusterError, match=says):
            check(cluster, role, strategy)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["cluster", "task", "worker", "type"]), inner)
    ),
)


@given(json_values)
def test_any_json_gives_a_place_or_an_error(value: object) -> None:
    try:
        place = read_place({"TF_CONFIG": json.dumps(value)})
    except ClusterError:
        return
    assert place.role in ("ps", "evaluator") or 0 <= place.rank < place.workers
