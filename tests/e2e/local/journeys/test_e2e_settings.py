"""Sources of an option's value, the plan of `orch config`, and the options about output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from orch_command import ORCH, Orch
from waiting import PATIENCE_S

_ECHO = ("sh", "-c", 'echo "$ORCH_TASK $WORD"')


def _planned(orch: Orch, *words: str, **more: Any) -> dict[str, Any]:
    done = orch.within("config", "--json", *words, **more)
    assert done.code == 0, done.err
    document = done.document
    assert isinstance(document, dict)
    return document


def test_precedence_of_settings(orch: Orch) -> None:
    """Flag over variable over orch.toml over default."""
    variable: dict[str, str | None] = {"ORCH_WORKERS": "3"}
    assert len(_planned(orch, "--", "true")["tasks"]) == 1
    (orch.directory / "orch.toml").write_text('workers = 2\ncommand = "echo toml"\nenv = { WORD = "toml" }\n')
    plan = _planned(orch)
    assert [task["argv"][-1] for task in plan["tasks"]] == ["toml", "toml"]
    assert plan["tasks"][0]["env"]["WORD"] == "toml"
    assert len(_planned(orch, env=variable)["tasks"]) == 3
    assert len(_planned(orch, "--workers", "4", env=variable)["tasks"]) == 4
    inside = {**variable, "ORCH_RUN_ID": "here-20260101T000000Z-0000"}
    assert len(_planned(orch, env=inside)["tasks"]) == 2, "variables of a task's environment are ignored"


def test_run_uses_settings_by_precedence(orch: Orch) -> None:
    (orch.directory / "orch.toml").write_text('workers = 2\nenv = { WORD = "toml" }\n')
    assert sorted(orch("up", "-q", "--", *_ECHO).lines) == [
        "worker:0 | worker:0 toml",
        "worker:1 | worker:1 toml",
    ]
    assert orch("up", "-q", "-e", "WORD=flag", "--", *_ECHO, env={"ORCH_WORKERS": "1"}).lines == [
        "worker:0 | worker:0 flag"
    ]


def test_config_shows_plan(orch: Orch) -> None:
    script = orch.script("train.py", "import tensorflow\n")
    document = _planned(orch, "-n", "2", "--", script, "--lr", "0.1")
    assert document["schema_version"] == 1
    for index, task in enumerate(document["tasks"]):
        assert set(task) >= {"task", "role", "index", "argv", "env", "tf_config"}
        assert (task["task"], task["role"], task["index"]) == (f"worker:{index}", "worker", index)
        assert task["argv"][-3:] == ["train.py", "--lr", "0.1"]
        assert task["tf_config"]["task"] == {"type": "worker", "index": index}
        assert len(task["tf_config"]["cluster"]["worker"]) == 2
        assert json.loads(task["env"]["TF_CONFIG"]) == task["tf_config"]
        assert task["env"]["ORCH_TASK"] == f"worker:{index}"
    shown = orch("up", "--dry-run", "-n", "2", "--", script)
    assert shown.code == 0 and "placeholder" in shown.out
    assert shown.out == orch("config", "-n", "2", "--", script).out
    assert orch.run_dirs() == []


def test_environment_of_tasks(orch: Orch) -> None:
    """The run leaves private directories and no scratch directory."""
    script = orch.script(
        "env.py",
        "import json, os, sys\n"
        "names = [n for n in os.environ if n.startswith('ORCH_') or n in ('TF_CONFIG', 'no_proxy')]\n"
        "print(json.dumps({n: os.environ[n] for n in names} | {'stdin': os.readlink('/proc/self/fd/0'),"
        " 'scratch': os.path.isdir(os.environ['ORCH_SCRATCH_DIR']),"
        " 'cwd': os.getcwd(), 'args': sys.argv[1:]}))\n",
    )
    (orch.directory / "deeper").mkdir()
    words = (
        "--no-prefix",
        "-n",
        "2",
        "--checkpoint-dir",
        "kept",
        "--cwd",
        "deeper",
        "--",
        f"../{script}",
        "a b",
    )
    done = orch("up", *words, env={"TF_CONFIG": '{"cluster": {}}', "no_proxy": "example.org"})
    assert done.code == 0
    assert "TF_CONFIG is set in this environment; each task gets its own instead" in done.err
    tasks = sorted(map(json.loads, done.lines), key=lambda task: str(task["ORCH_TASK"]))
    run = orch.run_dir()
    for index, task in enumerate(tasks):
        assert task["ORCH_TASK"] == f"worker:{index}" and task["ORCH_ATTEMPT"] == "1"
        assert (task["ORCH_RUN_ID"], task["ORCH_RUN_DIR"]) == (run.name, str(run))
        assert task["ORCH_CHECKPOINT_DIR"] == str(orch.directory / "kept")
        assert task["scratch"] is True and not Path(task["ORCH_SCRATCH_DIR"]).exists()
        assert json.loads(task["TF_CONFIG"])["task"] == {"type": "worker", "index": index}
        assert {"localhost", "example.org"} <= set(task["no_proxy"].split(","))
        assert task["stdin"] == "/dev/null" and task["args"] == ["a b"]
        assert task["cwd"] == str(orch.directory / "deeper")
    assert tasks[0]["ORCH_SCRATCH_DIR"] != tasks[1]["ORCH_SCRATCH_DIR"]
    private = [run, run / "logs", run / "run.json", run / "events.jsonl", run / "result.json"]
    assert [oct(entry.stat().st_mode & 0o077) for entry in private] == ["0o0"] * len(private)


def test_tasks_option_selects_shown_lines(orch: Orch) -> None:
    done = orch("up", "-n", "3", "--tasks", "0,worker:2", "-e", "WORD=w", "--", *_ECHO)
    assert sorted(done.lines) == ["worker:0 | worker:0 w", "worker:2 | worker:2 w"]
    assert sorted(orch("logs", "1").lines) == ["worker:1 | worker:1 w"], "all lines are logged"
    assert orch("up", "-n", "2", "--tasks", "chief", "--no-prefix", "--", *_ECHO).lines == ["worker:0 "]


def test_quiet_and_verbose(orch: Orch) -> None:
    """Options about output can come before or after the verb."""
    quiet = [("-q", "up", "--", "true"), ("up", "-q", "--", "true")]
    assert [(done.code, done.err) for _, done in orch.all_within(quiet)] == [(0, ""), (0, "")]
    ((_, failed),) = orch.all_within([("up", "-q", "--", "false")])
    assert failed.code == 1 and "orch: worker:0 failed: exit 1" in failed.err
    for words, done in orch.all_within([("-v", "up", "--", "true"), ("up", "-v", "--", "true")]):
        assert str(orch.state / "orch" / "runs") in done.err, words


def test_json_result_on_stdout(orch: Orch) -> None:
    command = ("--", "sh", "-c", "echo words; exit 3")
    for _, done in orch.all_within([("--json", "up", *command), ("up", "--json", *command)]):
        assert done.code == 3
        assert done.document == orch.result(orch.state / "orch" / "runs" / done.document["run_id"])
        assert "worker:0 | words\n" in done.err


@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ((), {}, False),
        (("--color", "always"), {}, True),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "auto"), {"FORCE_COLOR": "1"}, False),
        ((), {"ORCH_COLOR": "always"}, True),
    ],
)
def test_colour_without_terminal(
    orch: Orch, words: tuple[str, ...], env: dict[str, str | None], coloured: bool
) -> None:
    done = orch.within("up", *words, "--", "echo", "words", env=env)
    assert ("\x1b[" in done.out) is coloured
    assert "words" in done.out and "\x1b[2" not in done.out


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
        command = f"'{ORCH}' up -- sh -c 'echo words; exit 3' {closed}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=orch.directory, env=orch.environ(), timeout=PATIENCE_S
        )
        assert done.returncode == 3, closed
        run = orch.run_dirs()[-1]
        assert orch.result(run)["exit_code"] == 3
        assert (run / "logs" / "worker-0.log").read_text() == "words\n"
    assert len(orch.run_dirs()) == 2


def test_removed_current_directory_is_refused(orch: Orch) -> None:
    command = f"mkdir gone && cd gone && rmdir ../gone && exec '{ORCH}' up -- true"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=orch.directory,
        env=orch.environ(),
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
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
