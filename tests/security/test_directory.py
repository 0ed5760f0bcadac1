"""Directories of the state are opened, checked and changed by descriptors, whatever replaces them meanwhile."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from acting_as import needs_root
from damage import make_deep_tree
from users import ORDINARY

from orchestrator.core.errors import NotOurs, UsageError
from orchestrator.host.directories import content_errors
from orchestrator.store.directory import Directory, NotRegularFile


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir(mode=0o700)
    return made


def change_owner(path: Path) -> None:
    os.chown(path, ORDINARY, ORDINARY, follow_symlinks=False)


def add_group_write(path: Path) -> None:
    path.chmod(0o770)


OF_OTHERS = pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(change_owner, f"belongs to the user {ORDINARY}", marks=needs_root),
        (add_group_write, "others may write here"),
    ],
)


@OF_OTHERS
def test_refusal_names_the_path_the_owner_and_the_remedy(
    place: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(place)
    for opened in (Directory.open, Directory.at):
        with pytest.raises(NotOurs, match=f"{place}: {reason}.*; ") as refused:
            opened(place)
        assert (refused.value.path, refused.value.owner) == (place, place.stat().st_uid)
        assert refused.value.remedy in str(refused.value)


def test_link_that_leads_nowhere_is_named_with_the_remedy(tmp_path: Path) -> None:
    for name, target in (("one", "missing"), ("two", "two")):
        link = tmp_path / name
        link.symlink_to(target)
        for attempt in (Directory.open, Directory.create):
            with pytest.raises(UsageError, match=f"{link}: is a symbolic link to .*; .* remove the link"):
                attempt(link)


def test_only_a_root_that_the_user_named_may_be_a_link(tmp_path: Path, place: Path) -> None:
    (place / "runs").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("place")
    with Directory.open(link) as opened:
        assert opened.entries() == ["runs"]
    for within in (link, link / "runs"):
        with pytest.raises(NotADirectoryError, match="is a symbolic link"):
            Directory.at(within)


@needs_root
def test_root_that_is_a_link_of_another_user_is_refused(tmp_path: Path, place: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("place")
    change_owner(link)
    with pytest.raises(NotOurs, match=f"{link}: belongs to the user {ORDINARY}"):
        Directory.open(link)


def test_nothing_in_a_directory_is_reached_through_a_link(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (place / "link").symlink_to(outside)
    (place / "file").symlink_to(outside / "file")
    with Directory.open(place) as directory:
        with pytest.raises(NotADirectoryError):
            directory.sub("link")
        with pytest.raises(NotADirectoryError):
            directory.make("link")
        with pytest.raises(NotRegularFile):
            directory.open_private("file", os.O_WRONLY | os.O_TRUNC)
        assert directory.read_bytes("file") is None
        directory.write_atomically("file", "new")
        assert directory.remove_tree("link").is_complete
    assert (outside / "file").read_text() == "kept"
    assert (place / "file").read_text() == "new"


def test_only_the_name_of_an_entry_is_accepted(place: Path) -> None:
    with Directory.open(place) as directory:
        for act in (directory.sub, directory.make, directory.lstat, directory.unlink, directory.remove_tree):
            for name in ("", ".", "..", "a/b", "a\0b"):
                with pytest.raises(ValueError, match="is not the name"):
                    act(name)


def test_pipe_in_the_place_of_a_file_is_refused_without_waiting(place: Path) -> None:
    os.mkfifo(place / "file")
    with Directory.open(place) as directory:
        for attempt in (directory.open_regular, lambda name: directory.open_private(name, os.O_WRONLY)):
            with pytest.raises(NotRegularFile):
                attempt("file")


@OF_OTHERS
def test_file_of_others_is_neither_read_nor_written(
    place: Path, change: Callable[[Path], None], reason: str
) -> None:
    (place / "file").write_text("{}")
    change(place / "file")
    with Directory.open(place) as directory:
        assert directory.read_object("file") is None
        with pytest.raises(NotOurs, match=reason):
            directory.open_private("file", os.O_WRONLY | os.O_TRUNC)
    assert (place / "file").read_text() == "{}"


def test_log_with_a_second_hard_link_is_replaced(place: Path, tmp_path: Path) -> None:
    """A prepared state directory may have a link to any file of this user."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (place / "log").hardlink_to(precious)
    with Directory.open(place) as directory:
        for text in ("old", "new"):
            with os.fdopen(directory.open_private("log", os.O_WRONLY | os.O_TRUNC | os.O_APPEND), "w") as log:
                log.write(text)
    assert ((place / "log").read_text(), precious.read_text()) == ("new", "precious")
    assert (place / "log").stat().st_mode & 0o777 == 0o600


