"""A live run in a notebook: its picture is updated by a real kernel until the run ends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from orchestrator import Cluster

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ipykernel") is None, reason="ipykernel is not installed (scripts/setup dev)"
)
# Reports a loss twice a second, from when the file `train` exists until `go` does.
REPORTS = """
import json, os, time
step = 0
while not os.path.exists("train"):
    time.sleep(0.01)
while not os.path.exists("go"):
    step += 1
    said = json.dumps({"phase": "training", "step": step, "loss": 1 / step})
    os.write(int(os.environ["ORCH_PROGRESS_FD"]), said.encode() + b"\\n")
    time.sleep(0.5)
"""
BEGIN = """
import orchestrator, sys, threading
cluster = orchestrator.Cluster(2, [sys.executable, "train.py"])
run = cluster.__enter__()
"""
CURVES = "[thread.name for thread in threading.enumerate() if thread.name.startswith('curves of')]"


class Notebook:
    """A kernel and what it has sent to its notebook."""

    def __init__(self, directory: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(cwd=str(directory), startup_timeout=200)
        self.messages: list[dict[str, Any]] = []

    def close(self) -> int:
        """End the kernel and return its exit code."""
        kernel = self._manager.provisioner.process
        self._client.shutdown()
        kernel.wait()
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        return int(kernel.returncode)

    def until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next message of which `found` is true. The time limit is the test's."""
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            assert message["msg_type"] != "error", message["content"]
            self.messages.append(message)
            if found(message):
                return dict(message)

    def cell(self, code: str) -> list[dict[str, Any]]:
        """Run a cell and return its outputs."""
        cell = self._client.execute(code)
        begun = len(self.messages)
        self.until(
            lambda message: (
                message["parent_header"].get("msg_id") == cell
                and message["content"].get("execution_state") == "idle"
            )
        )
        its = [each for each in self.messages[begun:] if each["parent_header"].get("msg_id") == cell]
        return [each for each in its if each["msg_type"] not in ("status", "execute_input")]

    def value(self, code: str) -> str:
        (output,) = self.cell(code)
        return str(output["content"]["data"]["text/plain"])


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (tmp_path / "train.py").write_text(REPORTS)
    started = Notebook(tmp_path)
    yield started
    # Also while a picture is updated.
    assert started.close() == 0


def html(message: dict[str, Any]) -> str:
    return str(message["content"]["data"]["text/html"])


def is_update(message: dict[str, Any], text: str) -> bool:
    return message["msg_type"] == "update_display_data" and text in html(message)


def test_picture_of_a_live_run_is_updated_until_its_end(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(BEGIN)
    (shown,) = notebook.cell("run")
    assert shown["msg_type"] == "display_data" and "<figcaption>loss" not in html(shown)
    picture = shown["content"]["transient"]
    # No cell runs meanwhile.
    (tmp_path / "train").touch()
    updated = notebook.until(lambda message: is_update(message, "<figcaption>loss"))
    assert updated["content"]["transient"] == picture
    assert updated["parent_header"]["msg_id"] == shown["parent_header"]["msg_id"]

    # Another cell with the same run has the same picture, which one thread updates.
    outputs = notebook.cell("orchestrator.find(run.id)")
    (again,) = [output for output in outputs if output["msg_type"] == "display_data"]
    assert again["content"]["transient"] == picture
    assert notebook.value(f"len({CURVES})") == "1"

    (tmp_path / "go").touch()
    last = notebook.until(lambda message: is_update(message, "succeeded"))
    assert last["content"]["transient"] == picture and "<figcaption>loss" in html(last)
    joined = f"[each.join() for each in threading.enumerate() if each.name in {CURVES}] and {CURVES}"
    assert notebook.value(joined) == "[]"
    (ended,) = notebook.cell("run")
    assert ended["msg_type"] == "execute_result" and "succeeded" in html(ended)

    # A program that runs a notebook reads what a cell sends only while that cell runs.
    (tmp_path / "go").unlink()
    notebook.cell(BEGIN)
    (shown,) = notebook.cell("run")
    (tmp_path / "go").touch()
    waited = notebook.cell("run.wait(); cluster.__exit__()")[-1]
    assert is_update(waited, "succeeded")
    assert waited["content"]["transient"] == shown["content"]["transient"]

    # The kernel ends while another picture is updated.
    (tmp_path / "go").unlink()
    notebook.cell(BEGIN)
    notebook.cell("run")
    notebook.until(lambda message: is_update(message, "<figcaption>loss"))


def test_nothing_is_updated_in_a_terminal(tmp_path: Path) -> None:
    """IPython cannot change what it has shown there. Plain Python prints the run."""
    program = """
import orchestrator, threading
with orchestrator.Cluster(command=["sleep", "600"]) as run:
    display(run)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("curves")]
"""
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    argv = [sys.executable, "-m", "IPython", "--no-banner", "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("<Run ")
    with Cluster(command=["true"], directory=tmp_path) as run, pytest.raises(NotImplementedError):
        run._ipython_display_()
