"""Modules that real processes load, which import contracts cannot check. The contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parents[3]
TENSORFLOW = {"tensorflow", "keras", "tf_keras", "numpy"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", sources("worker/bootstrap"), ids=lambda path: path.stem)
def test_the_bootstrap_imports_only_the_standard_library(path: Path) -> None:
    """It is loaded under another name than its own, so it may import its own modules only relatively."""
    tree = ast.parse(path.read_text())
    depth = len(path.relative_to(ROOT / "worker/bootstrap").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= depth, f"line {node.lineno} imports from outside the bootstrap"
            assert (node.module or "").partition(".")[0] not in {"worker", "orchestrator"}
    top_level = {
        alias.name.partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    # `sitecustomize` is the user's own, which the bootstrap replaces and then runs.
    assert top_level - {"sitecustomize"} <= sys.stdlib_module_names


# Verbs that only read a run must not load the code that starts, plans or judges one.
NOT_FOR_READERS = (
    "ui",
    "core.chaos",
    "request.command",
    "engines",
    "client.launch",
    "core.lifecycle",
    "host",
    "core.plan",
    "client.session",
    "core.job.spec",
)
NOT_FOR_TABLES = (
    *NOT_FOR_READERS,
    "core.diagnosis.symptoms",
    "links",
    "client.stop",
    "supervisor",
    "client.view.report",
)
NOT_FOR_PLANS = ("core.state", "store.runs.reader", "client.launch", "engines", "links", "supervisor")


@pytest.mark.parametrize(
    ("verb", "hidden"),
    [
        ("status", NOT_FOR_TABLES),
        ("ls", NOT_FOR_TABLES),
        ("history", NOT_FOR_TABLES),
        ("down", NOT_FOR_READERS),
        ("logs x", NOT_FOR_READERS),
        ("kill 0", NOT_FOR_READERS),
        ("restart", NOT_FOR_READERS),
        ("notice", NOT_FOR_READERS),
        ("stacks", NOT_FOR_READERS),
    ],
)
def test_a_quick_verb_imports_nothing_it_does_not_need(
    verb: str, hidden: tuple[str, ...], state_dir: Path, tmp_path: Path
) -> None:
    """The verb is run without a run: it has imported its modules before it finds that out."""
    loaded = modules_of(verb, tmp_path)
    assert "orchestrator.store.runs.reader" in loaded
    assert not within(loaded, hidden)


def test_a_plan_that_is_only_shown_imports_no_events(state_dir: Path, tmp_path: Path) -> None:
    loaded = modules_of("config -- true", tmp_path)
    assert "orchestrator.core.plan.plan" in loaded
    assert not within(loaded, NOT_FOR_PLANS)
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY or os.geteuid() == 0:
        assert "psutil" not in loaded  # else the user's threads are counted


def modules_of(verb: str, directory: Path) -> set[str]:
    """The modules that a verb has imported at its end."""
    program = "import sys; from orchestrator.cli import main; main();print('modules:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, *verb.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def within(loaded: set[str], parts: tuple[str, ...]) -> set[str]:
    """Return our modules that are in one of these parts."""
    return {name for name in loaded for part in parts if f"{name}.".startswith(f"orchestrator.{part}.")}


def test_server_of_the_page_imports_no_psutil() -> None:
    """psutil takes 0.8 MB, and only the processes of a lost run need it."""
    program = "import sys, orchestrator.ui.serving; print('psutil' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"


BUILT = """
import sys
from pydantic import BaseModel
import orchestrator.cli.up_run, orchestrator.supervisor.request_loop
waiting = [BaseModel]
for model in waiting:
    waiting += model.__subclasses__()
print(*(model.__qualname__ for model in waiting if model.__pydantic_complete__ and model.model_fields))
"""


def test_models_are_built_on_first_use() -> None:
    """Without defer_build, client and supervisor build all models before a start, half a millisecond for each."""
    done = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) <= {"TaskStack"}  # a module keeps an instance of it


def test_no_module_stands_in_the_way_of_a_public_name() -> None:
    """A submodule, once imported, is an attribute of the package: under a verb's name it would replace it."""
    assert not {path.stem for path in sources("orchestrator")} & set(orchestrator.__all__)
    assert not {path.parent.name for path in sources("orchestrator")} & set(orchestrator.__all__)
    for name in orchestrator.__all__:
        assert callable(getattr(orchestrator, name))


@pytest.mark.parametrize(
    "module",
    [
        "orchestrator.supervisor.__main__",
        "orchestrator.client.api",
        "orchestrator.ui.serving",
        "orchestrator.checkpoints",
        "orchestrator.pytest_plugin.clusters",
        "worker.agent.agent",
    ],
)
def test_no_process_of_ours_loads_tensorflow(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert module in loaded
    assert not loaded & TENSORFLOW
    if module == "worker.agent.agent":
        assert not loaded & {"pydantic", "rich", "psutil", "orchestrator"}
