"""Settings of a real run, the plan of `orch config`, the options about output, and runs inside of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH, Finished, Orch
from waiting import PATIENCE_S

import orchestrator

_PRINT_ENVIRONMENT = """
import json, os, sys
names = [n for n in os.environ if n.startswith("ORCH_") or n in ("TF_CONFIG", "no_proxy", "WORD")]
print(json.dumps({n: os.environ[n] for n in names} | {"stdin": os.readlink("/proc/self/fd/0"),
    "scratch": os.path.isdir(os.environ["ORCH_SCRATCH_DIR"]), "cwd": os.getcwd(), "args": sys.argv[1:]}))
"""
_AGAIN = f"""
import os, subprocess, sys
print("depth", os.environ["ORCH_DEPTH"])
up = ["{ORCH}", "up", "--", sys.executable, *sys.argv]
sys.exit(subprocess.run(up).returncode)
"""
_DETACHES = (
    f'import subprocess; subprocess.run(["{ORCH}", "up", "-d", "--name", "inner", "--", "sleep", "600"])'
)
_TOO_DEEP = (
    "orch does not start a run inside of 3 others (ORCH_DEPTH is 3); a task probably starts its own script"
)


@pytest.fixture(scope="module")
def run(shared_orch: Orch) -> Finished:
    """A run of two tasks that print their environment. Its settings come from all sources."""
    orch = shared_orch
    orch.script("env.py", _PRINT_ENVIRONMENT)
    (orch.directory / "deeper").mkdir()
    (orch.directory / "orch.toml").write_text('workers = 3\nenv = { WORD = "toml" }\ncwd = "deeper"\n')
    words = ("--no-prefix", "--checkpoint-dir", "kept", "-e", "WORD=flag", "--", "../env.py", "a b")
    env = {"ORCH_WORKERS": "2", "TF_CONFIG": '{"cluster": {}}', "no_proxy": "example.org"}
    env["SLURM_JOB_NUM_NODES"] = "3"
    done = orch.within("up", *words, env={**env})
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def tasks(run: Finished) -> list[dict[str, Any]]:
    return sorted(map(json.loads, run.lines), key=lambda task: str(task["ORCH_TASK"]))


def test_environment_of_tasks(run: Finished, tasks: list[dict[str, Any]], shared_orch: Orch) -> None:
    """A flag is taken before a variable, which is taken before orch.toml."""
    assert "TF_CONFIG is set in this environment; each task gets its own instead" in run.err
    assert "on this machine, and not on the 3 nodes of this Slurm job; `--engine slurm` uses" in run.err
    directory = shared_orch.run_dir()
    assert len(tasks) == 2
    for index, task in enumerate(tasks):
        assert (task["WORD"], task["cwd"]) == ("flag", str(shared_orch.directory / "deeper"))
        assert task["ORCH_TASK"] == f"worker:{index}" and task["ORCH_ATTEMPT"] == "1"
        assert (task["ORCH_RUN_ID"], task["ORCH_RUN_DIR"]) == (directory.name, str(directory))
        assert task["ORCH_CHECKPOINT_DIR"] == str(shared_orch.directory / "kept")
        assert json.loads(task["TF_CONFIG"])["task"] == {"type": "worker", "index": index}
        assert {"localhost", "example.org"} <= set(task["no_proxy"].split(","))
        assert task["stdin"] == "/dev/null" and task["args"] == ["a b"]


def test_run_leaves_private_directories_and_no_scratch_directory(
    tasks: list[dict[str, Any]], shared_orch: Orch
) -> None:
    scratch = {task["ORCH_SCRATCH_DIR"]: task["scratch"] for task in tasks}
    assert list(scratch.values()) == [True, True] and not any(Path(path).exists() for path in scratch)
    run = shared_orch.run_dir()
    private = [run, run / "logs", run / "run.json", run / "events.jsonl", run / "result.json"]
    assert [oct(entry.stat().st_mode & 0o077) for entry in private] == ["0o0"] * len(private)


def test_plan_is_shown_and_nothing_is_started(orch: Orch) -> None:
    words = ("-n", "2", "--", orch.script("train.py", "import tensorflow\n"), "--lr", "0.1")
    document = orch("config", "--json", *words).document
    assert [task["argv"][-3:] for task in document["tasks"]] == [["train.py", "--lr", "0.1"]] * 2
    assert document["tasks"][0]["bootstrap"]["task"] == "worker:0"
    assert "ORCH_BOOTSTRAP" not in document["tasks"][0]["env"]
    shown = orch("up", "--dry-run", *words)
    assert shown.code == 0 and "placeholder" in shown.out
    assert shown.out == orch("config", *words).out
    preload = ("config", "--preload", "json", "--", orch.script("look.py", "import json"))
    start = orch("--json", *preload).document["start"]
    assert (start["method"], start["preload"]) == ("fork", ["json"])
    assert (
        "start        spawn: --start spawn asks for it"
        in orch("config", "--start", "spawn", *preload[1:]).out
    )
    assert orch.run_dirs() == []


# -- output


def test_tasks_option_selects_shown_lines(orch: Orch) -> None:
    done = orch("up", "-n", "3", "--tasks", "chief,2", "--no-prefix", "--", "sh", "-c", "echo $ORCH_TASK")
    assert sorted(done.lines) == ["worker:0", "worker:2"]
    assert sorted(orch("logs", "1").lines) == ["worker:1 | worker:1"], "all lines are logged"


def test_options_about_output_come_before_or_after_the_verb(orch: Orch) -> None:
    done = orch("-q", "up", "--", "true")
    assert (done.code, done.out, done.err) == (0, "", "")
    failed = orch("up", "-q", "--", "false")
    assert failed.code == 1 and "orch: worker:0 failed: exit 1" in failed.err
    command = ("--", "sh", "-c", "echo words; exit 3")
    for words in (("--json", "-v", "up", *command), ("up", "--json", "-v", *command)):
        done = orch(*words)
        assert done.code == 3
        assert done.document == orch.result(orch.state / "orch" / "runs" / done.document["run_id"])
        assert "worker:0 | words\n" in done.err
        assert str(orch.state / "orch" / "runs") in done.err, "-v"
    coloured = orch.within("up", "--", "echo", "words", env={"ORCH_COLOR": "always"})
    assert "words" in coloured.out and "\x1b[" in coloured.out and "\x1b[2" not in coloured.out


def test_removed_current_directory_is_refused(orch: Orch) -> None:
    done = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec '{ORCH}' up -- true"],
        cwd=orch.directory,
        env=orch.environ(),
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2 and b"the current directory does not exist any more" in done.stderr


def test_help_and_version_import_no_slow_packages(orch: Orch) -> None:
    """`--help` and `--version` must be quick."""
    slow = {"pydantic", "rich", "psutil", "portpicker", "tensorflow"}
    for words in (("--help",), ("--version",)):
        done = orch(*words, env={"PYTHONPROFILEIMPORTTIME": "1"})
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.err.splitlines()}
        assert done.code == 0 and "orchestrator" in imported
        assert not imported & slow, words


# -- runs inside of runs


def test_task_that_starts_its_own_script_ends_at_the_fourth_level(orch: Orch) -> None:
    done = orch.run(script=_AGAIN, env={"ORCH_DEPTH": "2"})
    assert done.code == 2
    assert done.log("worker-0").startswith("depth 3\n") and _TOO_DEEP in done.log("worker-0")
    assert orch.run_dirs() == [done.run]


def test_variable_counts_the_runs_around(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "3": _TOO_DEEP,
        "77": _TOO_DEEP.replace("is 3", "is 77"),
        "many": "ORCH_DEPTH is 'many', not the number of runs around this one; unset it",
        "-1": "ORCH_DEPTH is '-1', not the number",
        "9" * 5000: f"ORCH_DEPTH is '{'9' * 40}', not the number",
    }
    for value, reason in refused.items():
        done = orch.within("up", "--", "true", env={"ORCH_DEPTH": value})
        assert (done.code, done.out) == (2, "") and reason in done.err, value[:9]
    # An empty variable counts as not set.
    done = orch.run(script="import os; print(os.environ['ORCH_DEPTH'])", env={"ORCH_DEPTH": ""})
    assert (done.code, done.out) == (0, "worker:0 | 1\n")
    is_refused = pytest.raises(orchestrator.UsageError, match="orch does not start a run inside of 3")
    with orchestrator.Session() as session:
        monkeypatch.setenv("ORCH_DEPTH", "2")
        assert session.run(os.getenv, ("ORCH_DEPTH",), workers=1) == ["3"]
        monkeypatch.setenv("ORCH_DEPTH", "3")
        with is_refused:
            session.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with is_refused:
        orchestrator.run(os.getenv, ("ORCH_DEPTH",), workers=1)
    with is_refused, orchestrator.Cluster(command=["true"]):
        pass


def test_detached_run_of_a_task_says_that_it_ends_with_the_task(orch: Orch) -> None:
    done = orch("up", "--", sys.executable, orch.script("train.py", _DETACHES))
    assert done.code == 0
    assert " ends with the task that has started it" in done.out
    # It depends on which of its processes is swept first.
    assert orch.status("inner")["run"]["state"] in ("stopped", "failed", "lost")
