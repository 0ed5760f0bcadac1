"""A file that the user names for a result: links of other users are not followed, those of the user and of root are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting_as import needs_root
from orch_command import Orch
from users import ORDINARY, User

pytestmark = needs_root

USER, OTHER = ORDINARY + 20, ORDINARY + 21
# The words before the name of the file, and after it.
OUTPUTS = (
    (("report", "--force", "-o"), ()),
    (("export", "slurm", "--nodes", "2", "-o"), ("--", "true")),
    (("up", "-q", "--junit"), ("--", "true")),
)


@pytest.fixture(params=[0, USER], ids=["root", "ordinary user"])
def user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[User]:
    with User(request.param, tmp_path / "state") as made:
        assert made("up", "-q", "--", "true").returncode == 0
        (made.home / "kept").mkdir(mode=0o777)
        (made.home / "kept/file").write_text("kept")
        for path in (made.home / "kept", made.home / "kept/file"):
            os.chown(path, made.uid, made.uid)
        yield made


def link(user: User, name: str, target: str, owner: int) -> None:
    (user.home / name).symlink_to(target)
    os.chown(user.home / name, owner, owner, follow_symlinks=False)


def test_link_of_another_user_is_not_followed(user: User) -> None:
    link(user, "to-file", "kept/file", OTHER)
    link(user, "to-nothing", "kept/new", OTHER)
    link(user, "to-directory", "kept", OTHER)
    # The user's own link leads to the other's.
    link(user, "own", "to-file", user.uid)
    runs = user.runs()
    paths = ("to-file", "to-nothing", "to-directory/file", "own")
    for path, (before, after) in itertools.product(paths, OUTPUTS):
        done = user(*before, path, *after)
        assert done.returncode == 2, (path, done)
        assert f"is a symbolic link of the user {OTHER}" in done.stderr and path in done.stderr
    assert [(path.name, path.read_text()) for path in (user.home / "kept").iterdir()] == [("file", "kept")]
    assert (user.home / "to-file").is_symlink() and user.runs() == runs


def test_link_of_the_user_or_of_root_is_followed(user: User) -> None:
    link(user, "own", "kept/file", user.uid)
    link(user, "roots", "own-directory/new", 0)
    link(user, "own-directory", str(user.home / "kept"), user.uid)
    for path, (before, after) in zip(("own", "roots", "own-directory/third"), OUTPUTS, strict=True):
        done = user(*before, path, *after)
        assert done.returncode == 0, (path, done)
    assert sorted(path.name for path in (user.home / "kept").iterdir()) == ["file", "new", "third"]
    assert all(len(path.read_text()) > 100 for path in (user.home / "kept").iterdir())
    assert (user.home / "own").is_symlink() and (user.home / "roots").is_symlink()


def test_link_in_the_place_of_a_new_file_is_neither_followed_nor_replaced(orch: Orch) -> None:
    assert orch("up", "-q", "--", "true").code == 0
    target = orch.directory / "target"
    (orch.directory / "out.html").symlink_to(target)
    os.chown(orch.directory / "out.html", OTHER, OTHER, follow_symlinks=False)
    done = orch("report", "-o", "out.html")
    assert done.code == 2 and "out.html: exists; --force replaces it" in done.err
    assert not target.exists()