def test_new_directory_and_its_parents_are_private_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        Directory.create(tmp_path / "a/b/c").close()
    finally:
        os.umask(previous)
    modes = [(tmp_path / each).stat().st_mode & 0o777 for each in ("a", "a/b", "a/b/c")]
    assert modes == [0o700] * 3


def act_at_mkdir(
    patch: pytest.MonkeyPatch, act: Callable[[str], None], name: str | None = None, *, first: bool
) -> None:
    """Let another user or the file system act before (`first`) or after a directory (`name`) is made."""
    real = os.mkdir

    def mkdir(made: str, *args: int, dir_fd: int | None = None) -> None:
        if first and made == name:
            act(made)
        real(made, *args, dir_fd=dir_fd)
        if not first:
            act(made)

    patch.setattr(os, "mkdir", mkdir)


@needs_root
@pytest.mark.parametrize("planted", ["a", "a/b"])
def test_directory_that_another_user_makes_first_is_refused(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other user acts between the look at what is missing and the creation."""
    taken = tmp_path / planted
    act_at_mkdir(monkeypatch, lambda _: (taken.mkdir(), change_owner(taken)), taken.name, first=True)
    with pytest.raises(NotOurs, match=f"{taken}: belongs to the user {ORDINARY}"):
        Directory.create(tmp_path / "a/b/c", may_be_shared=True)
    assert not (taken / "c").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda path: path.chmod(0o777),
            r"others may write here \(mode 777\): the file system keeps no perm",
        ),
        pytest.param(change_owner, "NFS with root_squash", marks=needs_root),
    ],
)
def test_file_system_without_permissions_or_owners_is_named_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], reason: str
) -> None:
    act_at_mkdir(monkeypatch, lambda name: change(tmp_path / name), first=False)
    remedy = "name a directory on another file system"
    for _ in range(2):
        with pytest.raises(NotOurs, match=f"{tmp_path / 'new'}: .*{reason}.*{remedy}"):
            Directory.create(tmp_path / "new/below", may_be_shared=True)
        assert list(tmp_path.iterdir()) == []
    assert list(content_errors(tmp_path)) == ["private directories"]
    assert list(tmp_path.iterdir()) == []


def test_deep_tree_is_measured_and_removed_with_few_descriptors(place: Path) -> None:
    make_deep_tree(place / "deep")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        with Directory.open(place) as directory:
            assert directory.disk_bytes("deep") == 4096
            assert directory.remove_tree("deep").is_complete
            assert directory.entries() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_removal_says_what_stays_and_why(place: Path) -> None:
    (place / "tree/own").mkdir(parents=True)
    (place / "tree/sub").mkdir()
    attribute = place / "tree/sub/kept"
    attribute.write_text("")
    if os.geteuid() != 0 or os.system(f"chattr +i {attribute} 2>/dev/null") != 0:
        pytest.skip("no file here can be made immutable")
    try:
        with Directory.open(place) as directory:
            removal = directory.remove_tree("tree")
    finally:
        os.system(f"chattr -i {attribute}")
    assert removal.failures == ["kept: Operation not permitted"]
    assert [path.name for path in (place / "tree").iterdir()] == ["sub"]


def test_directory_without_permissions_is_removed(place: Path) -> None:
    (place / "tree/closed/more").mkdir(parents=True)
    (place / "tree/closed").chmod(0)
    with Directory.open(place) as directory:
        assert directory.remove_tree("tree").is_complete
    assert not (place / "tree").exists()


@needs_root
@pytest.mark.parametrize("mounted", ["tree", "tree/below"])
def test_directory_that_is_mounted_in_a_tree_is_not_emptied(
    place: Path, tmp_path: Path, mounted: str
) -> None:
    """A bind mount of the same file system has the same device number as the tree."""
    (place / "tree/below").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "note").write_text("kept")
    words = ["unshare", "-m", "sh", "-ec", 'mount --bind "$1" "$2"; shift 2; exec "$@"', "sh"]
    mount = [*words, str(other), str(place / mounted)]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace is not allowed here")
    done = subprocess.run([*mount, sys.executable, "-c", REMOVES, str(place)], capture_output=True, text=True)
    assert done.stdout == f"{Path(mounted).name}: is a mount point, which is left as it is\n", done.stderr
    assert (other / "note").read_text() == "kept"


REMOVES = """
import sys
from pathlib import Path
from orchestrator.store.directory import Directory
with Directory.open(Path(sys.argv[1])) as place:
    print(*place.remove_tree("tree").failures)
"""
