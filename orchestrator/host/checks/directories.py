"""The directories that a run writes to: the state directory, --log-dir and --checkpoint-dir."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.errors import NotOurs, UsageError
from orchestrator.core.text.counted import counted
from orchestrator.host.checks.context import Context
from orchestrator.host.checks.finding import Finding, note, ok, problem, warning
from orchestrator.host.directories import filesystem_of, nearest_existing, write_error
from orchestrator.host.kernel_files import read_number, read_text
from orchestrator.store.open_files import umask_advice
from orchestrator.store.ownership import follow_own_links, refuse_others, refuse_parent_of_others
from orchestrator.store.runs.paths import names_dir, runs_dir

_OTHERS = stat.S_IWOTH
_READ_BY_OTHERS = 0o055
_ROOT = 0
# The contents of uid_map in a user namespace that contains every user.
_ALL_USERS = ["0", "0", "4294967295"]
_GIB, _MIB = 1 << 30, 1 << 20
_LITTLE_DISK, _TOO_LITTLE_DISK = _GIB, 50 * _MIB
_FEW_FILES = 1000
_ELSEWHERE = "set XDG_STATE_HOME to a directory of yours on a local disk"
_REMOTE = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
]


def check_output_directories(context: Context) -> Iterator[Finding]:
    for option, directory in _chosen(context):
        if (error := write_error(directory)) is not None:
            yield problem("settings", f"{option}: {error}", fix="name a directory that can be written")


def check_shared_directories(context: Context) -> Iterator[Finding]:
    """Find the directories of --log-dir and --checkpoint-dir that other users can replace or add files to.

    A warning only: the user chose them, and in a container all users may be the same person.
    """
    for option, directory in _chosen(context):
        # A run's log directory has a new name. Everyone can guess the names in the checkpoint directory.
        written = directory / "a-run" if option == "--log-dir" else directory
        if (risk := next(_risks(context, written), None)) is not None:
            yield warning("settings", f"{option}: {risk}", fix="name a directory of your own")


def _chosen(context: Context) -> list[tuple[str, Path]]:
    spec = context.spec
    # Tasks on other hosts use the checkpoint directory there. The preflight asks these hosts.
    checkpoints = None if spec.is_remote else spec.checkpoint_dir
    options = {"--log-dir": spec.log_dir, "--checkpoint-dir": checkpoints}
    return [(option, directory) for option, directory in options.items() if directory is not None]


def _risks(context: Context, directory: Path) -> Iterator[str]:
    trusted = {context.user, _ROOT, *_unmapped_users(context)}
    for place in (directory, *directory.parents):
        try:
            found, link = place.stat(), place.lstat()
        except OSError:
            continue
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
            yield f"{place} is a symbolic link of the user {link.st_uid}, who can change it"
        if found.st_uid not in trusted:
            yield f"{place} belongs to the user {found.st_uid}, who can replace its contents"
        # With the sticky bit (/tmp) other users cannot replace a file, but can create one that does not exist yet.
        is_protected = found.st_mode & stat.S_ISVTX and place != directory
        if found.st_mode & _OTHERS and not is_protected:
            mode = stat.S_IMODE(found.st_mode)
            yield f"all users of this machine may write in {place} (mode {mode:o}), and add or replace files of yours"


def _unmapped_users(context: Context) -> set[int]:
    """The id that stands for all users outside this user namespace, root among them; empty if it contains them all."""
    if read_text(context.proc / "self/uid_map").split() == _ALL_USERS:
        return set()
    overflow = read_number(context.proc / "sys/kernel/overflowuid")
    return set() if overflow is None else {overflow}


def check_state_writable(context: Context) -> Iterator[Finding]:
    if context.state is None:
        text, _, fix = (context.state_error or "").rpartition("; ")
        yield problem("state", text, "HOME", fix=fix)
    elif (dangling := _link_error(context.state)) is not None:
        yield problem("state", dangling, fix="create that directory, or remove the link")
    elif (error := write_error(runs_dir())) is not None:
        yield problem("state", f"runs cannot be kept: {error}", fix=_ELSEWHERE)


def _link_error(state: Path) -> str | None:
    """Say where a link in the place of the state directory leads, if that does not exist."""
    try:
        follow_own_links(state)
    except UsageError as error:
        return None if isinstance(error, NotOurs) else str(error).partition(";")[0]
    except OSError:
        return None
    return None


def _existing_state(context: Context) -> Path | None:
    """The state directory or the nearest parent that exists; None if check_state_writable reports a problem."""
    if context.state is None or write_error(context.state) is not None:
        return None
    return nearest_existing(context.state)


def check_state_contents(context: Context) -> Iterator[Finding]:
    """Try what a run needs besides creating a file."""
    if (existing := _existing_state(context)) is None:
        return
    for what, error in context.content_errors(existing).items():
        text = f"{what} do not work here, and every run needs them: {error}"
        yield problem("state", text, str(context.state), fix=umask_advice() or _ELSEWHERE)
    filesystem = filesystem_of(existing.resolve(), read_text(context.proc / "self/mountinfo"))
    if filesystem in _REMOTE:
        text = f"a network file system ({filesystem}): other machines' runs seem lost here, and logs are shown late"
        yield warning("state", text, str(context.state), fix=_ELSEWHERE)


def check_state_owner(context: Context) -> Iterator[Finding]:
    """Find a state directory that others own or can write to: orch creates it with mode 0700 and trusts its files."""
    if (state := context.state) is None:
        return
    try:
        is_there = state.is_dir()
    except OSError:
        return  # check_state_writable reports the reason
    if not is_there:
        if write_error(state) is None and _link_error(state) is None:
            try:
                existing = nearest_existing(state)
                refuse_parent_of_others(existing.stat(), existing)
                yield ok("state", "will be created, readable by you alone", str(state))
            except NotOurs as error:
                yield problem("state", f"{error.path}: {error.reason}", fix=error.remedy)
        return
    is_private = True
    for directory in (state, runs_dir(), names_dir()):
        try:
            found = follow_own_links(directory).stat()
            refuse_others(found, directory)
        except NotOurs as error:
            is_private = False
            yield problem("state", f"{error.path}: {error.reason}", fix=error.remedy)
            continue
        except (OSError, UsageError):
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & _READ_BY_OTHERS and directory == state:
            is_private = False
            text = f"others can see the names of your runs (mode {mode:o}), but not their files"
            yield note("state", text, str(state), fix=f"chmod 700 {state}")
    if is_private:
        yield ok("state", "only you can read and write it", str(state))
    if state.is_symlink():
        yield note("state", f"is a symbolic link to {state.resolve()}", str(state))


def check_disk(context: Context) -> Iterator[Finding]:
    if (existing := _existing_state(context)) is None:
        return
    room = context.statvfs(existing)
    size, where = room.f_bavail * room.f_frsize, str(context.state)
    free = f"{size / _GIB:.1f} GiB free for logs and checkpoints"
    if size < _LITTLE_DISK:
        report = problem if size < _TOO_LITTLE_DISK else warning
        text = f"{size / _MIB:.0f} MiB free for logs and checkpoints"
        yield report("disk", text, where, fix="delete files, or --log-dir on another disk")
    # Some file systems do not count files and report 0 of 0.
    elif room.f_files and room.f_favail < _FEW_FILES:
        text = f"{free}, but only {counted(room.f_favail, 'file')} can be created"
        yield warning("disk", text, where, fix="delete files (df -i), or --log-dir on another disk")
    else:
        yield ok("disk", free, where)
