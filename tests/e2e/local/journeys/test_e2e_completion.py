"""Shell completion."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from orch_command import ORCH, Orch
from terminal import Terminal
from waiting import PATIENCE_S

# Interactive, without the user's settings; and what makes a completion script work there.
_SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "fish": (["fish", "--no-config", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D; "),
}
# Typer's completion for zsh escapes the dollar sign, but not the backslash before it.
_HOSTILE = r"w\$(touch pwned)"


def _offered(orch: Orch, line: str) -> list[str]:
    """The completions that bash gets for the last word of `line`."""
    env = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_ORCH_COMPLETE": "complete_bash"}
    done = orch(env={**env})
    assert (done.code, done.err) == (0, "")
    return [line for line in done.lines if line]


def test_completion_script_of_calling_shell(orch: Orch) -> None:
    shell = ["bash", "-c", f"'{ORCH}' --show-completion; true"]
    done = subprocess.run(shell, env=orch.environ(), capture_output=True, timeout=PATIENCE_S, check=True)
    assert b"_ORCH_COMPLETE=complete_bash" in done.stdout and b"complete -o default" in done.stdout


def test_completion_of_verbs_options_runs_and_tasks(orch: Orch) -> None:
    verbs = {"up", "config", "status", "logs", "down", "wait", "ls", "attach", "doctor"}
    verbs |= {"kill", "restart", "stacks", "prune", "export", "history", "report", "ui", "warm", "notice"}
    assert set(_offered(orch, "orch ")) == verbs
    assert _offered(orch, "orch do") == ["down", "doctor"]
    assert _offered(orch, "orch up --work") == ["--workers"]
    assert _offered(orch, "orch status ") == []
    assert orch("up", "-q", "--name", "alpha", "-n", "2", "--", "true").code == 0
    assert orch("up", "-q", "--name", "beta", "--", "true").code == 0
    alpha = orch.run_dirs()[0].name
    for verb in ("status", "attach", "history", "report"):  # the argument is the same one everywhere
        assert _offered(orch, f"orch {verb} ") == ["beta", "alpha"], verb
    assert _offered(orch, "orch status al") == ["alpha", alpha]
    assert _offered(orch, "orch logs ") == ["beta", "alpha", "worker:0"]
    assert _offered(orch, "orch logs alpha ") == ["worker:0", "worker:1"]
    assert _offered(orch, "orch logs alpha worker:1") == ["worker:1"]


@pytest.mark.parametrize("shell", _SHELLS)
def test_names_written_by_others_are_not_evaluated_by_the_shell(orch: Orch, shell: str) -> None:
    """The names of a task, of a run and of a run's directory. A plain name is offered."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert orch("up", "-q", "--name", "alpha", "-n", "2", "--", "true").code == 0
    run, hostile = orch.run_dir(), json.dumps(_HOSTILE)
    events = (run / "events.jsonl").read_text().replace('"worker:1"', hostile)
    (run / "events.jsonl").write_text(events)
    copy = run.with_name(f"{_HOSTILE}-20260101T000000Z-0000")
    shutil.copytree(run, copy)
    (copy / "run.json").write_text((run / "run.json").read_text().replace('"alpha"', hostile))
    (orch.directory / "completion").write_text(orch("ls", env={"_ORCH_COMPLETE": f"source_{shell}"}).out)
    argv, prepared = _SHELLS[shell]
    env = {"PATH": f"{ORCH.parent}:/usr/bin:/bin", "HOME": str(orch.directory), "TERM": "dumb"}
    term = Terminal(argv, orch.directory, orch.environ(env))
    try:
        term.type(f"{prepared}. ./completion; echo 'rea''dy'\n")
        term.until_shown("ready")
        # zsh does not complete while it has more input.
        term.type("orch logs \t\t")
        term.until_shown("alpha")
        term.type("\x15exit\n")
        term.finish()
    finally:
        term.end()
    assert not (orch.directory / "pwned").exists()
