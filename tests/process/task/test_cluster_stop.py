"""With real TensorFlow: a stop reaches a script that starts, trains, or waits for a peer; variables are cut."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tasks import LONGEST_RUN_S, Task, finished, running

# A busy machine may take several times as long as an idle one.
pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).with_name("cluster_script.py")


@contextmanager
def started(
    directory: Path,
    jobs: dict[str, int],
    tasks: Sequence[str],
    *arguments: str,
    script: str | Path = SCRIPT,
    **settings: object,
) -> Iterator[list[Task]]:
    """Start the processes `tasks` of a cluster, such as worker:0, each with the bootstrap."""
    with contextlib.ExitStack() as stack:
        cluster = {
            job: [stack.enter_context(held_port()) for _ in range(count)] for job, count in jobs.items()
        }
        found = []
        for name in tasks:
            command = ["-c", script] if isinstance(script, str) else [script, *arguments]
            env = {"TF_CONFIG": tf_config(cluster, name)}
            found.append(stack.enter_context(running(directory, command, env=env, name=name, **settings)))
        yield found


@contextmanager
def held_port() -> Iterator[str]:
    """A free address that only TensorFlow's server can take: it is bound on all interfaces, and not listening."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def tf_config(cluster: dict[str, list[str]], name: str) -> str:
    job, _, index = name.partition(":")
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": int(index)}})


def wait_for_tensorflows_handler(task: Task) -> None:
    """Wait until TensorFlow's handler, which it sets when a worker joins, is replaced again.

    A SIGTERM in between is lost. The agent would repeat it, but these tests have no agent.
    """
    task.wait_for_report(sigterm="again")


def said(task: Task) -> list[str]:
    words = ("blocking", "ready", "finally", "atexit")
    return [line for line in task.output.splitlines() if line in words]


def test_stop_during_the_wait_for_a_leader_that_does_not_answer(tmp_path: Path) -> None:
    """The first connection to it looks whether it listens: gRPC would send its greeting.

    An unmodified script finds its replicas and its cluster, also with SlurmClusterResolver. Slurm's variables describe
    the agent of the node; sorted by text, n10 would be the second node.
    """
    with socket.create_server(("127.0.0.1", 0)) as leader:
        leader.settimeout(LONGEST_RUN_S)
        others = [f"n{number}:{4000 + number}" for number in range(2, 12)]
        cluster = {"worker": [f"127.0.0.1:{leader.getsockname()[1]}", *others]}
        env = {
            "ORCH_REPLICAS": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CONFIG": tf_config(cluster, "worker:1"),
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_STEP_NODELIST": "n2",
            "SLURM_STEP_TASKS_PER_NODE": "1",
        }
        with running(tmp_path, [SCRIPT, "short"], env=env, name="worker:1") as task:
            first, _ = leader.accept()
            assert first.recv(1) == b""
            first.close()
            task.wait_for_report(phase="waiting")
            wait_for_tensorflows_handler(task)
            assert task.stop() == 143
        assert said(task) == ["blocking", "finally", "atexit"]
        (line,) = [line for line in task.output.splitlines() if line.startswith("found ")]
        assert json.loads(line.removeprefix("found ")) == [cluster, ["worker", 1], "grpc://n2:4002"]
        assert "replicas 3\n" in task.output
        assert task.phases == ["importing", "starting", "waiting"]
        assert not task.exception_file.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
