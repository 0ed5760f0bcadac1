"""Who may import whom: read from the source, and once from a real process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = {"tensorflow", "keras", "tf_keras", "numpy"}
PURE = {
    "errors",
    "color",
    "spec",
    "configuration.durations",
    "configuration.request",
    "configuration.setting_table",
    "tf_config",
    "plan",
    "configuration.config_document",
    "events",
    "state",
    "lifecycle",
    "diagnosis",
    "result",
    "status_document",
    "progress.progress_throttle",
    "progress.told_progress",
    "start_method",
    "progress.keras_lines",
    "progress.line_progress",
    "progress.doing",
    "progress.start_watch",
    "cpu_budget",
}
# A pure module neither acts nor looks at the clock. (`signal` is allowed: for the names.)
NOT_PURE = {
    "asyncio",
    "ctypes",
    "datetime",
    "fcntl",
    "glob",
    "io",
    "multiprocessing",
    "os",
    "platform",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
# What a view must not know of: whoever starts, decides or writes.
BEHIND_THE_VIEW = {
    "links",
    "api",
    "cli",
    "engines",
    "follow",
    "foreground",
    "lifecycle",
    "plan",
    "runs.catalog",
    "runs.leftovers",
    "runs.locks",
    "runs.log_store",
    "runs.reader",
    "runs.store",
    "supervision",
    "configuration.settings",
}
AGENT = {
    "agent",
    "forks",
    "injection",
    "ports",
    "preload_link",
    "processes",
    "progress_inbox",
    "readiness",
    "sampling",
    "stream",
    "task_process",
    "teardown",
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, *, at_run_time: bool = False) -> Iterator[str]:
    """Dotted names of all that a file imports, wherever in it; `from a import b` counts as a and as a.b."""
    tree: ast.AST = ast.parse(path.read_text())
    if at_run_time:
        tree = _WithoutTypeChecking().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                # The bootstrap is loaded under another name than its own: it may only reach into itself.
                assert ROOT / "worker/bootstrap" in path.parents, f"{path}: a relative import hides its layer"
                inside = len(path.relative_to(ROOT / "worker/bootstrap").parts)
                assert node.level <= inside, f"{path}: reaches out of the bootstrap"
                continue
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class _WithoutTypeChecking(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def of_ours(path: Path, package: str, *, at_run_time: bool = False) -> set[str]:
    """The project's own names that a file imports, without the package's."""
    prefix = package + "."
    names = imports(path, at_run_time=at_run_time)
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


@pytest.mark.parametrize("path", sources("orchestrator"), ids=lambda path: str(path.relative_to(ROOT)))
def test_orchestrator_never_imports_what_tasks_run(path: Path) -> None:
    assert not tops(path) & (TENSORFLOW | {"worker"})


@pytest.mark.parametrize("path", sources("worker"), ids=lambda path: str(path.relative_to(ROOT)))
def test_worker_never_imports_the_orchestrator(path: Path) -> None:
    assert "orchestrator" not in tops(path)


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_module_imports_only_what_is_pure(name: str) -> None:
    path = (ROOT / "orchestrator").joinpath(*name.split(".")).with_suffix(".py")
    assert not tops(path) & NOT_PURE
    assert tops(path) - {"orchestrator", "pydantic"} <= sys.stdlib_module_names | {"__future__"}
    folders = {pure.rpartition(".")[0] for pure in PURE}
    ours = of_ours(path, "orchestrator", at_run_time=True) - folders
    assert not {name for name in ours if not any(f"{name}.".startswith(f"{pure}.") for pure in PURE)}


@pytest.mark.parametrize("path", sources("orchestrator/doctor"), ids=lambda path: path.stem)
def test_the_doctor_judges_facts_without_looking(path: Path) -> None:
    """Only the probes look, and `examine` calls them."""
    if path.stem.startswith("probe_") or path.stem == "examine":
        return
    assert not tops(path) & NOT_PURE
    seen = of_ours(path, "orchestrator", at_run_time=True)
    assert {name.partition(".")[0] for name in seen} <= {"doctor", "view", "cpu_budget"}
    assert not {name for name in seen if "probe" in name or "examine" in name}


@pytest.mark.parametrize("path", sources("orchestrator/view"), ids=lambda path: path.name)
def test_a_view_knows_nothing_of_what_is_behind_it(path: Path) -> None:
    seen = of_ours(path, "orchestrator")
    assert not {name for name in seen for hidden in BEHIND_THE_VIEW if f"{name}.".startswith(f"{hidden}.")}


@pytest.mark.parametrize("name", sorted(AGENT))
def test_the_agent_needs_the_standard_library_alone(name: str) -> None:
    path = ROOT / "worker" / f"{name}.py"
    assert tops(path) - {"worker", "portpicker"} <= sys.stdlib_module_names | {"__future__"}
    assert {module.partition(".")[0] for module in of_ours(path, "worker")} <= AGENT


@pytest.mark.parametrize("path", sources("worker/bootstrap"), ids=lambda path: path.stem)
def test_the_bootstrap_needs_nothing_but_the_standard_library_to_be_imported(path: Path) -> None:
    assert "worker" not in tops(path)
    top_level = {
        alias.name.partition(".")[0]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    # What the interpreter would have found instead of ours.
    assert top_level - {"sitecustomize"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", [*sources("orchestrator"), *sources("worker")], ids=lambda path: path.stem)
def test_only_the_composition_root_and_its_callers_import_it(path: Path) -> None:
    module = path.relative_to(ROOT).with_suffix("").as_posix()
    if (
        module
        not in ("orchestrator/__init__", "orchestrator/api", "orchestrator/launch", "orchestrator/session")
        and "/cli/" not in module
    ):
        assert "api" not in of_ours(path, "orchestrator")


def test_no_module_stands_in_the_way_of_a_public_name() -> None:
    """A submodule, once imported, is an attribute of the package: under a verb's name it would replace it."""
    assert not {path.stem for path in sources("orchestrator")} & set(orchestrator.__all__)
    assert not {path.parent.name for path in sources("orchestrator")} & set(orchestrator.__all__)
    for name in orchestrator.__all__:
        assert callable(getattr(orchestrator, name))


@pytest.mark.parametrize(
    "module", ["orchestrator.supervision.supervisor_process", "orchestrator.api", "worker.agent"]
)
def test_no_process_of_ours_loads_tensorflow(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert module in loaded
    assert not loaded & TENSORFLOW
    if module == "worker.agent":
        assert not loaded & {"pydantic", "rich", "psutil", "orchestrator"}
