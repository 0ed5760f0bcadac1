"""In a directory that another user prepared, `orch config` and `orch doctor` do not run its code."""

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


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's own interpreter."""
    return program(tmp_path / "own/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')


# The settings of the directory, and whether an interpreter is asked for its packages.
SETTINGS = (
    ('command = "./python train.py"\ntensorboard = true', False),
    ('command = "./python train.py"\nkeras = "legacy"', False),
    ('command = "./python train.py"', False),
    ('command = "./started"\ntensorboard = true', False),
    ('command = "train.py"\ntensorboard = true\nenv = { VIRTUAL_ENV = "HERE" }', False),
    ('command = "python train.py"\ntensorboard = true\nenv = { PATH = "HERE/bin" }', False),
    ('command = "python train.py"\ntensorboard = true', True),
    ('command = "python train.py"\nenv = { PYTHONPATH = "HERE/lib" }', True),
    ('command = "--epochs 1"\nenv = { PYTHONPATH = "HERE/lib" }', True),
)


def test_config_and_doctor_run_no_code_of_the_directory(foreign: Path, orch: Orch, own: Path) -> None:
    """They say which interpreter they did not ask for its packages."""
    env: dict[str, str | None] = {"PATH": f"{own.parent}:/usr/bin:/bin"}
    wrong = []
    for settings, is_asked in SETTINGS:
        (foreign / "orch.toml").write_text(settings.replace("HERE", str(foreign)) + "\n")
        config, doctor = orch.within("config", env=env), orch.within("doctor", "-q", env=env)
        asked = (
            "started no interpreter" not in config.err,
            "was not asked for its packages" not in doctor.out,
        )
        if config.code != 0 or asked != (is_asked, is_asked) or (foreign / "executed").exists():
            wrong.append((settings, config, doctor))
            (foreign / "executed").unlink(missing_ok=True)
    assert not wrong, wrong


# The settings of the directory, and the one that doctor refuses.
OF_HOSTS = (
    ('hosts = "a"\nssh_command = "HERE/started"', "ssh-command"),
    ('hosts = "a"\nssh_command = "HERE/ssh"\nremote_python = "HERE/python"', "ssh-command"),
    ('hosts = "a"\nremote_python = "HERE/python"', "remote-python"),
    ('hosts = "a"\ncommand = "./python train.py"', None),
)


def test_doctor_of_hosts_runs_no_code_of_the_directory(foreign: Path, orch: Orch, tmp_path: Path) -> None:
    """Neither to reach the hosts nor on them, where the directory may be the same one."""
    ssh = program(tmp_path / "own/ssh", '#!/bin/sh\nfor word; do :; done\nexec sh -c "$word"\n')
    for settings, refused in OF_HOSTS:
        (foreign / "orch.toml").write_text(settings.replace("HERE", str(foreign)) + "\n")
        typed = [] if refused else ["--ssh-command", str(ssh)]
        done = orch.within("doctor", *typed, env={"PATH": f"{ssh.parent}:/usr/bin:/bin"})
        if refused:
            assert done.code == 2
            says = f"{refused}: `orch doctor` starts no program that a file of the directory names"
            assert says in done.err
        else:
            assert "HOST" in done.out.split(), done.err
        assert not (foreign / "executed").exists(), settings


def test_doctor_starts_an_interpreter_whose_whole_path_was_typed(foreign: Path, orch: Orch) -> None:
    done = orch.within("doctor", "--", "./python", "train.py")
    remedy = f"name it by its whole path: orch doctor -- {foreign}/python train.py"
    assert remedy in " ".join(done.out.split())
    assert not (foreign / "executed").exists()
    orch.within("doctor", "--", f"{foreign}/python", "train.py")
    assert (foreign / "executed").exists()


def test_looks_at_an_interpreter_import_no_module_of_the_directory(
    foreign: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    for search in ("", f"{foreign}/lib"):
        environ = {"PYTHONPATH": search, "LD_PRELOAD": "/none.so"}
        asked = ask_interpreter([str(own)], environ, foreign)
        has = installed_for(str(own), environ)
        assert asked.error is None and has is not None
        assert asked.tensorflow == has.tensorflow and "tensorflow" in asked.modules
    assert not (foreign / "executed").exists()


# -- orch's own processes never import the user's modules, whatever their names

NAMES = (
    *("json", "socket", "subprocess", "select", "signal", "worker", "orchestrator", "portpicker", "pydantic"),
    *("rich", "platformdirs", "psutil", "typing_extensions", "sitecustomize", "usercustomize"),
)
# Records which process imported it.
RECORDS = """
import sys
with open({seen!r}, "a") as file:
    file.write({name!r} + " " + " ".join(sys.orig_argv).replace("\\n", " ") + "\\n")
"""


def plant(directory: Path, names: tuple[str, ...], seen: Path) -> None:
    for name in names:
        (directory / f"{name}.py").write_text(RECORDS.format(seen=str(seen), name=name))


def test_modules_in_the_current_directory_are_not_imported(orch: Orch) -> None:
    seen = orch.directory / "seen"
    plant(orch.directory, NAMES, seen)
    done = orch("up", "--", "sleep", "0")
    assert done.code == 0, done.err
    assert not seen.exists(), seen.read_text()


@pytest.mark.slow
def test_module_of_the_user_may_be_called_worker(cold_orch: Orch) -> None:
    """orch has a package of that name; the tasks get the user's."""
    (cold_orch.directory / "worker.py").write_text("print('of the user')")
    done = cold_orch(
        "up", "--", "python", "-c", "import worker", env={"PYTHONPATH": str(cold_orch.directory)}
    )
    assert done.code == 0, done.err
    assert "worker:0 | of the user" in done.out


def test_pythonpath_affects_only_client_and_tasks(orch: Orch) -> None:
    """The supervisor and the agent are started with -I -S."""
    seen = orch.directory / "seen"
    plant(orch.directory, ("sitecustomize", "psutil"), seen)
    done = orch("up", "--", "python", "-c", "import psutil", env={"PYTHONPATH": str(orch.directory)})
    assert done.code == 0, done.err
    lines = seen.read_text().splitlines()
    assert any(line.startswith("sitecustomize") and line.endswith("import psutil") for line in lines)
    assert any(line.startswith("psutil") for line in lines)
    assert not [line for line in lines if "-I" in line.split()], lines
