"""Shell completion."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
import typer
from orch_command import ORCH, Orch
from orch_within import variables
from terminal import OpenTerminal
from waiting import PATIENCE_S

from orchestrator.cli.app import app

# Interactive, without the user's settings; and what makes a completion script work there.
_SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "fish": (["fish", "--no-config", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D; "),
}
# Typer's completion for zsh escapes the dollar sign, but not the backslash before it.
_HOSTILE = r"w\$(touch pwned)"


Answer = Callable[..., str]


@pytest.fixture
def answer(orch: Orch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Returns what a shell gets that asks `orch` with _ORCH_COMPLETE."""

    def answer(how: str, **asked: str) -> str:
        environ = orch.environ({"_ORCH_COMPLETE": how, **asked})
        with variables(environ), contextlib.chdir(orch.directory), pytest.raises(SystemExit) as end:
            typer.main.get_command(app).main([], "orch")
        out, err = capsys.readouterr()
        assert (end.value.code, err) == (0, "")
        return out

    return answer


def test_completion_script_of_calling_shell(orch: Orch) -> None:
    shell = ["bash", "-c", f"'{ORCH}' --show-completion; true"]
    done = subprocess.run(shell, env=orch.environ(), capture_output=True, timeout=PATIENCE_S, check=True)
    assert b"_ORCH_COMPLETE=complete_bash" in done.stdout and b"complete -o default" in done.stdout


def test_verbs_options_runs_tasks_and_signals_are_completed(orch: Orch, answer: Answer) -> None:
    def offered(line: str) -> list[str]:
        return answer("complete_bash", COMP_WORDS=line, COMP_CWORD=str(line.count(" "))).split()

    verbs = "up config status logs down wait ls attach doctor kill restart stacks prune export example history report"
    assert {*offered("orch ")} == {*verbs.split(), "ui", "warm", "notice"}
    assert offered("orch do") == ["down", "doctor"]
    assert offered("orch up --work") == ["--workers"]
    assert offered("orch status ") == []
    assert orch("up", "-q", "--name", "alpha", "-n", "2", "--", "true").code == 0
    assert orch("up", "-q", "--name", "beta", "--", "true").code == 0
    alpha = orch.run_dirs()[0].name
    for verb in ("status", "attach", "history", "report"):  # the argument is the same one everywhere
        assert offered(f"orch {verb} ") == ["beta", "alpha"], verb
    assert offered("orch status al") == ["alpha", alpha]
    assert offered("orch logs ") == ["beta", "alpha", "worker:0"]
    assert offered("orch logs alpha ") == ["worker:0", "worker:1"]
    assert offered("orch logs alpha worker:1") == ["worker:1"]
    assert offered("orch kill -s US") == ["USR1", "USR2"]
    assert offered("orch kill -s SIGK") == ["SIGKILL"]
    assert orch("up", "--wait", "ready", "--name", "live", "--", "sleep", "600").code == 0
    assert {"live", "worker:0"} <= {*offered("orch kill ")}


@pytest.mark.parametrize("shell", _SHELLS)
def test_names_written_by_others_are_not_evaluated_by_the_shell(
    orch: Orch, answer: Answer, terminal: OpenTerminal, shell: str
) -> None:
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
    orch.script("completion", answer(f"source_{shell}"))
    argv, prepared = _SHELLS[shell]
    env = {"PATH": f"{ORCH.parent}:/usr/bin:/bin", "HOME": str(orch.directory), "TERM": "dumb"}
    term = terminal(orch, argv=argv, env=env)
    term.type_for(f"{prepared}. ./completion; echo 'rea''dy'\n", "ready")
    # zsh does not complete while it has more input.
    term.type_for("orch logs \t\t", "alpha")
    term.type("\x15exit\n")
    term.finish()
    assert not (orch.directory / "pwned").exists()
