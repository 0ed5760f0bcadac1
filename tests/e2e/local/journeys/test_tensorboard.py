"""`orch up --tensorboard`: event files in the run's directory, served beside the tasks while they run."""

from __future__ import annotations

import errno
import json
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from orch_command import Orch
from waiting import child_with, until

from orchestrator.core.job.choices import NetworkOption
from orchestrator.core.job.spec import Command, CommandKind
from orchestrator.core.job.tensorboard import TensorBoard
from orchestrator.host.installed import find_tensorboard, installed_for

pytestmark = pytest.mark.timeout(400)
# TensorBoard imports many modules first, on a machine that may be busy.
SERVES_WITHIN_S = 180.0
# A proxy of the environment does not apply to this machine.
directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# Prints its event directory and TF_CONFIG, and ends when the file `go` exists.
SCRIPT = """
import json, os, pathlib, sys, time
print(json.dumps([os.environ.get("ORCH_TENSORBOARD_DIR"), json.loads(os.environ["TF_CONFIG"])]))
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


def serving(orch: Orch) -> Any:
    """The address in the status document."""
    return orch.supervisor() and orch.status()["run"]["tensorboard"]


def test_tensorboard_is_served_during_run_and_is_not_a_task(orch: Orch) -> None:
    script = orch.script("train.py", SCRIPT)
    started = orch.start("up", "--tensorboard", "--workers", "2", "--no-prefix", "--", script)
    url = until(lambda: serving(orch), SERVES_WITHIN_S)
    assert url.startswith("http://127.0.0.1:")
    port = int(url.rstrip("/").rpartition(":")[2])
    assert port < 32_768, "the kernel could give the port to another program while TensorBoard imports"
    with directly.open(f"{url}data/logdir", timeout=60) as answer:
        logdir = json.load(answer)["logdir"]
    assert logdir == str(orch.run_dir() / "tensorboard")
    assert [task["task"] for task in orch.status()["tasks"]] == ["worker:0", "worker:1"]
    assert f"TensorBoard: {url}" in orch("status").out
    orch.script("go", "")
    done = started.finish()
    assert done.code == 0, done.err
    assert done.err.count(f"orch: TensorBoard: {url}") == 1
    for line in done.lines:
        directory, tf_config = json.loads(line)
        assert directory == logdir
        assert list(tf_config["cluster"]) == ["worker"]
    assert serving(orch) is None
    # Another program may have taken the port for a moment.
    with socket.socket() as probe:
        until(lambda: probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED)


def test_end_of_tensorboard_does_not_fail_run(orch: Orch) -> None:
    """It is killed before it serves, which takes less time."""
    started = orch.start("up", "--tensorboard", "--", orch.script("train.py", SCRIPT))
    agent = until(orch.agent)
    psutil.Process(until(lambda: child_with(agent, "serve_tensorboard"))).kill()
    until(lambda: "TensorBoard ended" in started.err)
    assert serving(orch) is None
    orch.script("go", "")
    done = started.finish()
    assert done.code == 0, done.err
    assert "orch: TensorBoard ended (SIGKILL); the training continues; see " in done.err
    assert orch.result()["outcome"] == "succeeded"


def test_event_directory_exists_with_option_only(orch: Orch) -> None:
    orch.script("go", "")
    done = orch.run("--no-prefix", script=SCRIPT)
    assert json.loads(done.lines[0])[0] is None
    assert not (done.run / "tensorboard").exists()


def test_tensorboard_that_is_missing_or_in_a_private_network_is_noted(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o700)
    own = (str(without),)
    facts = {
        "kind": CommandKind.SCRIPT,
        "words": ("train.py",),
        "argv": (*own, "train.py"),
        "interpreter": own,
    }
    command = Command.model_validate({"serves": True, **facts})
    none = find_tensorboard([command], lambda python: installed_for(python, {}), own=None)
    assert none == TensorBoard() and not none.serves(NetworkOption.HOST)
    assert "pip install tensorboard" in (none.note(NetworkOption.HOST) or "")
    # orch's own Python has TensorBoard and is used instead.
    assert find_tensorboard([command], lambda python: None).python == sys.executable

    board = TensorBoard(python=sys.executable, program="serve.py")
    assert board.serves(NetworkOption.HOST) and board.note(NetworkOption.HOST) is None
    assert not board.serves(NetworkOption.PRIVATE)
    assert "--network private" in (board.note(NetworkOption.PRIVATE) or "")
