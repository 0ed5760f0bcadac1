"""Who may import whom: read from the source, and once from a real process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = {"tensorflow", "keras", "tf_keras", "numpy"}
PURE = {
    "errors",
    "counted",
    "nearest",
    "color",
    "checkpoints.bundle_index",
    "checkpoints.kinds",
    "checkpoints.state_file",
    "spec",
    "configuration.durations",
    "gpu_plan",
    "gpu_words",
    "gpus",
    "strategy",
    "task_devices",
    "configuration.request",
    "configuration.setting_readers",
    "configuration.setting_table",
    "configuration.sizes",
    "tensorboard",
    "tf_config",
    "plan",
    "configuration.config_document",
    "events",
    "state",
    "lifecycle.machine",
    "lifecycle.actions",
    "lifecycle.terms",
    "runs.run_end",
    "lifecycle.verdict",
    "diagnosis.limit_blame",
    "lifecycle.restarts",
    "lifecycle.task_restarts",
    "lifecycle.task_ends",
    "lifecycle.work",
    "lifecycle.farewell",
    "roles",
    "configuration.role_settings",
    "lifecycle.time_limits",
    "chaos.fault",
    "chaos.watch",
    "chaos.record",
    "diagnosis.sent_signals",
    "signal_names",
    "diagnosis.stacks",
    "diagnosis.failure",
    "result",
    "status_document",
    "progress.attempt_course",
    "progress.position",
    "progress.progress_throttle",
    "progress.told_progress",
    "start_method",
    "progress.keras_lines",
    "progress.line_progress",
    "progress.doing",
    "progress.start_watch",
    "cpu_budget",
    "diagnosis.stack_text",
    "network",
    "diagnosis.lacks",
    "supervision.memory_watch",
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
    "runs.checkpoints_in_use",
    "runs.event_tail",
    "runs.leftovers",
    "runs.liveness",
    "runs.locks",
    "logs.store",
    "runs.reader",
    "runs.run_names",
    "runs.store",
    "supervision",
    "configuration.settings",
}
AGENT = {
    "agent",
    "counted",
    "forks",
    "full_disks",
    "injection",
    "network",
    "oom_kills",
    "ports",
    "preload_link",
    "processes",
    "progress_inbox",
    "readiness",
    "leaving_signals",
    "live_tasks",
    "own_dump",
    "py_spy",
    "sampling",
    "stack_taking",
    "stream",
    "task_process",
    "teardown",
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(path: Path, *, at_run_time: bool = False) -> tuple[str, ...]:
    """Dotted names of all that a file imports, wherever in it; `from a import b` counts as a and as a.b."""
    return tuple(_imports(path, at_run_time))


def _imports(path: Path, at_run_time: bool) -> Iterator[str]:
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


def test_orchestrator_never_imports_what_tasks_run() -> None:
    assert not [path for path in sources("orchestrator") if tops(path) & (TENSORFLOW | {"worker"})]


def test_worker_never_imports_the_orchestrator() -> None:
    assert not [path for path in sources("worker") if "orchestrator" in tops(path)]


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_no_module_imports_one_that_needs_it(package: str) -> None:
    """Not even within a function or for its types: of two that know each other neither stands below the other."""
    modules = {module_name(path): path for path in sources(package)}
    needs = {module: set(modules_imported(path, modules)) - {module} for module, path in modules.items()}
    # Whoever needs nothing that is left is no part of a circle.
    while lowest := [module for module, others in needs.items() if not others & needs.keys()]:
        for module in lowest:
            del needs[module]
    assert not needs, f"circles among {sorted(needs)}, or above such"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_imported(path: Path, known: Collection[str]) -> Iterator[str]:
    """Which known ones a file imports, wherever in it; `from a import b` is a.b where that is a module."""
    here = module_name(path).split(".")
    above = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            start = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*start, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                meant = (f"{base}.{alias.name}", base)
                yield from [name for name in meant if name in known][:1]


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
    assert {name.partition(".")[0] for name in seen} <= {
        "doctor",
        "view",
        "counted",
        "cpu_budget",
        "roles",
        "tf_config",
    }
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


CALLERS = {f"orchestrator/{name}" for name in ("__init__", "api", "launch", "session", "testing")}


def test_only_the_composition_root_and_its_callers_import_it() -> None:
    for path in (*sources("orchestrator"), *sources("worker")):
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        if module not in CALLERS and "/cli/" not in module and "/pytest_plugin/" not in module:
            assert "api" not in of_ours(path, "orchestrator"), module


# What only starts, judges or plans runs: a verb that looks at one does not wait for its import.
BEHIND_A_LOOK = (
    "chaos",
    "command",
    "engines",
    "launch",
    "lifecycle",
    "machine",
    "network",
    "plan",
    "session",
    "spec",
)
BEHIND_A_TABLE = (*BEHIND_A_LOOK, "diagnosis.failure", "links", "stop", "supervision", "view.report")


@pytest.mark.parametrize(
    ("verb", "hidden"),
    [
        ("status", BEHIND_A_TABLE),
        ("ls", BEHIND_A_TABLE),
        ("down", BEHIND_A_LOOK),
        ("logs x", BEHIND_A_LOOK),
        ("kill 0", BEHIND_A_LOOK),
        ("restart", BEHIND_A_LOOK),
        ("stacks", BEHIND_A_LOOK),
    ],
)
def test_a_quick_verb_imports_nothing_it_does_not_need(
    verb: str, hidden: tuple[str, ...], state_dir: Path, tmp_path: Path
) -> None:
    """Whatever it does, as far as a verb gets where there is no run: by then it has imported its own."""
    program = (
        "import sys; from orchestrator.cli import main; main();"
        "print(*(name for name in sys.modules if name.startswith('orchestrator.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *verb.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loaded = {name.removeprefix("orchestrator.") for name in done.stdout.split()}
    assert "runs.reader" in loaded
    assert not {name for name in loaded for one in hidden if f"{name}.".startswith(f"{one}.")}


def test_no_module_stands_in_the_way_of_a_public_name() -> None:
    """A submodule, once imported, is an attribute of the package: under a verb's name it would replace it."""
    assert not {path.stem for path in sources("orchestrator")} & set(orchestrator.__all__)
    assert not {path.parent.name for path in sources("orchestrator")} & set(orchestrator.__all__)
    for name in orchestrator.__all__:
        assert callable(getattr(orchestrator, name))


@pytest.mark.parametrize(
    "module",
    [
        "orchestrator.supervision.supervisor_process",
        "orchestrator.api",
        "orchestrator.checkpoints",
        "orchestrator.pytest_plugin.clusters",
        "worker.agent",
    ],
)
def test_no_process_of_ours_loads_tensorflow(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert module in loaded
    assert not loaded & TENSORFLOW
    if module == "worker.agent":
        assert not loaded & {"pydantic", "rich", "psutil", "orchestrator"}
