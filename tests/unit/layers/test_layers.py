"""Modules that real processes load, which import contracts cannot check (those are in pyproject.toml), and the files,
functions and tests that the documentation names."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
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
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", _FORKS, *programs]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=directory, env=env)
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
    # `sitecustomize` is the user's own, which the bootstrap replaces and then runs.
    known, wrong = sys.stdlib_module_names | {"sitecustomize"}, []
    for path in sources("worker/bootstrap"):
        tree = ast.parse(path.read_text())
        depth = len(path.relative_to(ROOT / "worker/bootstrap").parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                is_ours = (node.module or "").partition(".")[0] in {"worker", "orchestrator"}
                wrong += [f"{path}:{node.lineno}"] * (node.level > depth or is_ours)
        for node in tree.body:
            for alias in node.names if isinstance(node, ast.Import) else ():
                wrong += [f"{path}:{node.lineno}"] * (alias.name.partition(".")[0] not in known)
    assert wrong == []


# Verbs that only read a run must not load the code that starts, plans or judges one.
NOT_FOR_READERS = (
    *("ui", "core.chaos", "request.command", "engines", "client.launch", "core.lifecycle", "host"),
    *("core.plan", "client.session", "core.job.spec"),
)
OTHERS_NOT_FOR_TABLES = (
    "core.diagnosis.symptoms",
    "links",
    "client.stop",
    "supervisor",
    "client.view.report",
)
NOT_FOR_PLANS = ("core.state", "store.runs.reader", "client.launch", "engines", "links", "supervisor")
VERBS = {
    **dict.fromkeys(("status", "ls", "history"), NOT_FOR_READERS + OTHERS_NOT_FOR_TABLES),
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


# Files of the state are opened, created and removed by the store's directories only, never by a path. These hold the
# descriptors; checkpoints belong to the user's program.
BY_DESCRIPTOR = {f"orchestrator/store/{name}.py" for name in ("directory", "ownership", "trees")}
ACTS_OF_OS = {
    *(
        "open",
        "mkdir",
        "makedirs",
        "unlink",
        "remove",
        "rename",
        "replace",
        "rmdir",
        "symlink",
        "link",
        "chmod",
    ),
}
ACTS_OF_PATHS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir"),
    *("rename", "replace", "symlink_to", "hardlink_to", "iterdir", "glob", "rglob", "chmod"),
}
# An expression that is a path of a run or of the state: `view.paths.result`, `paths.task_log(x)`, `runs_dir() / x`.
STATE_PATH = re.compile(r"(.*\bpaths\.(\w+)(\(.*\))?|.*\b(state|runs|names)_dir\(\).*)")


def test_no_module_uses_a_path_of_the_state() -> None:
    found = []
    for path in sources("orchestrator"):
        module = str(path.relative_to(ROOT))
        is_store = module.startswith("orchestrator/store/") and "/store/checkpoints/" not in module
        for node in ast.walk(ast.parse(path.read_text())) if module not in BY_DESCRIPTOR else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            value, method = ast.unparse(node.func.value), node.func.attr
            by_os = is_store and (value == "shutil" or (value == "os" and method in ACTS_OF_OS))
            if by_os or (method in ACTS_OF_PATHS and STATE_PATH.fullmatch(value)):
                found.append(f"{module}:{node.lineno}: {value}.{method}")
    assert found == []


def defines(file: Path, name: str) -> bool:
    pattern = rf"^\s*(?:def|class) {name}\b"
    return file.exists() and bool(re.search(pattern, file.read_text(), re.MULTILINE))


def test_documented_places_exist_and_one_run_has_few_files() -> None:
    text = (ROOT / "docs/how-a-run-works.md").read_text()
    places = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)(?:: ([\w.]+))?`", text))
    assert len(places) > 30
    missing = []
    for path, name in sorted(places):
        file = next((place for place in (ROOT / path, ROOT / "orchestrator" / path) if place.exists()), None)
        if file is None or (name and not defines(file, name.rpartition(".")[2])):
            missing.append(f"{path}: {name}")
    assert missing == []
    way = text[text.index("## One real run") : text.index("## When a task fails")]
    assert len(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)", way))) <= 35


def test_every_attack_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/threat-model.md").read_text()
    lines = [line for line in text[text.index("## Attacks") :].splitlines() if line.startswith("| ")]
    attacks = [line for line in lines if not line.startswith("| attack ")]
    tests = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*/test_[a-z_0-9]+\.py)::(test_\w+)`", text))
    assert len(attacks) >= len(tests) > 50
    assert [line for line in attacks if "::test_" not in line] == []
    missing = [f"{path}::{name}" for path, name in tests if not defines(ROOT / "tests" / path, name)]
    assert missing == []
