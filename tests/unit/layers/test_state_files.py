"""Files of the state are opened, created and removed by the store's directories only, never by a path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3] / "orchestrator"
# These hold the descriptors; checkpoints belong to the user's program.
BY_DESCRIPTOR = {"store/directory.py", "store/ownership.py", "store/trees.py"}
OF_THE_USER = "store/checkpoints/"
ACTS_OF_OS = {
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
}
ACTS_OF_PATHS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir"),
    *("rename", "replace", "symlink_to", "hardlink_to", "iterdir", "glob", "rglob", "chmod"),
}
# An expression that is a path of a run or of the state: `view.paths.result`, `paths.task_log(x)`, `runs_dir() / x`.
STATE_PATH = re.compile(r"(.*\bpaths\.(\w+)(\(.*\))?|.*\b(state|runs|names)_dir\(\).*)")


def calls(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, the object, the method) of each call of a method."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, ast.unparse(node.func.value), node.func.attr


def test_no_module_uses_a_path_of_the_state() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        module = str(path.relative_to(ROOT))
        if module in BY_DESCRIPTOR:
            continue
        is_store = module.startswith("store/") and not module.startswith(OF_THE_USER)
        found += [
            f"{module}:{line}: {value}.{method}"
            for line, value, method in calls(path)
            if (method in ACTS_OF_PATHS and STATE_PATH.fullmatch(value))
            or (is_store and (value == "shutil" or (value == "os" and method in ACTS_OF_OS)))
        ]
    assert found == []