@pytest.mark.parametrize(
    ("jobs", "task", "kind", "phase"),
    [
        ({"worker": 2}, "worker:0", "short", "waiting"),
        ({"worker": 2}, "worker:1", "short", "waiting"),
        ({"chief": 1, "worker": 1, "ps": 1}, "chief:0", "coordinate", "waiting"),
        ({"chief": 1, "worker": 1, "ps": 1}, "ps:0", "serve", "serving"),
    ],
)
def test_signals_end_every_wait(
    tmp_path: Path, jobs: dict[str, int], task: str, kind: str, phase: str, number: signal.Signals, code: int
) -> None:
    with started(tmp_path, jobs, [task], kind) as [process]:
        process.wait_for_report(phase=phase)
        if task.startswith("worker"):
            wait_for_tensorflows_handler(process)
            process.wait_for_line("Waiting for 1/2 tasks" if task == "worker:0" else "")
        process.process.send_signal(number)
        assert process.wait() == code
        assert said(process) == ["blocking", "finally", "atexit"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", "sleep", "steps", "fit"])
def test_stop_of_all_workers_during_training(tmp_path: Path, kind: str) -> None:
    with started(tmp_path, {"worker": 2}, ["worker:0", "worker:1"], kind, fixes=True) as tasks:
        for task in tasks:
            task.wait_for_line("ready")
        # Steps of both fail when one has gone, so both have their SIGTERM before one of them continues.
        stops = (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT)
        for number in stops if kind in ("steps", "fit") else (signal.SIGTERM,):
            for task in tasks:
                task.process.send_signal(number)
        assert [task.wait() for task in tasks] == [143, 143], [task.output for task in tasks]
        for task in tasks:
            assert said(task) == ["blocking", "ready", "finally", "atexit"]
            assert task.phases[:4] == ["importing", "starting", "waiting", "training"]


@pytest.mark.slow
def test_stop_during_a_collective_with_a_suspended_peer(tmp_path: Path) -> None:
    with started(tmp_path, {"worker": 2}, ["worker:0", "worker:1"], "steps") as tasks:
        for task in tasks:
            task.wait_for_line("ready")
        tasks[1].process.send_signal(signal.SIGSTOP)
        assert tasks[0].stop() == 143
        assert said(tasks[0]) == ["blocking", "ready", "finally", "atexit"]
        # TensorFlow itself would end it 20 s later.
        assert "unhealthy" not in tasks[0].output


CLEAN_UP_WITH_TENSORFLOW = """
import os
import tensorflow as tf
try:
    tf.distribute.MultiWorkerMirroredStrategy()
finally:
    os.write(1, b"finally\\n")
    try:
        print(tf.constant(1.0).numpy())
    finally:
        os.write(1, b"atexit\\n")
"""


@pytest.mark.slow
def test_clean_up_does_not_join_the_cluster_again(tmp_path: Path) -> None:
    """Joining would wait for the same peers, and no signal would end the wait."""
    with started(tmp_path, {"worker": 2}, ["worker:0"], script=CLEAN_UP_WITH_TENSORFLOW) as [task]:
        wait_for_tensorflows_handler(task)
        assert task.stop() == 143
        assert said(task) == ["finally", "atexit"]


@pytest.mark.slow
def test_tensorflow_handles_preemption(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    with started(tmp_path, {"worker": 2}, ["worker:0", "worker:1"], "preemptible", str(directory)) as tasks:
        for task in tasks:
            task.wait_for_line("ready")
        tasks[1].process.send_signal(signal.SIGTERM)
        assert [task.wait() for task in tasks] == [42, 42], [task.output for task in tasks]
        assert list(directory.glob("ckpt-*.index"))


@pytest.mark.slow
def test_error_while_joining_is_that_of_tensorflow(tmp_path: Path) -> None:
    last_lines = []
    for bootstrap in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            cluster = {"worker": [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1"]}
            env = {"TF_CONFIG": tf_config(cluster, "worker:0")}
            task = finished(tmp_path, [SCRIPT, "short"], env=env, bootstrap=bootstrap)
            assert task.wait() == 1
            kind = "tensorflow.python.framework.errors_impl."
            last_lines.append(next(line for line in task.output.splitlines() if line.startswith(kind)))
    assert task.exception["type"] == last_lines[0].partition(":")[0]
    assert last_lines[0] == last_lines[1]


WITHOUT_THE_LIBRARY = f"""
import ctypes, runpy, sys
class CDLL(ctypes.CDLL):
    def __init__(self, name, *arguments, **settings):
        if "tensorflow_cc" in str(name):
            raise OSError("not there")
        super().__init__(name, *arguments, **settings)
ctypes.CDLL = CDLL
sys.argv = [{str(SCRIPT)!r}, "sleep"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_tensorflow_without_the_c_library_can_be_stopped_during_training(tmp_path: Path) -> None:
    with started(tmp_path, {"worker": 2}, ["worker:0", "worker:1"], script=WITHOUT_THE_LIBRARY) as tasks:
        for task in tasks:
            task.wait_for_line("ready")
        assert [task.stop() for task in tasks] == [143, 143]
        assert all(said(task) == ["blocking", "ready", "finally", "atexit"] for task in tasks)


AFTER_A_FORK = """
import runpy, sys
sys.path.insert(0, {root!r})
import tensorflow as tf
from worker.bootstrap.install import install
install({options!r})
sys.argv = [{script!r}, "short"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_a_tensorflow_that_was_imported_before_is_hooked_too(tmp_path: Path) -> None:
    options = {"exception_file": str(tmp_path / "exception.txt"), "fixes": True}
    text = AFTER_A_FORK.format(root=str(SCRIPT.parents[3]), options=options, script=str(SCRIPT))
    with started(tmp_path, {"worker": 2}, ["worker:0"], script=text, bootstrap=False) as [task]:
        wait_for_tensorflows_handler(task)
        assert task.stop() == 143
        assert said(task) == ["blocking", "finally", "atexit"]
        assert task.phases == ["importing", "starting", "waiting"]


@pytest.mark.slow
def test_a_script_trains_variables_cut_over_parameter_servers_and_no_step_is_lost(tmp_path: Path) -> None:
    tasks = ("chief:0", "worker:0", "worker:1", "ps:0", "ps:1")
    script = SCRIPT.with_name("servers_script.py")
    with started(tmp_path, {"chief": 1, "worker": 2, "ps": 2}, tasks, script=script, fixes=True) as (
        chief,
        *others,
    ):
        assert chief.process.wait(250) == 0, chief.output
    (line,) = [line for line in chief.output.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert (found["steps"], found["counted"], found["parts"], found["restored"]) == (60, 60, 2, True)
    assert found["last"] < found["first"] / 2
    assert found["lowest"] >= 0  # the constraint of the whole variable
    assert "loses steps and metrics" in chief.output
    assert "cannot train variables that a partitioner cuts" in chief.output
    assert not any("orch:" in other.output for other in others)
