"""A file that the user names for a result: links of other users are not followed, those of the user and of root are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import orch_within
import pytest
from acting_as import needs_root
from users import ORDINARY, User

pytestmark = needs_root

USER, OTHER = ORDINARY + 20, ORDINARY + 21
# The words before the name of the file, and after it.
OUTPUTS = (
    (("report", "--force", "-o"), ()),
    (("export", "slurm", "--nodes", "2", "-o"), ("--", "true")),
    (("up", "-q", "--junit"), ("--", "true")),
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(0, id="root", marks=pytest.mark.slow), pytest.param(USER, id="ordinary")],
)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user with a run and the directory `kept`."""
    with User(request.param, tmp_path_factory.mktemp("outputs")) as made:
        assert made("up", "-q", "--", "true").returncode == 0
        (made.home / "kept").mkdir(mode=0o777)
        (made.home / "kept/file").write_text("kept")
        for path in (made.home / "kept", made.home / "kept/file"):
            os.chown(path, made.uid, made.uid)
        yield made


# Runs commands one after another in one process, which saves most imports.
PROGRAM = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from orch_within import run_within
for words in json.loads(sys.argv[2]):
    code = run_within(words, Path.cwd(), dict(os.environ), Path("traces"))
    err = Path("traces.err").read_text()
    print(json.dumps([code, err]))
"""


def ran(user: User, *commands: Sequence[str]) -> list[tuple[int, str]]:
    """Run `orch` with these words as this user. Return the exit codes and stderr."""
    support = Path(orch_within.__file__).parent
    done = user.run(str(user.python), "-c", PROGRAM, str(support), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def link(user: User, name: str, target: str, owner: int) -> None:
    (user.home / name).symlink_to(target)
    os.chown(user.home / name, owner, owner, follow_symlinks=False)


def kept(user: User) -> dict[str, str]:
    return {path.name: path.read_text() for path in (user.home / "kept").iterdir()}


def test_link_of_another_user_is_not_followed(user: User) -> None:
    link(user, "to-file", "kept/file", OTHER)
    link(user, "to-nothing", "kept/new", OTHER)
    link(user, "to-directory", "kept", OTHER)
    # The user's own link leads to the other's.
    link(user, "own-to-file", "to-file", user.uid)
    runs, before = user.runs(), kept(user)
    report = OUTPUTS[0]
    cases = [("to-file", output) for output in OUTPUTS]
    cases += [(path, report) for path in ("to-nothing", "to-directory/file", "own-to-file")]
    done = ran(user, *((*words, path, *after) for path, (words, after) in cases))
    wrong = []
    for (path, (words, _)), (code, err) in zip(cases, done, strict=True):
        if code != 2 or path not in err or f"is a symbolic link of the user {OTHER}" not in err:
            wrong.append((path, words, code, err))
    assert not wrong, wrong
    assert kept(user) == before == {"file": "kept"}
    assert (user.home / "to-file").is_symlink() and user.runs() == runs


def test_link_of_the_user_or_of_root_is_followed(user: User) -> None:
    link(user, "own", "kept/file", user.uid)
    link(user, "roots", "own-directory/new", 0)
    link(user, "own-directory", str(user.home / "kept"), user.uid)
    paths = zip(("own", "roots", "own-directory/third"), OUTPUTS, strict=True)
    done = ran(user, *((*words, path, *after) for path, (words, after) in paths))
    assert [code for code, _ in done] == [0, 0, 0], done
    assert sorted(kept(user)) == ["file", "new", "third"]
    assert all(len(text) > 100 for text in kept(user).values())
    assert (user.home / "own").is_symlink() and (user.home / "roots").is_symlink()


def test_link_in_the_place_of_a_new_file_is_neither_followed_nor_replaced(user: User) -> None:
    link(user, "out.html", "target", OTHER)
    ((code, err),) = ran(user, ("report", "-o", "out.html"))
    assert code == 2 and "out.html: exists; --force replaces it" in err
    assert not (user.home / "target").exists()
