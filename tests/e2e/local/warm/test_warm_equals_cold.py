"""After any change, a warm run prints what a cold one prints; and many warm runs leak nothing."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from waiting import until
from warm_command import WarmOrch

from orchestrator.client.launch import create_run, load_request
from orchestrator.links.client_link import Lifetime, Warm
from orchestrator.links.supervisor_link import SupervisorLink
from orchestrator.links.warm import take_over

LIBRARY = """
import decimal, os
from library import inner
SETTINGS = open(os.environ["SETTINGS"]).read()
SEEN = os.environ.get("SEEN"), os.environ.get("SSH_TTY")
try:
    from extra import VALUE as EXTRA
except ImportError:
    EXTRA = None
"""
LOOKS = """
import json, os, resource, sys
import library, decimal, part
own = ("TF_CONFIG", "_", "PYTHONPATH", "COLUMNS", "LINES")  # readline sets the last two in the test's process
env = {n: v for n, v in os.environ.items() if not n.startswith("ORCH_") and n not in own}
status = [line for line in open("/proc/self/status") if line.startswith(("Umask", "SigIgn"))]
print(json.dumps(["VERSION", library.inner.VALUE, library.SETTINGS, library.SEEN, library.EXTRA, part.VALUE,
    getattr(decimal, "__file__", ""), sys.argv, list(sys.flags), sys.warnoptions, sys.executable, os.getcwd(), status,
    os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE), sys.path[0], sorted(env.items())]))
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
        (place / "look.py").write_text(LOOKS)
        (place / "part.py").write_text("VALUE = 1")

    def lines(self, *options: str) -> list[str]:
        command = [str(self.python), *self.flags, "look.py", *self.words]
        words = ["up", *options, "--preload", "library", *self.options, "--", *command]
        done = self.warm(*words, env=self.env, before=self.before)
        assert done.code == 0, done.err
        return sorted(done.lines)


def edit(name: str, text: str) -> Callable[[World], object]:
    return lambda world: (world.here / name).write_text(text)


def installed(name: str, text: str) -> Callable[[World], object]:
    return lambda world: (world.installed / name).write_text(text)


def variable(name: str, value: str | None) -> Callable[[World], object]:
    return lambda world: world.env.update({name: value})


def search_path(world: World) -> None:
    (world.here / "beside").mkdir()
    world.env["PYTHONPATH"] = str(world.here / "beside")


def another_interpreter(world: World) -> None:
    other = world.python.with_name("python-other")
    other.symlink_to(world.python.name)
    world.python = other


def another_directory(world: World) -> None:
    world.here.rename(world.here.with_name("moved"))
    world.here.mkdir()
    world.lay_out(world.here)


def subdirectory(world: World) -> None:
    (world.here / "below").mkdir()
    world.lay_out(world.here / "below")
    world.options += ["--cwd", "below"]


def run_by(*words: str) -> Callable[[World], object]:
    return lambda world: setattr(world, "before", words)


CHANGES: dict[str, Callable[[World], object]] = {
    "the script": edit("look.py", LOOKS.replace("VERSION", "version 2")),
    "a local module": edit("part.py", "VALUE = 2"),
    "a module of the script's directory with the name of a preloaded one": edit("decimal.py", ""),
    "that module is removed": lambda world: (world.here / "decimal.py").unlink(),
    "an installed module": installed("library/inner.py", "VALUE = 2"),
    "a new package that an import tries": installed("extra.py", "VALUE = 1"),
    "a removed package": lambda world: (world.installed / "extra.py").unlink(),
    "a .pth file": installed("more.pth", "import os; os.environ['BY_PTH'] = '1'\n"),
    "the contents of a .pth file": installed("more.pth", "import os; os.environ['BY_PTH'] = '2'\n"),
    "a file that an import has read": edit("settings", "other"),
    "a variable that an import has read": variable("SEEN", "1"),
    "a variable of the terminal that an import has read": variable("SSH_TTY", "/dev/pts/9"),
    "a variable of the terminal": variable("TMUX", "socket"),
    "another variable": variable("MINE", "1"),
    "an unset variable": variable("MINE", None),
    "PYTHONPATH": search_path,
    "a module on PYTHONPATH with the name of a preloaded one": edit("beside/decimal.py", ""),
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


def differences(found: list[str], cold: list[str]) -> list[object]:
    """Return what two lists of lines with JSON lists do not share, in the order of the lines."""
    unlike: list[object] = [] if len(found) == len(cold) else [found, cold]
    for ours, theirs in zip(found, cold, strict=False):
        documents = [json.loads(line.partition(" | ")[2]) for line in (ours, theirs)]
        pairs = zip(*([*document[:-1], *document[-1]] for document in documents), strict=False)
        unlike += [pair for pair in pairs if pair[0] != pair[1]]
    return unlike


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_warm_run_equals_a_cold_one_after_any_change(warm: WarmOrch, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site_packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site_packages / "library").mkdir()
    (site_packages / "library" / "__init__.py").write_text(LIBRARY)
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
    assert warm.orch.methods(run) == {"fork"} and warm.orch.events("preloaded", run)[0]["seconds"] == 0
    same = {"a variable of the terminal", "PYTHONPATH", "the preloaded modules"}
    for name, change in CHANGES.items():
        warm.until_waiting()
        change(world)
        if name == "the directory":
            (world.here / "settings").write_text("other")
        found = world.lines("--warm")
        cold = world.lines("--warm=off")
        assert differences(found, cold) == [], name
        assert found != before or name in same, name
        before = found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_warm_runs_leak_nothing(warm: WarmOrch) -> None:
    script = warm.orch.script("look.py", "import decimal; print('said')")
    words = ["--preload", "decimal", "--", sys.executable, script]
    assert warm("up", "--warm", *words).code == 0
    holder = warm.until_waiting()
    up = load_request(1, words[3:], warm.orch.directory, {"preload": "decimal"})

    def run_warm() -> None:
        found = take_over(str(warm.orch.directory))
        assert found is not None
        keeps = Warm(idle_s=600.0, conditions=found[1].conditions)
        with SupervisorLink(None, found[0]) as supervisor:
            run = create_run(supervisor, up, Lifetime.CLIENT, warm=keeps)
            assert run.wait().succeeded
            until(supervisor.has_left)
        warm.until_waiting()

    def used() -> tuple[list[tuple[int, int]], int]:
        processes = [holder, *holder.children(recursive=True)]
        return [(each.pid, each.num_fds()) for each in processes], sum(
            each.memory_info().rss for each in processes
        )

    for _ in range(20):
        run_warm()
    processes, memory = used()
    for _ in range(200):
        run_warm()
    processes_after, memory_after = used()
    assert processes_after == processes and len(processes) == 3
    assert memory_after - memory < 8 << 20
    holding = warm.holding()
    assert holding is not None and holding["runs"] == 221
    assert json.loads((warm.orch.run_dirs()[-1] / "result.json").read_text())["outcome"] == "succeeded"
    assert psutil.pid_exists(holder.pid)
