"""Invalid requests are refused: a message on stderr, exit code 2, and no run is started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from orch_command import Orch
from waiting import until

from orchestrator.cli.early import early_supervisor, supervisor_of_up

_RUNS_NOTHING = ("--", "true")


_VERBS_ON_RUNS = ("status", "logs", "down", "wait", "attach")
_REFUSED = {
    ("--workers", "0", *_RUNS_NOTHING): "--workers: must be at least 1, not 0",
    ("--workers", "-1", *_RUNS_NOTHING): "--workers: must be at least 1, not -1",
    ("--workers", "10000"): "--workers: a job has at most 4,000 tasks, not 10,000",
    ("--workers", "two", *_RUNS_NOTHING): '--workers: "two" is not a whole number',
    ("--workers", "2.5", *_RUNS_NOTHING): '--workers: "2.5" is not a whole number',
    ("--", "no-such-command-here"): "command not found: no-such-command-here",
    ("--", "no-such-script.py"): "script not found: no-such-script.py",
    ("--", "python3", "no-such-script.py"): "script not found: no-such-script.py",
    ("--cwd", "/no/such/place", *_RUNS_NOTHING): "--cwd: /no/such/place does not exist",
    ("--log-dir", "/proc/orch", *_RUNS_NOTHING): "--log-dir: /proc/orch cannot be written",
    ("--checkpoint-dir", "/etc/passwd", *_RUNS_NOTHING): "--checkpoint-dir: /etc/passwd is not a dir",
    ("-n", "4", "--tasks", "9", *_RUNS_NOTHING): "--tasks: there is no worker:9 in this run",
    ("--tasks", "frobnicator", *_RUNS_NOTHING): "--tasks: 'frobnicator' is not a task",
    ("--timeout", "soon", *_RUNS_NOTHING): '--timeout: "soon" is not a duration',
    ("--timeout", "0", *_RUNS_NOTHING): "--timeout: a time-out of 0 would end the run at once",
    ("--grace", "-1", *_RUNS_NOTHING): '--grace: "-1" is negative',
    ("--failure-grace", "5 parsecs", *_RUNS_NOTHING): '--failure-grace: "5 parsecs" is not a duration',
    ("--env", "NOVALUE", *_RUNS_NOTHING): '--env: "NOVALUE" is not NAME=VALUE',
    ("--wait", "maybe", *_RUNS_NOTHING): '--wait: "maybe" is not known; write ready or done',
    ("--color", "blue", *_RUNS_NOTHING): '--color: "blue" is not known',
    ("--name", "a/b", *_RUNS_NOTHING): '--name: "a/b" is not a name',
    ("--frobnicate", *_RUNS_NOTHING): "No such option: --frobnicate",
    ("--workers",): "--workers",
}


def test_installed_command_refuses_invalid_option(orch: Orch) -> None:
    done = orch("up", "--workers", "0", *_RUNS_NOTHING)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("orch: --workers: must be at least 1, not 0") and done.err.count("\n") == 1
    assert orch.run_dirs() == []


def test_up_refuses_invalid_options(orch: Orch) -> None:
    for words, done in orch.all_within(("up", *words) for words in _REFUSED):
        assert (done.code, done.out) == (2, ""), words
        assert _REFUSED[words[1:]] in done.err and "Traceback" not in done.err, words
    assert orch.run_dirs() == []


def test_supervisor_starts_before_the_words_are_parsed() -> None:
    """If the words are refused then, the supervisor is killed. Otherwise it would continue to import its modules."""
    with early_supervisor(("up", "--frobnicate", "--", "train.py", "--help")):
        supervisor = supervisor_of_up()
        assert supervisor is not None and not supervisor.has_left()
    assert supervisor.wait(0)


@pytest.mark.parametrize("words", ["", "ls", "up --help", "up -n 2 -h -- train.py", "up --dry-run -- true"])
def test_words_that_start_no_run_start_no_supervisor(words: str) -> None:
    before = set(psutil.Process().children())  # other tests of this process may have left children
    with early_supervisor(words.split()):
        assert set(psutil.Process().children()) <= before


def test_refused_up_leaves_no_process(orch: Orch) -> None:
    done = orch("up", "--frobnicate", env={"ORCH_TEST_MARK": str(orch.directory)})
    assert done.code == 2
    until(lambda: not _processes_with("ORCH_TEST_MARK", str(orch.directory)))


def _processes_with(variable: str, value: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                found.append(process.pid)
    return found


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("wokers = 2\n", 'unknown key "wokers"; did you mean "workers"?'),
        ('workers = "2"\n', "workers: "),
        ("workers = [2]\n", "workers: "),
        ("workers = \n", "orch.toml"),
    ],
)
def test_invalid_orch_toml_is_refused(orch: Orch, toml: str, message: str) -> None:
    (orch.directory / "orch.toml").write_text(toml)
    for _, done in orch.all_within([("up", "--", "true"), ("config", "--", "true")]):
        assert (done.code, done.out) == (2, "")
        assert message in done.err and "orch.toml" in done.err
    assert orch.run_dirs() == []


def test_message_names_refused_variable(orch: Orch) -> None:
    done = orch.within("up", "--", "true", env={"ORCH_WORKERS": "many"})
    assert done.code == 2 and 'ORCH_WORKERS: "many" is not a whole number' in done.err
    assert orch.run_dirs() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_log_dir_without_permission(orch: Orch, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = orch("up", "--log-dir", str(closed), "--", "true")
    assert done.code == 2 and f"--log-dir: {closed} cannot be written" in done.err


def test_state_directory_that_cannot_be_created(orch: Orch) -> None:
    orch.state.write_text("a file where the directory should go")
    done = orch("up", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert str(orch.state) in done.err and "Traceback" not in done.err
    orch.state.unlink()


def test_run_that_does_not_exist(orch: Orch) -> None:
    for words, done in orch.all_within((verb, "nothing-of-that-name") for verb in _VERBS_ON_RUNS):
        assert (done.code, done.out) == (3, ""), words
        assert "no run 'nothing-of-that-name'" in done.err, words


def test_directory_without_runs(orch: Orch) -> None:
    assert orch("down").code == 0
    for words, done in orch.all_within((verb,) for verb in _VERBS_ON_RUNS if verb != "down"):
        assert done.code == 3 and "no run was started in" in done.err, words


def test_words_that_match_no_run_or_task(orch: Orch) -> None:
    assert orch("up", "-q", "-n", "2", "--", "true").code == 0
    refused = {
        ("logs", "worker:9"): (2, "has no task worker:9; it has worker:0, worker:1"),
        ("logs", "7"): (2, "has no task worker:7"),
        ("logs", "here", "frobnicator"): (2, "'frobnicator' is not a task"),
        ("logs", "--grep", "("): (2, '"(" is not a regular expression'),
        ("logs", "--invert"): (2, "--invert needs --grep RE"),
        ("logs", "--since", "never"): (2, '--since: "never" is neither'),
        ("logs", "--tail", "-1"): (2, "--tail"),
        ("wait", "--timeout", "soon"): (2, '--timeout: "soon" is not a duration'),
        ("attach",): (3, "is not live"),
        ("frobnicate",): (2, '"frobnicate" is not a verb; the verbs are up, config, '),
    }
    for words, done in orch.all_within(refused):
        code, message = refused[words]
        assert (done.code, done.out) == (code, ""), words
        assert message in done.err, words


def test_word_of_another_tool_names_the_verb(orch: Orch) -> None:
    meant = {
        "run": "up",
        "start": "up",
        "launch": "up",
        "stop": "down",
        "log": "logs",
        "list": "ls",
        "dwon": "down",
        "statsu": "status",
        "strat": "up",
        "train.py": "up -- train.py",
    }
    for words, done in orch.all_within((word, "--workers", "2") for word in meant):
        assert (done.code, done.out) == (2, ""), words
        assert done.err == f'orch: "{words[0]}" is not a verb; did you mean "orch {meant[words[0]]}"?\n'
