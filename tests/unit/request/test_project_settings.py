"""[tool.orch] in pyproject.toml: the same settings as in orch.toml, and messages that name this file and its lines."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from acting_as import needs_root
from spec_making import Load
from users import ORDINARY

from orchestrator.core.errors import UsageError
from orchestrator.request.settings.settings import load

PROJECT = '[project]\nname = "tf-orch"\n'


@pytest.mark.parametrize(
    "settings",
    [
        '[tool.orch]\nworkers = 3\nfailure-grace = 2\n[tool.orch.roles.ps]\ncount = 2\nenv = { A = "1" }\n',
        '[tool]\norch.workers = 3\norch.failure_grace = "2s"\norch.roles.ps = { count = 2, env = { A = "1" } }\n',
        '[tool]\norch = { workers = 3, failure-grace = 2, roles = { ps = { count = 2, env = { A = "1" } } } }\n',
    ],
)
def test_same_keys_as_in_orch_toml(load_here: Load, tmp_path: Path, settings: str) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT + settings)
    spec = load_here(environ={"ORCH_FAILURE_GRACE": "4"}, failure_grace=None).spec
    assert (spec.roles["worker"], spec.roles["ps"], spec.failure_grace_s) == (3, 2, 4.0)
    assert spec.role_settings["ps"].env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.orch]\nwrokers = 3",
            'pyproject.toml, line 4: unknown key "wrokers"; did you mean "workers"?',
        ),
        (
            "[tool.orch]\n\nworkers = '3'",
            'pyproject.toml, line 5: workers: "3" is not a whole number; remove',
        ),
        ("workers = 1\n[tool.orch]\nname = 3", "pyproject.toml, line 5: name: 3 is not text"),
        ("[tool.orch.roles.ps]\ncuont = 2", "pyproject.toml, line 3: [roles]: ps has an unknown key"),
        ("[tool]\norch = 3", "pyproject.toml, line 4: tool.orch is 3, not a table; write [tool.orch]"),
        ("[tool]\norch = { workers = 0 }", "pyproject.toml, line 4: workers: must be at least 1, not 0"),
        ("[tool.orch]\nworkers = ", "pyproject.toml, line 4: not valid TOML: Invalid value"),
    ],
)
def test_mistake_is_named_with_its_line(load_here: Load, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT + text)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        load_here()


def test_settings_in_both_files_are_refused(load_here: Load, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT + "[tool.orch]\nworkers = 3\n")
    with pytest.raises(
        UsageError, match=r"^pyproject\.toml, line 3: \[tool\.orch\] is in the same directory as orch"
    ):
        load_here("workers = 2")


@pytest.mark.parametrize(
    "project", [b"[tool.ruff]\nline-length = 9\n", b"not TOML\n", b'name = "tf-torch"\n\xff']
)
def test_project_without_settings_of_orch_does_not_matter(
    load_here: Load, tmp_path: Path, project: bytes
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(project)
    assert load_here("workers = 2").spec.workers == 2


@needs_root
@pytest.mark.parametrize("name", ["orch.toml", "pyproject.toml"])
@pytest.mark.parametrize("planted", ["file", "link"])
def test_file_of_another_user_is_refused_where_all_users_may_write(
    tmp_path: Path, name: str, planted: str
) -> None:
    def workers() -> int:
        return load({"command": ["/bin/true"]}, {}, here).spec.roles["worker"]

    here = tmp_path / "here"
    here.mkdir()
    text = "workers = 3\n" if name == "orch.toml" else "[tool.orch]\nworkers = 3\n"
    if planted == "link":
        (here / name).symlink_to(tmp_path / "own")
    (here / name).write_text(text)
    os.chown(here / name, ORDINARY, ORDINARY, follow_symlinks=False)
    # Members of a group share the settings of their project.
    here.chmod(0o2775)
    assert workers() == 3
    for mode in (0o1777, 0o777):
        here.chmod(mode)
        # With fs.protected_symlinks the kernel itself refuses the link.
        refused = f"{here / name}: (belongs to the user {ORDINARY}, and all users may write|cannot be read)"
        with pytest.raises(UsageError, match=refused):
            workers()
    os.chown(here / name, os.geteuid(), 0, follow_symlinks=False)
    assert workers() == 3


@needs_root
def test_pyproject_of_another_user_without_settings_of_orch_is_ignored(
    load_here: Load, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    os.chown(tmp_path / "pyproject.toml", ORDINARY, ORDINARY)
    tmp_path.chmod(0o1777)
    load_here()
