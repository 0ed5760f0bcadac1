"""In a directory that somebody else prepared, `orch config` and `orch doctor` do not run its code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from orch_command import Orch

from orchestrator.host.installed import ask_interpreter, installed_for

TOUCH = "#!/bin/sh\ntouch {here}/executed\n"
# Modules that the standard library imports.
MODULES = ("contextlib", "json", "site", "email", "sitecustomize")
IMPORTED = "open({executed!r}, 'w'); raise SystemExit(1)"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def foreign(orch: Orch) -> Path:
    """A directory whose `python` and whose modules, in it and in `lib`, leave the file `executed` when they run."""
    here = orch.directory
    program(here / "python", TOUCH.format(here=here))
    program(here / "bin/python", TOUCH.format(here=here))
    (here / "lib").mkdir()
    for place in (here, here / "lib"):
        for name in MODULES:
            (place / f"{name}.py").write_text(IMPORTED.format(executed=str(here / "executed")))
    program(here / "started", "#!" + str(here / "python") + "\nimport tensorflow\n")
    # Uses what only Keras 2 has.
    (here / "train.py").write_text("import tensorflow as tf\ntf.keras.optimizers.legacy.Adam()\n")
    return here


@pytest.mark.parametrize(
    ("settings", "is_asked"),
    [
        ('command = "./python train.py"\ntensorboard = true', False),
        ('command = "./python train.py"\nkeras = "legacy"', False),
        ('command = "./python train.py"', False),
        ('command = "./started"\ntensorboard = true', False),
        ('command = "train.py"\ntensorboard = true\nenv = { VIRTUAL_ENV = "HERE" }', False),
        ('command = "python train.py"\ntensorboard = true\nenv = { PATH = "HERE/bin" }', False),
        ('command = "python train.py"\ntensorboard = true', True),
        ('command = "python train.py"\nenv = { PYTHONPATH = "HERE/lib" }', True),
        ('command = "--epochs 1"\nenv = { PYTHONPATH = "HERE/lib" }', True),
    ],
)
def test_config_and_doctor_run_no_code_of_the_directory(
    foreign: Path, orch: Orch, tmp_path: Path, settings: str, is_asked: bool
) -> None:
    """They say which interpreter they did not ask for its packages."""
    (foreign / "orch.toml").write_text(settings.replace("HERE", str(foreign)) + "\n")
    own = program(tmp_path / "own/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    done = orch("config", env={"PATH": f"{own.parent}:/usr/bin:/bin"})
    assert done.code == 0, done.err
    assert ("started no interpreter" in done.err) != is_asked
    found = orch("doctor", "-q", env={"PATH": f"{own.parent}:/usr/bin:/bin"}).out
    assert ("was not asked for its packages" in found) != is_asked
    assert not (foreign / "executed").exists()


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ('hosts = "a"\nssh_command = "HERE/started"', "ssh-command"),
        ('hosts = "a"\nssh_command = "HERE/ssh"\nremote_python = "HERE/python"', "ssh-command"),
        ('hosts = "a"\nremote_python = "HERE/python"', "remote-python"),
        ('hosts = "a"\ncommand = "./python train.py"', None),
    ],
)
def test_doctor_of_hosts_runs_no_code_of_the_directory(
    foreign: Path, orch: Orch, tmp_path: Path, settings: str, refused: str | None
) -> None:
    """Neither to reach the hosts nor on them, where the directory may be the same one."""
    (foreign / "orch.toml").write_text(settings.replace("HERE", str(foreign)) + "\n")
    ssh = program(tmp_path / "own/ssh", '#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n')
    typed = [] if refused else ["--ssh-command", str(ssh)]
    done = orch("doctor", *typed, env={"PATH": f"{ssh.parent}:/usr/bin:/bin"})
    if refused:
        assert done.code == 2
        assert f"{refused}: `orch doctor` starts no program that a file of the directory names" in done.err
    else:
        assert "HOST" in done.out.split(), done.err
    assert not (foreign / "executed").exists()


def test_doctor_starts_an_interpreter_whose_whole_path_was_typed(foreign: Path, orch: Orch) -> None:
    done = orch("doctor", "--", "./python", "train.py")
    assert f"name it by its whole path: orch doctor -- {foreign}/python train.py" in " ".join(
        done.out.split()
    )
    assert not (foreign / "executed").exists()
    orch("doctor", "--", f"{foreign}/python", "train.py")
    assert (foreign / "executed").exists()


def test_looks_at_an_interpreter_import_no_module_of_the_directory(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "own/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    monkeypatch.chdir(foreign)
    for search in ("", f"{foreign}/lib"):
        environ = {"PYTHONPATH": search, "LD_PRELOAD": "/none.so"}
        asked = ask_interpreter([str(own)], environ, foreign)
        has = installed_for(str(own), environ)
        assert asked.error is None and has is not None
        assert asked.tensorflow == has.tensorflow and "tensorflow" in asked.modules
    assert not (foreign / "executed").exists()
