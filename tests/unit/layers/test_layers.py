"""Modules that real processes load, which import contracts cannot check. The contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orchestrator

ROOT = Path(__file__).resolve().parents[3]
TENSORFLOW = {"tensorflow", "keras", "tf_keras", "numpy"}

# Runs each program in a fork of one interpreter, and prints the modules that it has loaded at its end.
_FORKS = """
import os, sys
for program in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        exec(program)
        print("modules:", *sys.modules, flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, program
"""
_VERB = "import sys; sys.argv[1:] = {!r}; from orchestrator.cli import main; main()"


def modules_of(*programs: str, directory: Path = ROOT) -> list[set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, *programs],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("modules:")]
    assert len(lines) == len(programs), done
    return [set(line.split()[1:]) for line in lines]


def within(loaded: set[str], parts: tuple[str, ...]) -> set[str]:
    """Return our modules that are in one of these parts."""
    return {name for name in loaded for part in parts if f"{name}.".startswith(f"orchestrator.{part}.")}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_the_bootstrap_imports_only_the_standard_library() -> None:
    """It is loaded under another name than its own, so it may import its own modules only relatively."""
    assert [problem for path in sources("worker/bootstrap") for problem in _foreign_imports(path)] == []


def _foreign_imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    depth = len(path.relative_to(ROOT / "worker/bootstrap").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            first = (node.module or "").partition(".")[0]
            if node.level > depth or first in {"worker", "orchestrator"}:
                yield f"{path}:{node.lineno} imports from outside the bootstrap"
    for node in tree.body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            # `sitecustomize` is the user's own, which the bootstrap replaces and then runs.
            if alias.name.partition(".")[0] not in sys.stdlib_module_names | {"sitecustomize"}:
                yield f"{path}:{node.lineno} imports {alias.name}"


# Verbs that only read a run must not load the code that starts, plans or judges one.
NOT_FOR_READERS = (
    *("ui", "core.chaos", "request.command", "engines", "client.launch", "core.lifecycle", "host"),
    *("core.plan", "client.session", "core.job.spec"),
)
NOT_FOR_TABLES = (
    *NOT_FOR_READERS,
    *("core.diagnosis.symptoms", "links", "client.stop", "supervisor", "client.view.report"),
)
NOT_FOR_PLANS = ("core.state", "store.runs.reader", "client.launch", "engines", "links", "supervisor")
VERBS = {
    **dict.fromkeys(("status", "ls", "history"), NOT_FOR_TABLES),
    **dict.fromkeys(("down", "logs x", "kill 0", "restart", "notice", "stacks"), NOT_FOR_READERS),
}


def test_a_quick_verb_imports_nothing_it_does_not_need(state_dir: Path, tmp_path: Path) -> None:
    """The verb is run without a run: it has imported its modules before it finds that out."""
    programs = [_VERB.format(verb.split()) for verb in VERBS]
    found = dict(zip(VERBS, modules_of(*programs, directory=tmp_path), strict=True))
    assert [verb for verb, loaded in found.items() if "orchestrator.store.runs.reader" not in loaded] == []
    wrong = {verb: names for verb, loaded in found.items() if (names := within(loaded, VERBS[verb]))}
    assert wrong == {}


def test_a_plan_that_is_only_shown_imports_no_events(state_dir: Path, tmp_path: Path) -> None:
    (loaded,) = modules_of(_VERB.format(["config", "--", "true"]), directory=tmp_path)
    assert "orchestrator.core.plan.plan" in loaded
    assert not within(loaded, NOT_FOR_PLANS)
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY or os.geteuid() == 0:
        assert "psutil" not in loaded  # else the user's threads are counted


def test_no_process_of_ours_loads_tensorflow() -> None:
    modules = (
        *("orchestrator.supervisor.__main__", "orchestrator.client.api", "orchestrator.ui.serving"),
        *("orchestrator.checkpoints", "orchestrator.pytest_plugin.clusters", "worker.agent.agent"),
    )
    found = dict(zip(modules, modules_of(*(f"import {module}" for module in modules)), strict=True))
    for module, loaded in found.items():
        assert module in loaded and not loaded & TENSORFLOW, module
    assert not found["worker.agent.agent"] & {"pydantic", "rich", "psutil", "orchestrator"}
    # psutil takes 0.8 MB in the server of the page, and only the processes of a lost run need it.
    assert "psutil" not in found["orchestrator.ui.serving"]


BUILT = """
import sys
from pydantic import BaseModel
import orchestrator.cli.up_run, orchestrator.supervisor.serve
waiting = [BaseModel]
for model in waiting:
    waiting += model.__subclasses__()
print(*(model.__qualname__ for model in waiting if model.__pydantic_complete__ and model.model_fields))
"""


def test_models_are_built_on_first_use() -> None:
    """Without defer_build, client and supervisor build all models before a start, half a millisecond for each."""
    done = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) <= {"TaskStack"}  # a module keeps an instance of it


def test_no_module_hides_a_public_name() -> None:
    """A submodule, once imported, is an attribute of the package: under a verb's name it would replace it."""
    names = {name for path in sources("orchestrator") for name in (path.stem, path.parent.name)}
    assert not names & set(orchestrator.__all__)
    assert all(callable(getattr(orchestrator, name)) for name in orchestrator.__all__)
