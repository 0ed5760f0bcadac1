"""`orch up --sync` with real git, rsync and ssh: the hosts get the files of the directory that git does not ignore."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts_run import run_commands
from orch_command import ORCH
from testbed import Testbed

ODD_NAMES = {"new\nline.py", "-rf", "#hash", "[a]*?\\b", "\udcff\udcfe.py", " "}
# The name is also the text of a message of git.
REPOSITORY = "not a git repository"
WORK = f"{REPOSITORY}/training"


@pytest.fixture
def work(machines: Testbed) -> Iterator[Path]:
    """A subdirectory of a repository on n0. The hosts have no directory at this path."""
    homes = [machine.home for machine in machines.machines.values()]
    directory = homes[0] / WORK
    write(directory, "train.py")
    yield directory
    for home in homes:
        shutil.rmtree(home / REPOSITORY, ignore_errors=True)


def write(directory: Path, *paths: str, text: str = "") -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)


def git(directory: Path, *words: str) -> None:
    config = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(directory), *config, *words], check=True, capture_output=True)


def sync(machines: Testbed, *command: str, hosts: str = "n1", **env: str) -> subprocess.CompletedProcess[str]:
    """Run `orch up --sync` in `work`."""
    words = (str(ORCH), "up", "--as-root-anyway", "--sync", "--hosts", hosts, *command)
    place = Path(f"{machines.directory}/home/{WORK}")
    return machines["n0"].run(*words, cwd=place, check=False, env=env)


# The copy and the checks before a run, without the run.
CHECK = """
from pathlib import Path
from orchestrator.client.launch import check_hosts, load_request
from orchestrator.links.supervisor_link import start_supervisor
with start_supervisor() as supervisor:
    check_hosts(load_request(1, ["true"], Path.cwd(), {"hosts": "n1", "sync": True}).spec, supervisor)
