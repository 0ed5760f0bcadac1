"""`orch up --sync` with real git, rsync and ssh: the hosts get the files of the directory that git does not ignore."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts_run import Commands
from testbed import Testbed

ODD_NAMES = {"new\nline.py", "-rf", "#hash", "[a]*?\\b", "\udcff\udcfe.py", " "}
# The name is also the text of a message of git.
REPOSITORY = "not a git repository"
WORK = f"{REPOSITORY}/training"
# The repositories in one directory.
INSIDE = ("", "module/", "inner/", "inner/innermost/")


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


def place(machines: Testbed, path: str = WORK) -> str:
    """The path in the home directory, as the machines see it."""
    return f"{machines.directory}/home/{path}"


UP = ("up", "--sync", "--hosts")


def copied(machines: Testbed, host: str = "n1", path: str = WORK) -> set[str]:
    """The paths that a host has below this one. A slash marks a directory."""
    top = machines[host].home / path
    return {
        f"{each.relative_to(top)}{'/' * (each.is_dir() and not each.is_symlink())}" for each in top.rglob("*")
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
    with Commands(machines["n0"]) as commands:
        done = commands.run(place(machines), *UP, "n1,n2", "--", "train.py", env={})
    assert done.code == 0, done.err
    expected = {"train.py", "kept.log", "empty/", "logs/", "part/", "part/data.py", "linked", *ODD_NAMES}
    assert copied(machines, "n2") == expected
    assert copied(machines) == expected | {".env", "only there"}
    assert (machines["n1"].home / WORK / ".env").read_text() == "there"
    assert (machines["n2"].home / WORK).stat().st_mode & 0o777 == 0o750
    assert str((machines["n2"].home / WORK / "linked").readlink()) == "../outside"
    assert not (machines["n2"].home / REPOSITORY / "beside.py").exists()


def nest(top: Path) -> None:
    """Repositories in repositories, submodules, and links to them."""
    work, module = top / "training", top / "module"
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


NESTED = {f"{within}{name}" for within in INSIDE for name in (".gitignore", "code.py")}
NESTED |= {".gitmodules", "train.py", "elsewhere", "here", "here again", "module/new.py", *INSIDE} - {""}


def configure_a_program(top: Path) -> None:
    write(top / "training", "secret", ".gitignore", text="secret\n")
    git(top / "training", "init")
    program = top / "program"
    program.write_text('#!/bin/sh\ntouch "$(dirname "$0")/ran"\n')
    program.chmod(0o755)
    git(top / "training", "config", "core.fsmonitor", str(program))
    git(top, "init")


def write_gitignore(top: Path) -> None:
    write(top / "training", "secret", "a/secret", "a/b", ".gitignore", text="secret\n")


def ignore_the_script(top: Path) -> None:
    git(top, "init")
    write(top, "training/other")
    write(top, ".gitignore", text="train.py\n")


def in_repository(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Make a repository, then change it."""
    return lambda top: (git(top, "init"), change(top))


HOOK = {"GIT_DIR": "/hook/.git", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "/nowhere/index"}
OWN = {"train.py", "a/", "a/b", ".gitignore"}
UNLISTED = "git cannot list the files in PLACE ("
# Each row: a function that makes a directory, the environment of orch (None: a PATH without git), the files that the
# host gets, and the error.
DIRECTORIES: dict[str, tuple[Callable[[Path], object], dict[str, str] | None, set[str], str]] = {
    "repositories inside": (nest, {}, NESTED, ""),
    # Neither the program of a repository runs, nor do the variables of a hook count.
    "hook": (configure_a_program, HOOK, {"train.py", ".gitignore"}, ""),
    "no repository": (write_gitignore, {}, OWN, ""),
    "no repository and no git": (write_gitignore, None, OWN, ""),
    "of another owner": (
        in_repository(lambda top: [os.chown(path, 12345, 12345) for path in (top, top / ".git")]),
        {},
        set(),
        f"{UNLISTED}fatal: detected dubious ownership in repository",
    ),
    "without git": (
        in_repository(lambda top: None),
        None,
        set(),
        f"{UNLISTED}git could not be started: No such file",
    ),
    "damaged": (
        in_repository(lambda top: (top / ".git/HEAD").unlink()),
        {},
        set(),
        f"{UNLISTED}fatal: not a git repository",
    ),
    "broken": (
        in_repository(lambda top: write(top, ".git/config", text="[core\n")),
        {},
        set(),
        f"{UNLISTED}fatal: bad config line 1",
    ),
    "all ignored": (
        in_repository(lambda top: write(top, ".gitignore", text="training/\n")),
        {},
        set(),
        "git ignores all files in",
    ),
    "the script ignored": (ignore_the_script, {}, {"other"}, "train.py (No such file or directory)"),
}


def test_directories_are_copied_by_their_own_rules_or_not_at_all(machines: Testbed, work: Path) -> None:
    """The hosts get what git does not ignore. A script is looked for after the copy."""
    without_git = {"PATH": path_without_git(machines.shared / "programs")}
    wrong = []
    with Commands(machines["n0"]) as commands:
        for name, (make, env, expected, said) in DIRECTORIES.items():
            write(work.parent, f"{name}/training/train.py")
            make(work.parent / name)
            path = f"{REPOSITORY}/{name}/training"
            environ = without_git if env is None else env
            done = commands.run(place(machines, path), *UP, "n1", "--", "train.py", env=environ)
            found, text = copied(machines, path=path), " ".join(done.err.split())
            said = said.replace("PLACE", place(machines, f"{path}/"))
            if (done.code, found) != (2 if said else 0, expected) or said not in text:
                wrong.append((name, done, found))
    assert not wrong
    assert "--sync copies only files in" in text and "that git does not ignore" in text
    assert not (work.parent / "hook/ran").exists()


def path_without_git(directory: Path) -> str:
    """A PATH with all programs of this one but git."""
    directory.mkdir(exist_ok=True)
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("git"):
                (directory / program.name).unlink(missing_ok=True)
                (directory / program.name).symlink_to(program)
    return str(directory)
