"""Invalid requests are refused: a message on stderr, exit code 2, and no run is started."""

from __future__ import annotations

import os

from orch_command import Finished, Orch

_VERBS_ON_RUNS = ("status", "logs", "down", "wait", "attach")
_NO_TERMINAL = "standard input and output are not a terminal"
# Options of `orch up`, and the command if it is not a script.
_REFUSED = {
    ("--interactive", "0"): _NO_TERMINAL,
    ("--interactive", "worker:7"): "there is no worker:7 in this run",
    ("--interactive", "0,1"): "one task can have the terminal, not 2",
    ("--interactive", "0", "-d"): "a detached `orch up` has no terminal",
    ("--interactive", "0", "--hosts", "a:2"): "cannot be passed to a task on another host",
    ("--interactive", "0", "--json"): "with --json, standard output has the result only",
    ("--pdb",): f"--pdb: {_NO_TERMINAL}",
    ("--pdb", "--interactive", "0"): "--pdb and --interactive both need this terminal",
    ("--pdb", "--wait", "done"): "--pdb: a detached `orch up` has no terminal",
    ("--debug", "worker:9"): "--debug: there is no worker:9 in this run",
    ("--debug", "frobnicator"): "--debug: 'frobnicator' is not a task",
    ("--debug", "all", "--", "true"): "--debug: worker:0 runs true, which is not a Python program",
    ("--debug", "0", "--", "python3", "-I", "train.py"): "is not a Python program that orch can bring",
    ("--debug-no-wait",): "--debug-no-wait needs --debug",
    ("--debug", "0", "--network", "private"): "--debug: with --network private",
    ("--debug", "0", "--hosts", "a:2"): "cannot be reached with --hosts",
    ("--debug", "0", "--", "/usr/bin/python3", "train.py"): (
        "has no module debugpy; /usr/bin/python3 -m pip install debugpy"
    ),
    ("--junit", "none/r.xml"): "none is not a directory; create it",
    ("--junit", "."): "is a directory; name a file",
    ("--junit", "pipe"): "is not a regular file",
    ("--junit", "r" * 300): "File name too long",
    ("--junit", "r.xml", "-d"): "--junit: the file is written when the run has ended",
    ("--junit", "r.xml", "--wait", "ready"): "use --wait done",
    ("--log-dir", "/proc/orch"): "--log-dir: /proc/orch cannot be written",
}


def test_installed_command_refuses_a_value_of_each_source(orch: Orch) -> None:
    """The other values and sentences are those of tests/unit/request/refusals.py."""
    refused = orch.start("up", "--workers", "0", "--", "true", cold=True).finish()
    assert_refused(refused, "--workers: must be at least 1, not 0")
    refused = orch.within("up", "--", "true", env={"ORCH_WORKERS": "many"})
    assert_refused(refused, 'ORCH_WORKERS: "many" is not a whole number')
    (orch.directory / "orch.toml").write_text("wokers = 2\n")
    refused = orch("up", "--", "true")
    assert_refused(refused, 'orch.toml, line 1: unknown key "wokers"; did you mean "workers"?')
    assert orch.run_dirs() == []


def assert_refused(done: Finished, message: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"orch: {message}") and done.err.count("\n") == 1


def test_options_that_do_not_fit_the_run_are_refused(orch: Orch) -> None:
    os.mkfifo(orch.directory / "pipe")
    script = ("--", orch.script("train.py", ""))
    wrong = {}
    for options, sentence in _REFUSED.items():
        done = orch("up", "-n", "2", *options, *(() if "--" in options else script))
        if (done.code, done.out) != (2, "") or sentence not in done.err or "Traceback" in done.err:
            wrong[options] = done
    assert not wrong and orch.run_dirs() == []


def test_state_directory_that_cannot_be_created(orch: Orch) -> None:
    orch.state.write_text("a file where the directory should go")
    done = orch("up", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert str(orch.state) in done.err and "Traceback" not in done.err
    orch.state.unlink()


def test_words_that_match_no_run_or_task(orch: Orch) -> None:
    assert orch("down").code == 0, "without runs, there is nothing to stop"
    for words, done in orch.all_within((verb,) for verb in _VERBS_ON_RUNS if verb != "down"):
        assert done.code == 3 and "no run was started in" in done.err, words
    assert orch("up", "-q", "-n", "2", "--", "true").code == 0
    refused = {
        **{(verb, "nothing-of-that-name"): (3, "no run 'nothing-of-that-name'") for verb in _VERBS_ON_RUNS},
        ("logs", "worker:9"): (2, "has no task worker:9; it has worker:0, worker:1"),
        ("logs", "7"): (2, "has no task worker:7"),
        ("logs", "here", "frobnicator"): (2, "'frobnicator' is not a task"),
        ("logs", "--grep", "("): (2, '"(" is not a regular expression'),
        ("logs", "--invert"): (2, "--invert needs --grep RE"),
        ("logs", "--since", "never"): (2, '--since: "never" is neither'),
        ("logs", "--tail", "-1"): (2, "--tail"),
        ("logs", "--raw", "--json"): (2, "--raw"),
        ("--json", "logs", "--raw"): (2, "--raw"),
        ("logs", "--raw", "--fold"): (2, "--raw"),
        ("logs", "--timestamps=utc"): (
            2,
            '--timestamps: "utc" is not a format of times; write time or iso\n',
        ),
        ("wait", "--timeout", "soon"): (2, '--timeout: "soon" is not a duration'),
        ("up", "--workers"): (2, "--workers"),
        ("attach",): (3, "is not live"),
        ("frobnicate",): (2, '"frobnicate" is not a verb; the verbs are up, config, '),
    }
    for words, done in orch.all_within(refused):
        code, message = refused[words]
        assert (done.code, done.out) == (code, ""), words
        assert message in done.err and "Traceback" not in done.err, words


def test_word_of_another_tool_names_the_verb(orch: Orch) -> None:
    ups = dict.fromkeys(("run", "start", "launch", "strat"), "up")
    meant = {"stop": "down", "log": "logs", "list": "ls", "dwon": "down", "statsu": "status", **ups}
    meant["train.py"] = "up -- train.py"
    for words, done in orch.all_within((word, "--workers", "2") for word in meant):
        assert (done.code, done.out) == (2, ""), words
        assert done.err == f'orch: "{words[0]}" is not a verb; did you mean "orch {meant[words[0]]}"?\n'
