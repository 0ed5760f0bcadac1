"""A state directory that other users can write to is refused; for other directories there is a warning."""

from __future__ import annotations

import itertools
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from making import command, job
from orch_command import Orch
from users import ORDINARY

from orchestrator import Cluster
from orchestrator.core.errors import UsageError
from orchestrator.host.checks import refuse_problems, warnings_of_up
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.directories import check_state_owner

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change an owner")
SPEC = job(workers=1, command=command(serves=False))


def check_state() -> None:
    refuse_problems(Context(SPEC, {}), [check_state_owner])


def given_away(directory: Path) -> None:
    os.chown(directory, ORDINARY, ORDINARY)


def writable_by_group(directory: Path) -> None:
    directory.chmod(0o770)


def writable_by_all(directory: Path) -> None:
    directory.chmod(0o1777)


def writable_by_all_without_sticky_bit(directory: Path) -> None:
    directory.chmod(0o777)


def link_of_another_user(directory: Path) -> None:
    elsewhere = directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(elsewhere)
    os.chown(directory, ORDINARY, ORDINARY, follow_symlinks=False)


def is_possible(change: Callable[[Path], object]) -> bool:
    """Whether this user can make the change: only root can change an owner."""
    return os.geteuid() == 0 or change not in (given_away, link_of_another_user)


def places_below(directory: Path) -> list[Path]:
    """New directories, each for one case."""
    return [directory / str(number) for number in range(100)]


def test_state_directory_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("orch", "orch/runs", "orch/names")
    foreign, open_to_all = f"belongs to the user {ORDINARY}", "others may write here"
    changes = (
        (given_away, foreign),
        (link_of_another_user, foreign),
        (writable_by_group, open_to_all),
        (writable_by_all, open_to_all),
    )
    wrong = []
    possible = [row for row in changes if is_possible(row[0])]
    cases = zip(places_below(tmp_path), itertools.product(names, possible), strict=False)
    for state, (name, (change, text)) in cases:
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        for each in names:
            (state / each).mkdir(mode=0o700, parents=True)
        check_state()
        change(state / name)
        with pytest.raises(UsageError) as caught:
            check_state()
        if f"{state / name}: {text}" not in str(caught.value):
            wrong.append((name, change, str(caught.value)))
    assert not wrong, wrong


def test_link_of_the_user_is_accepted(state_dir: Path) -> None:
    (state_dir / "elsewhere").mkdir(mode=0o700, parents=True)
    (state_dir / "orch").symlink_to(state_dir / "elsewhere")
    check_state()


def test_state_of_a_wide_umask_needs_one_remedy(orch: Orch) -> None:
    """It was copied by a program that uses the umask 002. Until then, nothing is written."""
    assert orch("up", "--", "true").code == 0
    state, runs = orch.state / "orch", orch.run_dirs()
    subprocess.run(["chmod", "-R", "g+w", str(state)], check=True)
    for words in (("ls", "--all"), ("up", "--", "true"), ("prune", "--all", "--keep", "0"), ("doctor", "-q")):
        done = orch.within(*words)
        assert done.code in (1, 2)
        assert f"chmod -R go-w {state};" in " ".join((done.out + done.err).split())
    assert orch.run_dirs() == runs
    subprocess.run(["chmod", "-R", "go-w", str(state)], check=True)
    for words in (("ls", "--all"), ("up", "--", "true"), ("prune", "--all", "--keep", "0")):
        done = orch(*words)
        assert (done.code, "skipped" in done.err) == (0, False)
    assert orch.run_dirs() == []


