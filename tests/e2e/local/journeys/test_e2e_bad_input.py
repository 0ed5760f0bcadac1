"""Invalid requests are refused: a message on stderr, exit code 2, and no run is started."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest
from orch_command import Finished, Orch
from waiting import until

from orchestrator.cli.early import early_supervisor, supervisor_of_up

_VERBS_ON_RUNS = ("status", "logs", "down", "wait", "attach")


def test_installed_command_refuses_a_value_of_each_source(orch: Orch) -> None:
    """The other values and sentences are those of tests/unit/request/refusals.py."""
    refused = orch("up", "--workers", "0", "--", "true")
    assert_refused(refused, "--workers: must be at least 1, not 0")
    refused = orch("up", "--", "true", env={"ORCH_WORKERS": "many"})
    assert_refused(refused, 'ORCH_WORKERS: "many" is not a whole number')
    (orch.directory / "orch.toml").write_text("wokers = 2\n")
    refused = orch("up", "--", "true")
    assert_refused(refused, 'orch.toml, line 1: unknown key "wokers"; did you mean "workers"?')
    assert orch.run_dirs() == []


def assert_refused(done: Finished, message: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"orch: {message}") and done.err.count("\n") == 1


def test_refused_up_leaves_no_process(orch: Orch) -> None:
    done = orch("up", "--frobnicate", env={"ORCH_TEST_MARK": str(orch.directory)})
    assert (done.code, done.out) == (2, "") and "No such option: --frobnicate" in done.err
    until(lambda: not _processes_with("ORCH_TEST_MARK", str(orch.directory)))


def _processes_with(variable: str, value: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                found.append(process.pid)
    return found


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


def test_state_directory_that_cannot_be_created(orch: Orch) -> None:
    orch.state.write_text("a file where the directory should go")
    done = orch("up", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert str(orch.state) in done.err and "Traceback" not in done.err
    orch.state.unlink()


def test_run_that_does_not_exist(orch: Orch) -> None:
    assert orch("down").code == 0, "without runs, there is nothing to stop"
    for words, done in orch.all_within((verb,) for verb in _VERBS_ON_RUNS if verb != "down"):
        assert done.code == 3 and "no run was started in" in done.err, words
    for words, done in orch.all_within((verb, "nothing-of-that-name") for verb in _VERBS_ON_RUNS):
        assert (done.code, done.out) == (3, ""), words
        assert "no run 'nothing-of-that-name'" in done.err, words


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
        ("up", "--workers"): (2, "--workers"),
        ("up", "--log-dir", "/proc/orch", "--", "true"): (2, "--log-dir: /proc/orch cannot be written"),
        ("attach",): (3, "is not live"),
        ("frobnicate",): (2, '"frobnicate" is not a verb; the verbs are up, config, '),
    }
    for words, done in orch.all_within(refused):
        code, message = refused[words]
        assert (done.code, done.out) == (code, ""), words
        assert message in done.err and "Traceback" not in done.err, words


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
