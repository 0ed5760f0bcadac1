"""The words after `--` to a command: every form, and every message about a missing program."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.job.choices import KerasOption, StartOption, Strategy
from orchestrator.core.job.spec import Command, CommandKind
from orchestrator.host.installed import has_tensorflow, version_warning
from orchestrator.host.programs import SAVE_PROGRAM
from orchestrator.request.command.resolve import CommandOptions, CommandPlace, resolve_command

needs_tensorflow = pytest.mark.skipif(not has_tensorflow(), reason="TensorFlow is not installed")


@pytest.fixture
def place(tmp_path: Path) -> CommandPlace:
    """An empty working directory, an active environment, and a PATH with just `python` and `tool`."""
    (tmp_path / "cwd").mkdir()
    for program in ("bin/python", "bin/tool", "venv/bin/python"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).symlink_to(sys.executable)
    environ = {"PATH": str(tmp_path / "bin"), "VIRTUAL_ENV": str(tmp_path / "venv")}
    return CommandPlace(tmp_path / "cwd", environ)


def resolve(place: CommandPlace, *words: str) -> Command:
    return resolve_command(words, place)


def write(place: CommandPlace, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = place.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_words_become_a_command(place: CommandPlace) -> None:
    for name, text in {
        "train.py": "from keras import layers",
        "app/__main__.py": "import tensorflow",
    }.items():
        write(place, name, text)
    write(place, "pkg/mod.py", "print(1)")
    write(place, "run.sh", "#!/bin/sh\n", mode=0o755)
    write(place, "train", "#!/usr/bin/env python\nimport tensorflow\n", mode=0o755)
    active, python = (f"{each}/python" for each in (f"{place.environ['VIRTUAL_ENV']}/bin", place.path))
    script, module, executable = CommandKind.SCRIPT, CommandKind.MODULE, CommandKind.EXECUTABLE
    # The words, what is executed, the kind, whether it may use TensorFlow, and the interpreter with its options.
    table: list[tuple[str, str, CommandKind, bool, str]] = [
        ("train.py --epochs 3", f"{active} train.py --epochs 3", script, True, active),
        ("python -u train.py -B", f"{python} -u train.py -B", script, True, f"{python} -u"),
        ("python app", f"{python} app", script, True, python),
        ("-m pkg.mod x", f"{active} -m pkg.mod x", module, False, active),
        ("python -m pkg.mod", f"{python} -m pkg.mod", module, False, python),
        ("tool a", f"{place.path}/tool a", executable, False, ""),
        ("./run.sh", f"{place.cwd}/run.sh", executable, False, ""),
        ("./train x", f"{python} {place.cwd}/train x", executable, True, python),
    ]
    for words, *expected in table:
        command = resolve(place, *words.split())
        argv, interpreter = " ".join(command.argv), " ".join(command.interpreter)
        assert [argv, command.kind, command.serves, interpreter] == expected, words
        assert str(command) == words
    assert resolve(place, "./train").start.fork
    assert resolve(place, "tool").start.reason == "it is not a Python program"
    assert resolve(place, "python", "-c", "import tensorflow").serves
    assert not resolve(place, "python", "-c", "print(1)").serves
    # Installed modules may use TensorFlow unless Python brings them.
    modules = {
        "json.tool": False,
        "http.server": False,
        "cProfile": True,
        "pdb": True,
        "installed.train": True,
    }
    assert {name: resolve(place, "python", "-m", name).serves for name in modules} == modules


@needs_tensorflow
def test_script_runs_under_orchs_python_if_it_has_tensorflow(place: CommandPlace) -> None:
    write(place, "train.py")
    without = CommandPlace(place.cwd, {"PATH": place.path})
    assert resolve(without, "train.py").argv == (sys.executable, "train.py")
    # An active environment without Python is ignored.
    gone = CommandPlace(place.cwd, {**place.environ, "VIRTUAL_ENV": "/no/such/venv"})
    script = str(write(place, "sub/train.py"))
    assert resolve(gone, script).argv == (sys.executable, script)


def test_file_too_large_to_be_read_is_spawned_and_may_use_tensorflow(place: CommandPlace) -> None:
    path = write(place, "app.pyz", "import sys\n")
    with path.open("ab") as file:
        file.truncate(5 << 20)
    command = resolve(place, "python", "app.pyz")
    assert command.serves and not command.start.fork


def test_options_reach_the_start_method_and_the_keras(place: CommandPlace) -> None:
    write(place, "train.py", "import tensorflow")
    spawned = resolve_command(("train.py",), place, CommandOptions(start=StartOption.SPAWN))
    assert spawned.start.reason == "--start spawn asks for it"
    vouched = resolve_command(("train.py",), place, CommandOptions(preload=("scipy",)))
    assert vouched.start.modules == ("tensorflow", "scipy")
    with pytest.raises(UsageError, match="--keras legacy: the command is not a Python program"):
        resolve_command(("tool",), place, CommandOptions(keras=KerasOption.LEGACY))


# The strategy and the words of a command, and the script with its words. None: the words are refused with this text.
EXAMPLES: dict[tuple[Strategy | None, str], str] = {
    (None, ""): "fit.py",
    (None, "--epochs 3 --loop custom"): "custom_loop.py --epochs 3",
    (Strategy.MIRRORED, "--loop=fit -h"): "fit.py -h",
    (Strategy.PARAMETER_SERVER, "--epochs 3"): "parameter_server.py --epochs 3",
    (Strategy.PARAMETER_SERVER, "--loop fit"): "parameter_server_fit.py",
    (Strategy.DTENSOR, ""): "dtensor.py",
}
NO_EXAMPLES = {
    (Strategy.DTENSOR, "--loop fit"): "--loop fit: Keras does not train with DTensor; leave it out",
    (None, "--loop fast"): "--loop: invalid choice: 'fast' (choose from 'fit', 'custom')",
}


@needs_tensorflow
def test_words_without_a_program_are_an_example(place: CommandPlace) -> None:
    for (strategy, text), expected in EXAMPLES.items():
        command = resolve_command(text.split(), place, CommandOptions(strategy=strategy))
        python, script, *words = command.argv
        assert (python, command.kind, command.serves) == (sys.executable, CommandKind.EXAMPLE, True)
        assert Path(script).is_file() and " ".join([Path(script).name, *words]) == expected
        assert str(command) == f"example {Path(script).name} {text}".rstrip()
        assert command.legacy_keras == ("fit.py" in expected and strategy is Strategy.PARAMETER_SERVER)
        assert command.start.fork, command.start
    for (strategy, text), said in NO_EXAMPLES.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            resolve_command(text.split(), place, CommandOptions(strategy=strategy))


# -- refused programs

# Words of a command, and what the refusal says. The directory is `{here}`; it has train.py, run.sh and the like.
REFUSED: dict[tuple[str, ...], str] = {
    ("trian.py",): r'^script not found: trian\.py in {here}; did you mean "train\.py"\?',
    ("python", "trian.py"): r'^script not found: trian\.py in {here}; did you mean "train\.py"\?',
    ("zzz.py",): r"script not found: zzz\.py in .*; there are: a\.py, app\.py, train\.py$",
    ("sub/train.py",): r"sub/train\.py in .*; the directory .*/sub does not exist$",
    ("app.py",): r"app\.py in .* is a directory, not a script; name the script in it",
    ("python", "app.py"): r"is a directory without a __main__\.py; name a script in it",
    ("x" * 300 + ".py",): "File name too long; give a path that can be reached",
    ("pyhton",): r'command not found: pyhton is not on PATH; did you mean "python"\?',
    ("qqqqqq",): "^command not found: qqqqqq is not on PATH; install it, or give its path",
    ("run.sh",): r"run\.sh is not on PATH; for the one in .* write \./run\.sh",
    ("train",): r'train is not on PATH; did you mean "train\.py"\?',
    ("train.p",): r'train\.p is not on PATH; did you mean "train\.py"\?',
    ("./nothing",): r"program not found: \./nothing in ",
    ("./plain.sh",): r"not executable: .*plain\.sh; chmod \+x it, or start it .* -- bash \./plain\.sh",
    ("./app.py/",): r"\./app\.py/ in .* is a directory, not a program; name the program in it",
    ("",): "the command is an empty word",
    ("-m",): r"-m needs the name of a module: -m pkg\.mod",
    # Programs that tasks could not read.
    ("python", "-"): "^python -: Python would read the program from standard input, .*; save the program as a file",
    ("python", "-u", "-", "--epochs", "3"): "^python -u - --epochs 3: Python would read the program from standard",
    ("python",): "^python: Python would read the program from standard input",
    ("/dev/stdin",): "/dev/stdin is a stream of orch, and tasks do not get it",
    ("python", "/dev/stdin"): "/dev/stdin is a stream of orch, and tasks do not get it",
    ("python", "/dev/fd/63"): "/dev/fd/63 is a stream of orch, and tasks do not get it",
    ("python", "/dev/zero"): "is not a regular file, but a device",
    # Programs whose interpreter is missing.
    ("./gone",): "^{here}/gone: its first line names the interpreter /no/such/python3, which does not exist; correct",
    ("./relative",): "names the interpreter no/such, which does not exist; correct",
    ("./dos",): "the interpreter /bin/sh, which does not exist; remove the carriage return",
}  # fmt: skip


def refusal(place: CommandPlace, *words: str) -> str:
    with pytest.raises(UsageError) as refused:
        resolve(place, *words)
    return str(refused.value)


def test_refused_programs(place: CommandPlace) -> None:
    for name in ("train.py", "a.py", "plain.sh"):
        write(place, name)
    write(place, "run.sh", mode=0o755)
    (place.cwd / "app.py").mkdir()
    lines = {"gone": "#!/no/such/python3 -u", "relative": "#! no/such", "dos": "#!/bin/sh\r"}
    for name, line in lines.items():
        write(place, name, f"{line}\nexit\n", 0o755)
    for words, says in REFUSED.items():
        assert re.search(says.replace("{here}", re.escape(str(place.cwd))), refusal(place, *words)), words


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_script_not_readable(place: CommandPlace) -> None:
    write(place, "train.py", mode=0)
    assert re.match(r"script not readable: .*train\.py; chmod \+r it", refusal(place, "train.py"))


def test_named_pipe_is_refused_without_waiting_for_a_writer(place: CommandPlace) -> None:
    for name in ("pipe.py", "pipe"):
        os.mkfifo(place.cwd / name, 0o755)
    for words in (("pipe.py",), ("python", "pipe.py"), ("./pipe.py",), ("./pipe",)):
        assert f"is not a regular file, but a named pipe; {SAVE_PROGRAM}" in refusal(place, *words)
    (place.cwd / "app").mkdir()
    os.mkfifo(place.cwd / "app/__main__.py")
    assert "a directory without a __main__.py" in refusal(place, "python", "app")


def test_accepted_programs(place: CommandPlace) -> None:
    """A question to Python is not a program on standard input."""
    for words in (("python", "-V"), ("python", "-h"), ("python", "--version")):
        assert resolve(place, *words).words == words
    for name, text in {"a": "#!/bin/sh\n", "b": "#! /bin/sh -e\n", "c": "#!\n", "d": "exit\n"}.items():
        assert resolve(place, str(write(place, name, text, 0o755))).words


# -- the version of TensorFlow


@needs_tensorflow
def test_version_warning() -> None:
    assert version_warning("2.20.0") is version_warning("2.21.1rc0") is None
    for version in ("2.19.9", "2.22.0", "3.0", "odd"):
        assert version_warning(version) == (
            f"TensorFlow {version} was not tested with orch (tested: 2.20 to 2.21); it may work"
        )
