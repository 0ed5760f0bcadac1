"""After any change, a warm run prints what a cold one prints."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from warm_command import WarmOrch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_LIBRARY = """
import decimal, os
from library import inner
SETTINGS = open(os.environ["SETTINGS"]).read()
SEEN = os.environ.get("SEEN"), os.environ.get("SSH_TTY")
try:
    from extra import VALUE as EXTRA
except ImportError:
    EXTRA = None
"""
_LOOKS = """
import json, os, resource, sys
import library, decimal, part
own = ("TF_CONFIG", "_", "PYTHONPATH", "COLUMNS", "LINES")  # readline sets the last two in the test's process
env = {n: v for n, v in os.environ.items() if not n.startswith("ORCH_") and n not in own}
status = [line for line in open("/proc/self/status") if line.startswith(("Umask", "SigIgn"))]
print(json.dumps(["VERSION", library.inner.VALUE, library.SETTINGS, library.SEEN, library.EXTRA, part.VALUE,
    getattr(decimal, "__file__", ""), sys.argv, list(sys.flags), sys.warnoptions, sys.executable, os.getcwd(), status,
    os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE), sys.path[0], *sorted(env.items())]))
"""
_FITS = """
import tensorflow as tf
from part import UNITS
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(UNITS)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((32, 4)), tf.ones((32, UNITS)))).batch(8).repeat()
history = model.fit(data, epochs=1, steps_per_epoch=3, verbose=0)
print("fitted", UNITS, len(history.history["loss"]))
"""


@dataclass
class World:
    """The files, variables and options that decide what a run prints."""

    warm: WarmOrch
    python: Path
    installed: Path
    env: dict[str, str | None] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    options: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    @property
    def here(self) -> Path:
        return self.warm.orch.directory

    def lay_out(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        (place / "look.py").write_text(_LOOKS)
        (place / "part.py").write_text("VALUE = 1")

    def lines(self, *options: str) -> list[str]:
        command = [str(self.python), *self.flags, "look.py", *self.words]
        words = ["up", *options, "--preload", "library", *self.options, "--", *command]
        done = self.warm(*words, env=self.env, before=self.before)
        assert done.code == 0, done.err
        return sorted(done.lines)


def write(name: str, text: str, installed: bool = False) -> Callable[[World], object]:
    return lambda world: ((world.installed if installed else world.here) / name).write_text(text)


def variable(name: str, value: str | None) -> Callable[[World], object]:
    return lambda world: world.env.update({name: value})


def run_by(*words: str) -> Callable[[World], object]:
    return lambda world: setattr(world, "before", words)


def search_path(world: World) -> None:
    (world.here / "beside").mkdir()
    world.env["PYTHONPATH"] = str(world.here / "beside")


def another_interpreter(world: World) -> None:
    other = world.python.with_name("python-other")
    other.symlink_to(world.python.name)
    world.python = other


def another_directory(world: World) -> None:
    world.here.rename(world.here.with_name("moved"))
    world.lay_out(world.here)
    (world.here / "settings").write_text("other")


def subdirectory(world: World) -> None:
    world.lay_out(world.here / "below")
    world.options += ["--cwd", "below"]


CHANGES: dict[str, Callable[[World], object]] = {
    "the script": write("look.py", _LOOKS.replace("VERSION", "version 2")),
    "a local module": write("part.py", "VALUE = 2"),
    "a module of the script's directory with the name of a preloaded one": write("decimal.py", ""),
    "that module is removed": lambda world: (world.here / "decimal.py").unlink(),
    "an installed module": write("library/inner.py", "VALUE = 2", True),
    "a new package that an import tries": write("extra.py", "VALUE = 1", True),
    "a removed package": lambda world: (world.installed / "extra.py").unlink(),
    "a .pth file": write("more.pth", "import os; os.environ['BY_PTH'] = '1'\n", True),
    "the contents of a .pth file": write("more.pth", "import os; os.environ['BY_PTH'] = '2'\n", True),
    "a file that an import has read": write("settings", "other"),
    "a variable that an import has read": variable("SEEN", "1"),
    "a variable of the terminal that an import has read": variable("SSH_TTY", "/dev/pts/9"),
    "a variable of the terminal": variable("TMUX", "socket"),
    "another variable": variable("MINE", "1"),
    "an unset variable": variable("MINE", None),
    "PYTHONPATH": search_path,
    "a module on PYTHONPATH with the name of a preloaded one": write("beside/decimal.py", ""),
    "an option of the interpreter": lambda world: world.flags.append("-O"),
    "another interpreter": another_interpreter,
    "the preloaded modules": lambda world: world.options.extend(["--preload", "fractions"]),
    "the arguments": lambda world: world.words.extend(["a b", "--c"]),
    "the number of workers": lambda world: world.options.extend(["-n", "2"]),
    "--env": lambda world: world.options.extend(["-e", "GIVEN=1"]),
    "the directory": another_directory,
    "--cwd": subdirectory,
    "the umask": run_by("sh", "-c", 'umask 027; exec "$@"', "sh"),
    "a limit": run_by("sh", "-c", 'ulimit -n 1000; exec "$@"', "sh"),
    "the niceness": run_by("nice", "-n", "3"),
    "an ignored signal": run_by("sh", "-c", "trap '' USR1; exec \"$@\"", "sh"),
}


def test_warm_run_equals_a_cold_one_after_any_change(warm: WarmOrch, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site_packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site_packages / "library").mkdir()
    (site_packages / "library" / "__init__.py").write_text(_LIBRARY)
    (site_packages / "library" / "inner.py").write_text("VALUE = 1")
    world = World(warm, tmp_path / "env" / "bin" / "python", site_packages)
    world.lay_out(world.here)
    (world.here / "settings").write_text("first")
    world.env["SETTINGS"] = str(world.here / "settings")
    world.lines("--warm")
    warm.until_waiting()
    # The preloader is kept, because nothing has changed.
    before = world.lines("--warm")
    run = warm.orch.run_dirs()[-1]
    assert warm.orch.methods(run) == {"fork"} and warm.orch.preloads(run)[0]["seconds"] == 0
    same = {"a variable of the terminal", "PYTHONPATH", "the preloaded modules"}
    for name, change in CHANGES.items():
        warm.until_waiting()
        change(world)
        found, cold = (
            [json.loads(line.partition(" | ")[2]) for line in world.lines(option)]
            for option in ("--warm", "--warm=off")
        )
        assert found == cold, name
        assert found != before or name in same, name
        before = found


def test_next_run_does_not_import_tensorflow_again(warm: WarmOrch) -> None:
    script = warm.orch.script("train.py", _FITS)
    for units in ("1", "2"):
        warm.orch.script("part.py", f"UNITS = {units}")
        env: dict[str, str | None] = {"SSH_TTY": f"/dev/pts/{units}"}
        done = warm("-v", "up", "--warm", "-n", "2", "--", sys.executable, script, env=env)
        assert done.code == 0, done.err
        fitted = sorted(line for line in done.lines if "fitted" in line)
        assert fitted == [f"worker:{n} | fitted {units} 1" for n in range(2)]
        run = warm.orch.run_dirs()[-1]
        assert warm.orch.methods(run) == {"fork"}
    assert warm.orch.preloads(run)[0]["seconds"] == 0