"""


def copy(machines: Testbed, **env: str) -> None:
    cwd = Path(f"{machines.directory}/home/{WORK}")
    machines["n0"].run(sys.executable, "-c", CHECK, cwd=cwd, env=env)


def copied(machines: Testbed, host: str = "n1") -> set[str]:
    """The paths that a host has below `training`. A slash marks a directory."""
    top = machines[host].home / WORK
    return {
        f"{path.relative_to(top)}{'/' * (path.is_dir() and not path.is_symlink())}" for path in top.rglob("*")
    }


def test_hosts_get_what_git_does_not_ignore(machines: Testbed, work: Path) -> None:
    git(work.parent, "init")
    write(work.parent, ".gitignore", text=".env\n*.log\n/training/.venv/\nlogs/*\n")
    write(work.parent, ".git/info/exclude", text="*.pem\n")
    write(work.parent, "beside.py")
    write(
        work, ".env", "part/.env", "key.pem", ".venv/bin/python", "logs/a.log", "b.log", "__pycache__/a.pyc"
    )
    write(
        work, "kept.log", "removed.py", "linked/secret", "part/__pycache__/b.pyc", "part/data.py", *ODD_NAMES
    )
    git(work, "add", "-f", "kept.log", "removed.py", "linked/secret", "part/__pycache__/b.pyc")
    (work / "removed.py").unlink()
    shutil.rmtree(work / "linked")
    write(work.parent, "outside/secret")
    (work / "linked").symlink_to("../outside")
    (work / "empty").mkdir()
    work.chmod(0o750)
    write(machines["n1"].home / WORK, ".env", "only there", text="there")
    # The script is looked for after the copy.
    done = sync(machines, "--", "train.py", hosts="n1,n2")
    assert done.returncode == 0, done.stderr
    expected = {"train.py", "kept.log", "empty/", "logs/", "part/", "part/data.py", "linked", *ODD_NAMES}
    assert copied(machines, "n2") == expected
    assert copied(machines) == expected | {".env", "only there"}
    assert (machines["n1"].home / WORK / ".env").read_text() == "there"
    assert (machines["n2"].home / WORK).stat().st_mode & 0o777 == 0o750
    assert str((machines["n2"].home / WORK / "linked").readlink()) == "../outside"
    assert not (machines["n2"].home / REPOSITORY / "beside.py").exists()


def test_repositories_inside_are_copied_by_their_own_rules(machines: Testbed, work: Path) -> None:
    module = work.parent / "module"
    for repository in (work, module, work / "inner", work / "inner/innermost"):
        write(repository, ".gitignore", "code.py", "ignored", text="ignored\n")
        git(repository, "init")
        git(repository, "add", "code.py", ".gitignore")
        git(repository, "commit", "-m", "first")
    git(work, "submodule", "add", str(module), "module")
    git(work, "submodule", "add", str(module), "elsewhere")
    write(work, "module/ignored", "module/new.py")
    shutil.rmtree(work / "elsewhere")
    for link, target in (("elsewhere", "../module"), ("here", "."), ("here again", ".")):
        (work / link).symlink_to(target)
    copy(machines)
    top = {".gitmodules", "train.py", "elsewhere", "here", "here again", "module/new.py"}
    places = ("", "module/", "inner/", "inner/innermost/")
    files = {f"{place}{name}" for place in places for name in (".gitignore", "code.py")}
    assert copied(machines) == {*top, *files, *places} - {""}


def test_a_repository_runs_no_program_and_variables_of_a_hook_are_ignored(
    machines: Testbed, work: Path
) -> None:
    git(work, "init")
    write(work, "secret", ".gitignore", text="secret\n")
    program = machines.shared / "program"
    program.write_text(f"#!/bin/sh\ntouch {machines.shared}/ran\n")
    program.chmod(0o755)
    git(work, "config", "core.fsmonitor", str(program))
    git(work.parent, "init")
    other = f"{machines.directory}/home/{REPOSITORY}/.git"
    copy(machines, GIT_DIR=other, GIT_WORK_TREE="/", GIT_INDEX_FILE="/nowhere/index")
    assert copied(machines) == {"train.py", ".gitignore"}
    assert not (machines.shared / "ran").exists()


# Rows: a change to a repository on n0, and the reason in orch's message.
UNLISTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another owner": (
        lambda top: [os.chown(path, 12345, 12345) for path in (top, top / ".git")],
        "git cannot list the files in PLACE (fatal: detected dubious ownership in repository",
    ),
    "without git": (
        lambda top: None,
        "git cannot list the files in PLACE (git could not be started: No such file",
    ),
    "damaged": (
        lambda top: (top / ".git/HEAD").unlink(),
        "git cannot list the files in PLACE (fatal: not a git repository",
    ),
    "broken": (
        lambda top: write(top, ".git/config", text="[core\n"),
        "git cannot list the files in PLACE (fatal: bad config line 1",
    ),
    "ignored": (lambda top: write(top, ".gitignore", text="training/\n"), "git ignores all files in"),
}


def test_nothing_is_copied_if_git_lists_no_files(machines: Testbed, work: Path) -> None:
    home = f"{machines.directory}/home/{REPOSITORY}"
    up = ("up", "--as-root-anyway", "--sync", "--hosts", "n1", "--", "true")
    commands, expected = [], []
    for name, (change, said) in UNLISTED.items():
        write(work.parent, f"{name}/training/train.py")
        git(work.parent / name, "init")
        change(work.parent / name)
        place = f"{home}/{name}/training"
        path = {"PATH": path_without_git(machines.shared / "programs")} if name == "without git" else {}
        commands.append((place, up, path))
        expected.append(f"--sync: {said}".replace("PLACE", f"{place}/"))
    done = run_commands(machines["n0"], commands)
    wrong = [
        (said, code, err)
        for said, (code, err) in zip(expected, done, strict=True)
        if code != 2 or said not in " ".join(err.split())
    ]
    assert not wrong
    assert not (machines["n1"].home / REPOSITORY).exists()


@pytest.mark.parametrize("has_git", [True, False])
def test_a_directory_outside_of_a_repository_is_copied_by_its_own_gitignore(
    machines: Testbed, work: Path, has_git: bool
) -> None:
    write(work, "secret", "a/secret", "a/b", ".gitignore", text="secret\n")
    copy(machines, **({} if has_git else {"PATH": path_without_git(machines.shared / "programs")}))
    assert copied(machines) == {"train.py", "a/", "a/b", ".gitignore"}


def test_an_ignored_script_is_missing_and_the_message_says_why(machines: Testbed, work: Path) -> None:
    git(work.parent, "init")
    write(work, "other")
    write(work.parent, ".gitignore", text="train.py\n")
    done = sync(machines, "--", "train.py")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "train.py (No such file or directory)" in said
    assert "--sync copies only files in" in said and "that git does not ignore" in said
    assert copied(machines) == {"other"}


def path_without_git(directory: Path) -> str:
    """A PATH with all programs of this one but git."""
    directory.mkdir(exist_ok=True)
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("git"):
                (directory / program.name).unlink(missing_ok=True)
                (directory / program.name).symlink_to(program)
    return str(directory)