@needs_root
def test_root_makes_no_state_directory_below_that_of_another_user(orch: Orch) -> None:
    """`sudo -E orch up` with the HOME of a user who has no state directory yet."""
    home = orch.directory / "home"
    home.mkdir()
    given_away(home)
    env: dict[str, str | None] = {"XDG_STATE_HOME": str(home / ".local/state")}
    for words in (("up", "--", "true"), ("doctor", "-q")):
        done = orch.within(*words, env=env)
        said = " ".join((done.out + done.err).split())
        assert done.code in (1, 2)
        assert f"{home}: belongs to the user {ORDINARY}" in said
        assert "--as-root-anyway" in said
    assert list(home.iterdir()) == []
    for words in (("up", "--as-root-anyway", "--", "true"), ("ls", "--as-root-anyway", "--all")):
        assert orch.within(*words, env=env).code == 0


@needs_root
@pytest.mark.parametrize("option", ["log_dir", "checkpoint_dir"])
def test_directory_that_another_user_makes_after_the_checks_is_refused(tmp_path: Path, option: str) -> None:
    for place, planted in zip(places_below(tmp_path), ("new", "new/below", "a link"), strict=False):
        place.mkdir()
        writable_by_all(place)
        options = {option: str(place / "new/below"), "workers": 1, "command": ["true"], "directory": tmp_path}
        cluster = Cluster(**options)  # type: ignore[arg-type]
        if planted == "a link":
            (place / "new").symlink_to("elsewhere")
        else:
            (place / planted).mkdir(parents=True)
        for path in place.rglob("*"):
            os.chown(path, ORDINARY, ORDINARY, follow_symlinks=False)
        refused = pytest.raises(UsageError, match=f"{place / 'new'}: belongs to the user {ORDINARY}")
        with warnings.catch_warnings(action="ignore"), refused, cluster:
            pass
        # The user may use the directory on purpose, but was warned then.
        if planted == "new/below":
            with pytest.warns(RuntimeWarning, match="belongs to the user"), Cluster(**options) as run:  # type: ignore[arg-type]
                run.wait()


def test_warning_about_a_chosen_directory_of_others(tmp_path: Path) -> None:
    foreign, open_to_all = f"belongs to the user {ORDINARY}", "all users of this machine may write in"
    rows: list[tuple[str, Callable[[Path], object], str, str | None]] = [
        ("log_dir", given_away, "", foreign),
        ("log_dir", given_away, "a/b", foreign),
        ("checkpoint_dir", given_away, "", foreign),
        ("checkpoint_dir", link_of_another_user, "", "is a symbolic link of the user"),
        ("checkpoint_dir", writable_by_all, "", open_to_all),
        # With the sticky bit others cannot replace a file, and a run's name is not known before.
        ("checkpoint_dir", writable_by_all, "a", None),
        ("log_dir", writable_by_all, "", None),
        ("log_dir", writable_by_all_without_sticky_bit, "", open_to_all),
        ("checkpoint_dir", writable_by_all_without_sticky_bit, "a", open_to_all),
        ("log_dir", writable_by_group, "", None),
        ("checkpoint_dir", lambda place: None, "", None),
    ]
    wrong = []
    possible = [row for row in rows if is_possible(row[1])]
    for place, (option, change, below, text) in zip(places_below(tmp_path), possible, strict=False):
        place.mkdir(mode=0o700)
        change(place)
        found = warnings_of_up(SPEC.model_copy(update={option: place / below}))
        start = "--log-dir: " if option == "log_dir" else "--checkpoint-dir: "
        shown = [text is not None and text in each and str(place) in each for each in found]
        if shown != [True] * (text is not None) or not all(each.startswith(start) for each in found):
            wrong.append((option, change, below, found))
    assert not wrong, wrong


@pytest.mark.slow
def test_up_shows_the_warning_and_starts(orch: Orch) -> None:
    place = orch.directory / "place"
    place.mkdir()
    writable_by_all(place)
    words = ("--checkpoint-dir", str(place), "--", "true")
    done = orch("up", *words)
    assert done.code == 0
    assert f"--checkpoint-dir: all users of this machine may write in {place} (mode 1777)" in done.err
    assert orch("up", "-q", *words).err == ""
