"""A task that attacks its launcher with the files, the output and the names that it controls.

It runs as the user and can do what the user can. But it must not make orch write or remove something elsewhere, block
a command, or report another end than the one that happened.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from orch_command import Orch

BEGIN = """
import json, os, pathlib, signal, socket, sys, time
run, canary = pathlib.Path(os.environ["ORCH_RUN_DIR"]), pathlib.Path("canary").absolute()

def replace(path, make):
    while True:
        if path.is_dir() and not path.is_symlink():
            path.rename(run / ("." + path.name + "-before"))
        else:
            path.unlink(missing_ok=True)
        try:
            return make(path)
        except FileExistsError:
            pass  # orch has written it again
"""
LINKS = """
supervisor = json.loads((run / "run.json").read_text())["supervisor_pid"]
for name in ("result.json", f".result.json.{supervisor}", "sample.json", f".sample.json.{supervisor}",
             "samples.jsonl", f".samples.jsonl.{supervisor}"):
    replace(run / name, lambda path: path.symlink_to(canary / "file"))
for name in ("logs/worker-0.log", "exceptions/worker-0.json", "exceptions/worker-0.txt", "stacks/worker-0.txt"):
    replace(run / name, lambda path: path.symlink_to(canary / "file"))
for name in ("scratch", "stacks"):
    replace(run / name, lambda path: path.symlink_to(canary))
replace(run / "control", lambda path: path.symlink_to(canary / "file"))
"""
PIPES = """
for name in ("sample.json", "samples.jsonl", "result.json", "exceptions/worker-0.json", "logs/worker-0.log",
             "logs/index", "control"):
    replace(run / name, lambda path: os.mkfifo(path))
"""
DIRECTORIES = """
for name in ("sample.json", "samples.jsonl", "exceptions/worker-0.json", "logs/worker-0.log", "logs/index", "control",
             ".reserve"):
    replace(run / name, lambda path: (path / "something").mkdir(parents=True))
"""
FORGED = """
result = {"schema_version": 1, "run_id": run.name, "outcome": "succeeded", "exit_code": 0, "attempts": 1,
          "cause": None, "first_failure": None, "detection_s": None, "teardown_s": None, "tasks": []}
(run / "result.json").write_text(json.dumps(result))
with (run / "events.jsonl").open("a") as events:
    for event in (
        {"type": "task_exited", "task": "worker:0", "exit_code": 0, "signal": None, "order": 0},
        {"type": "run_ended", "outcome": "succeeded", "exit_code": 0},
    ):
        events.write(json.dumps({"at": time.time(), "mono": time.monotonic(), **event}) + "\\n")
"""
END = """
print("the end", flush=True)
sys.exit(3)
"""


def canary_of(orch: Orch) -> Path:
    canary = orch.directory / "canary"
    canary.mkdir()
    for name in ("file", "worker-0"):
        (canary / name).write_text("precious")
    return canary


def is_unchanged(canary: Path) -> bool:
    return {path.name: path.read_text() for path in canary.iterdir()} == {
        "file": "precious",
        "worker-0": "precious",
    }


@pytest.mark.parametrize(
    "attack", [LINKS, PIPES, DIRECTORIES, FORGED], ids=["links", "pipes", "directories", "forged"]
)
def test_task_that_replaces_the_files_of_its_run_changes_nothing_else(orch: Orch, attack: str) -> None:
    canary = canary_of(orch)
    orch.script("train.py", BEGIN + attack + END)
    done = orch("up", "--", "train.py")
    assert done.code == 3, done.err
    assert "Traceback" not in done.err
    assert is_unchanged(canary)
    run = orch.run_dir()
    assert json.loads((run / "result.json").read_text())["exit_code"] == 3
    for verb in ("status", "logs", "ls", "stacks", "down"):
        shown = orch(verb)
        assert "precious" not in shown.out
        assert "Traceback" not in shown.err
    assert orch("prune", "--keep", "0", "--checkpoints").code == 0
    assert is_unchanged(canary)
    assert not run.exists()


def test_task_inherits_no_descriptor_of_its_launcher(orch: Orch) -> None:
    """With one it could speak to the supervisor as the agent, or hold the run's lock."""
    orch.script("list.sh", "for fd in /proc/$$/fd/*; do readlink $fd; done; cat")
    done = orch("up", "--no-prefix", "--", "sh", "list.sh")
    assert done.code == 0, done.err
    # The pipe takes reports of progress.
    allowed = re.compile(r"/dev/null|pipe:\[\d+\]|/.*/logs/worker-0\.log|/.*/list\.sh")
    assert len(done.lines) > 3
    assert [line for line in done.lines if not allowed.fullmatch(line)] == []


def test_task_cannot_keep_a_command_waiting_at_its_exit(orch: Orch) -> None:
    """It holds the pipe of its output open in a process that has left its group and session."""
    orch.script(
        "train.py",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n",
    )
    done = orch("up", "--", "train.py")
    assert done.code == 0, done.err
    assert orch.result()["outcome"] == "succeeded"


def test_variables_that_a_task_changes_have_no_effect_on_its_run(orch: Orch) -> None:
    canary = canary_of(orch)
    orch.script(
        "train.py",
        "import os, sys\n"
        "for name in os.environ:\n"
        "    if name.startswith('ORCH_'):\n"
        f"        os.environ[name] = {str(canary)!r}\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(3)'])",
    )
    assert orch("up", "--", "train.py").code == 3
    assert orch.result()["first_failure"]["task"] == "worker:0"
    assert is_unchanged(canary)
