"""Settings of a real run, the plan of `orch config`, and the options about output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH, Finished, Orch
from waiting import PATIENCE_S

_PRINT_ENVIRONMENT = """
import json, os, sys
names = [n for n in os.environ if n.startswith("ORCH_") or n in ("TF_CONFIG", "no_proxy", "WORD")]
print(json.dumps({n: os.environ[n] for n in names} | {"stdin": os.readlink("/proc/self/fd/0"),
    "scratch": os.path.isdir(os.environ["ORCH_SCRATCH_DIR"]), "cwd": os.getcwd(), "args": sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def run(shared_orch: Orch) -> Finished:
    """A run of two tasks that print their environment. Its settings come from all sources."""
    orch = shared_orch
    orch.script("env.py", _PRINT_ENVIRONMENT)
    (orch.directory / "deeper").mkdir()
    (orch.directory / "orch.toml").write_text('workers = 3\nenv = { WORD = "toml" }\ncwd = "deeper"\n')
    words = ("--no-prefix", "--checkpoint-dir", "kept", "-e", "WORD=flag", "--", "../env.py", "a b")
    env: dict[str, str | None] = {
        "ORCH_WORKERS": "2",
        "TF_CONFIG": '{"cluster": {}}',
        "no_proxy": "example.org",
    }
    done = orch("up", *words, env=env)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def tasks(run: Finished) -> list[dict[str, Any]]:
    return sorted(map(json.loads, run.lines), key=lambda task: str(task["ORCH_TASK"]))


def test_flag_over_variable_over_file(tasks: list[dict[str, Any]], shared_orch: Orch) -> None:
    assert [task["WORD"] for task in tasks] == ["flag", "flag"]
    assert [task["cwd"] for task in tasks] == [str(shared_orch.directory / "deeper")] * 2


def test_environment_of_tasks(run: Finished, tasks: list[dict[str, Any]], shared_orch: Orch) -> None:
    assert "TF_CONFIG is set in this environment; each task gets its own instead" in run.err
    directory = shared_orch.run_dir()
    for index, task in enumerate(tasks):
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
    shown = orch("up", "--dry-run", *words)
    assert shown.code == 0 and "placeholder" in shown.out
    assert shown.out == orch("config", *words).out
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


def test_colour_without_terminal(orch: Orch) -> None:
    """Without the option there is none, which the lines of the other tests show."""
    done = orch.within("up", "--", "echo", "words", env={"ORCH_COLOR": "always"})
    assert "words" in done.out and "\x1b[" in done.out and "\x1b[2" not in done.out


def test_full_disk_under_stdout_stops_run(orch: Orch) -> None:
    """Unlike a closed pipe, this is an error: it is reported, and the run is stopped."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [ORCH, "up", "--", "sh", "-c", "echo words; exec sleep 600"],
            cwd=orch.directory,
            env=orch.environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 125
    assert b"standard output: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    assert orch.result()["outcome"] == "stopped"


def test_closed_standard_streams(orch: Orch) -> None:
    """`orch up >&- 2>&-`: files that orch opens do not become stdout, and the exit code is the one of the run."""
    for closed in (">&-", "<&- >&- 2>&-"):
        assert shell(orch, f"'{ORCH}' up -- sh -c 'echo words; exit 3' {closed}").returncode == 3, closed
        run = orch.run_dirs()[-1]
        assert orch.result(run)["exit_code"] == 3
        assert (run / "logs" / "worker-0.log").read_text() == "words\n"
    assert len(orch.run_dirs()) == 2


def test_removed_current_directory_is_refused(orch: Orch) -> None:
    done = shell(orch, f"mkdir gone && cd gone && rmdir ../gone && exec '{ORCH}' up -- true")
    assert done.returncode == 2 and b"the current directory does not exist any more" in done.stderr


def shell(orch: Orch, command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=orch.directory,
        env=orch.environ(),
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )


def test_help_and_version_import_no_slow_packages(orch: Orch) -> None:
    """`--help` and `--version` must be quick."""
    slow = {"pydantic", "rich", "psutil", "portpicker", "tensorflow"}
    for words in (("--help",), ("--version",)):
        done = orch(*words, env={"PYTHONPROFILEIMPORTTIME": "1"})
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.err.splitlines()}
        assert done.code == 0 and "orchestrator" in imported
        assert not imported & slow, words
