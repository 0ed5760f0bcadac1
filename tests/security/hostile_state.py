"""Draw a state directory that another user could have prepared, and files beside it that must not change."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from damage import ANY_FILE, make_deep_tree
from making import event, exited, run_result, task_end
from run_records import make_run, one_task

from orchestrator.core.state.events import RunEndedEvent
from orchestrator.store.runs.record import boot_id
from orchestrator.store.runs.writer import RunStore

IDS = [f"job-2026010{day}T000000Z-{day:04x}" for day in range(1, 7)]
# A run that no draw changes.
GOOD = "good-20260101T000000Z-900d"
FILES = [
    *("run.json", "events.jsonl", "sample.json", "samples.jsonl", "result.json", ".result.json.1"),
    *("lock", "control", ".reserve", "logs/index", "logs/worker-0.log", "agent.log", "supervisor.log"),
    *("exceptions/worker-0.json", "exceptions/worker-0.txt", "stacks/worker-0.txt"),
    *("checkpoints/checkpoint", "checkpoints/ckpt-1.index"),
]
DIRECTORIES = ["logs", "checkpoints", "scratch", "exceptions", "stacks", "tensorboard", "scratch/worker-0"]
PLACES = [*FILES, *DIRECTORIES]
_LONG_LINE_BYTES = 3_000_000


@dataclass(frozen=True)
class Owners:
    """The user who runs orch, other users (empty without root), and processes as (pid, start time in ticks)."""

    victim: int
    others: tuple[int, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()


class Drawing:
    """The directory of one seed; the same seed and owners give the same directory. XDG_STATE_HOME is `base`/state.

    `foreign` are trees of other users, `live` the directories of live runs: neither may change. `steps` describe what
    was drawn.
    """

    def __init__(self, base: Path, seed: int, owners: Owners) -> None:
        self.base, self.seed = base, seed
        self.state, self.outside, self.home = base / "state/orch", base / "outside", base / "home"
        self.runs, self.names = self.state / "runs", self.state / "names"
        # The directory of the runs with a --log-dir.
        self.elsewhere = base / "elsewhere"
        self.foreign: list[Path] = []
        self.live: list[Path] = []
        self.steps: list[str] = []
        self.roots_are_intact = True
        self._stores = contextlib.ExitStack()
        self._random = random.Random(seed)
        self._owners = owners

    def close(self) -> None:
        self._stores.close()

    def make(self) -> Drawing:
        """Make runs, then change some of them."""
        self.make_runs()
        for change in self._random.choices([*_CHANGES], [*_CHANGES.values()], k=self._random.randint(1, 6)):
            # An earlier change may have made this one impossible.
            with contextlib.suppress(OSError, ValueError, LookupError, RecursionError):
                change(self)
        return self

    def make_runs(self) -> Drawing:
        """Make several runs, some below a --log-dir with a pointer to them."""
        self.base.mkdir(mode=0o755)
        for directory in (self.elsewhere, self.home):
            directory.mkdir()
        self._make_outside()
        self._make_run(GOOD, "ended")
        self.names.mkdir(mode=0o700)
        for run_id in self._random.sample(IDS, self._random.randint(1, 4)):
            kind = self._random.choice(["ended", "ended", "lost", "lost", "live"])
            self._make_run(run_id, kind, self._random.choice([None, None, self.elsewhere]))
        change_owner(self.base, self._owners.victim)
        return self

    def _make_outside(self) -> None:
        """Files that must not change. Some directories look like those of runs, but have no record."""
        for name in ("precious/logs", "precious/scratch", f"{IDS[0]}/logs", f"{IDS[0]}/scratch", "empty"):
            (self.outside / name).mkdir(parents=True)
        files = [".bashrc", "readable", "old", "precious/file", "precious/lock", "precious/scratch/file"]
        for name in (*files, f"{IDS[0]}/scratch/file", f"{IDS[0]}/result.json"):
            (self.outside / name).write_text("precious")
        os.utime(self.outside / "old", (0, 0))

    def _make_run(self, run_id: str, kind: str, log_dir: Path | None = None) -> RunStore:
        """Make an `ended`, `lost` or `live` run."""
        store = make_run(run_id.partition("-")[0], str(self.home), log_dir=log_dir, run_id=run_id)
        for each in one_task(1.0):
            store.append(each)
        if kind == "ended":
            store.append(exited(0, 3))
            store.append(event(RunEndedEvent, outcome="failed", exit_code=3))
            store.write_result(run_result("failed", task_end(0, "failed", 3), run_id=run_id, exit_code=3))
        store.paths.task_log("worker:0").write_text("a line\n" * 3)
        (store.paths.scratch / "left").write_text("x")
        if self._random.random() < 0.3:
            (store.paths.checkpoints / "ckpt-1").write_text("x")
        if kind == "live":
            self._stores.enter_context(contextlib.closing(store))
            self.live.append(store.paths.root)
        else:
            store.close()
        return store

    def _note(self, text: str, path: Path) -> None:
        self.steps.append(f"{text} {path.relative_to(self.base)}")

    def _a_run(self) -> Path:
        """Choose a run, but neither the good one nor a live one. LookupError if there are only such runs."""
        return self._random.choice(
            [
                path
                for place in (self.runs, self.elsewhere)
                for path in sorted(place.iterdir())
                if path.is_dir() and not path.is_symlink() and path.name != GOOD and path not in self.live
            ]
        )

    def _plant(self, path: Path) -> None:
        """Put a file, directory or link of any kind at a path that is free."""
        outside = [path for level in ("*", "*/*", "*/*/*") for path in sorted(self.outside.glob(level))]
        target = self._random.choice(
            [
                *map(str, self._random.choices(outside, k=2)),
                *map(str, (self.outside, self.outside / "new", self.runs / self._random.choice(IDS))),
                *(os.path.relpath(outside[0], self.runs), "..", "/dev/null"),
            ]
        )
        kinds: dict[str, Callable[[Path], object]] = {
            **{name: ANY_FILE[name] for name in _PLANTED},
            "link outside": lambda path: path.symlink_to(target),
            "hard link": lambda path: path.hardlink_to(self.outside / ".bashrc"),
            "long line": lambda path: path.write_bytes(b'{"at":' + b"x" * _LONG_LINE_BYTES),
        }
        kind = self._random.choice([*kinds, "link outside", "link outside", "hard link"])
        self._note(f"{kind} at", path)
        kinds[kind](path)
        if os.path.lexists(path) and kind != "hard link":
            change_owner(path, self._owners.victim)

    def _replace_file(self) -> None:
        path = self._a_run() / self._random.choice(PLACES)
        set_aside(path)
        self._plant(path)

    def _forge_record(self) -> None:
        """Change fields of run.json."""
        root, choice = self._a_run(), self._random.choice
        pid, ticks = choice([(1, 0), (os.getpid(), 0), (0, 0), *self._owners.processes * 2])
        changes = {
            "supervisor_pid": pid,
            "supervisor_start_ticks": ticks,
            "id": choice(IDS),
            "directory": choice([str(self.outside), "\u202e\x1b[2J"]),
            "checkpoint_dir": choice([str(self.outside / "precious"), "../../..", ""]),
            "boot_id": choice(["", "another", boot_id()]),
            "host": choice(["", "elsewhere"]),
            "name": choice(["", "../..", "-rf", "job", "x" * 5000]),
            "schema_version": choice([0, 1, 2, "x"]),
            "spec": choice([{}, {"grace_s": 1e308}, {"grace_s": -1}, []]),
        }
        chosen = self._random.sample(sorted(changes), self._random.randint(1, 3))
        self._note(f"forged {chosen} in", root)
        document = json.loads((root / "run.json").read_bytes()) | {name: changes[name] for name in chosen}
        write(root / "run.json", json.dumps(document).encode())
        if self._random.random() < 0.5:
            line = {"type": "run_created", "schema_version": 1, "record": document}
            write(root / "events.jsonl", json.dumps(line).encode() + b"\n")

    def _plant_pointer(self) -> None:
        """Put an entry into the list of runs, or in place of one."""
        path = self.runs / self._random.choice([*IDS, IDS[0]])
        if path in self.live or path.is_symlink():
            return
        set_aside(path)
        match self._random.choice(["any", "outside", "run of another user"]):
            case "outside":
                self._note("pointer to a directory outside at", path)
                path.symlink_to(self.outside / self._random.choice([IDS[0], "precious", "empty"]))
            case "run of another user" if self._owners.others:
                self._note("pointer to a run of another user at", path)
                kind = self._random.choice(["ended", "lost"])
                root = self._make_run(path.name, kind, self.elsewhere / "of-another-user").paths.root
                root.chmod(0o755)
                change_owner(root, self._random.choice(self._owners.others))
                self.foreign.append(root)
            case _:
                self._plant(path)
                return
        change_owner(path, self._owners.victim)

    def _plant_old(self) -> None:
        """Plant what `prune` removes: names, directories of removed runs, and of runs that were never published."""
        hidden = self._random.choice([f".{run_id}{end}" for run_id in IDS for end in (".new", ".gone")])
        name = self._random.choice(["job", "job", "job", "-rf", "\x1b[2J", "..x"])
        path = self._random.choice([self.names / name, self.runs / hidden, self.elsewhere / hidden])
        set_aside(path)
        self._plant(path)
        if os.path.lexists(path):
            os.utime(path, (0, 0), follow_symlinks=False)

    def _change_mode(self) -> None:
        path = self._a_run() / self._random.choice(["", *PLACES])
        mode = self._random.choice([0, 0o200, 0o400, 0o500, 0o600, 0o777, 0o1777])
        if path.exists() and not path.is_symlink():
            self._note(f"mode {mode:o} of", path)
            path.chmod(mode)

    def _swap(self) -> None:
        """Rename a run, or move a file from one to another."""
        one, other = self._a_run(), self._a_run()
        name = self._random.choice(PLACES)
        if self._random.random() < 0.5:
            self._note("renamed", one)
            one.rename(one.with_name(self._random.choice([*IDS, "job", "..job", "x" * 200])))
        else:
            self._note(f"moved to {other.name}:", one / name)
            (one / name).rename(other / self._random.choice([name, *FILES]))

    def _change_owner(self) -> None:
        """Give a run or a part of it to another user. A whole run of another user must not change."""
        uid, root = self._random.choice(self._owners.others), self._a_run()
        path = root if self._random.random() < 0.5 else root / self._random.choice(PLACES)
        self._note(f"owner {uid} of", path)
        change_owner(path, uid)
        if path == root:
            self.foreign.append(root)

    def _make_deep(self) -> None:
        place = self._a_run() / self._random.choice(DIRECTORIES[:5])
        self._note("deep tree in", place)
        make_deep_tree(place / "deep")

    def _replace_root(self) -> None:
        """Replace or change a directory that all runs share."""
        path = self._random.choice([self.state, self.runs, self.names, self.state.parent])
        self.roots_are_intact = False
        change = self._random.choice(["mode", "owner", "anything", "outside"])
        self._note(f"{change} of", path)
        if change == "mode":
            path.chmod(self._random.choice([0, 0o500, 0o770, 0o777, 0o1777]))
        elif change == "owner" and self._owners.others:
            os.chown(path, self._owners.others[0], self._owners.others[0])
        else:
            set_aside(path)
            path.symlink_to(self.outside) if change == "outside" else self._plant(path)


# The changes, and how often each is chosen.
_CHANGES = {
    Drawing._replace_file: 12,
    Drawing._plant_old: 8,
    Drawing._forge_record: 6,
    Drawing._plant_pointer: 6,
    Drawing._change_mode: 4,
    Drawing._swap: 4,
    Drawing._change_owner: 4,
    Drawing._replace_root: 2,
    Drawing._make_deep: 2,
}
_PLANTED = ("missing", "garbage", "deep", "a directory", "a pipe", "a link to itself", "a socket", "sparse")


def write(path: Path, data: bytes) -> None:
    """Write a new file, without following what an earlier change put there."""
    set_aside(path)
    path.write_bytes(data)


def set_aside(path: Path) -> None:
    """Remove a file, rename a directory."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        path.rename(path.with_name(f".{path.name}-before"))


def change_owner(path: Path, uid: int) -> None:
    """Give a tree to a user, and follow no link. Only root can. OSError if it does not exist."""
    path.lstat()
    if os.geteuid() == 0:
        # os.walk() fails for a deep tree.
        subprocess.run(["chown", "-hR", f"{uid}:{uid}", "--", str(path)], check=True)
