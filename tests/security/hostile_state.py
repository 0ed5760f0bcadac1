"""Draw a state directory that another user could have prepared, and files beside it that must not change."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from drawn_runs import GOOD, IDS, Drawn, Owners
from planted_files import KINDS, change_owner, make_deep_tree, plant, set_aside, write
from run_records import one_task

from orchestrator.core.state.events import event_line
from orchestrator.store.runs.record import boot_id, first_line

DEEP = 3_000
FILES = [
    *(
        "run.json",
        "events.jsonl",
        "sample.json",
        "samples.jsonl",
        "result.json",
        "lock",
        "control",
        ".reserve",
    ),
    *(
        "logs/index",
        "logs/worker-0.log",
        "exceptions/worker-0.json",
        "exceptions/worker-0.txt",
        "stacks/worker-0.txt",
    ),
    *("agent.log", "supervisor.log", "checkpoints/checkpoint", "checkpoints/ckpt-1.index", ".result.json.1"),
]
DIRECTORIES = ["logs", "checkpoints", "scratch", "exceptions", "stacks", "tensorboard", "scratch/worker-0"]
PLACES = [*FILES, *DIRECTORIES]


class Drawing:
    """Makes the directory of one seed. The same seed and owners give the same directory."""

    def __init__(self, base: Path, seed: int, owners: Owners) -> None:
        self._random = random.Random(seed)
        self._owners = owners
        self._drawn = Drawn(base, seed)

    def make(self) -> Drawn:
        """Make runs, then change some of them."""
        self.make_runs()
        for change in self._random.choices(self._changes(), k=self._random.randint(1, 6)):
            # An earlier change may have made this one impossible.
            with contextlib.suppress(OSError):
                change()
        return self._drawn

    def make_runs(self) -> Drawn:
        """Make several runs, some below a --log-dir with a pointer to them."""
        drawn, draw = self._drawn, self._random
        drawn.make_directories()
        drawn.make_run(drawn.runs / GOOD, "ended", draw.random() < 0.3)
        for run_id in draw.sample(IDS, draw.randint(1, 4)):
            kind = draw.choice(["ended", "ended", "lost", "lost", "live"])
            place = draw.choice([drawn.runs, drawn.runs, drawn.elsewhere])
            drawn.make_run(place / run_id, kind, draw.random() < 0.3)
            if place == drawn.elsewhere:
                (drawn.runs / run_id).symlink_to(drawn.elsewhere / run_id)
        change_owner(drawn.base, self._owners.victim)
        return drawn

    def _changes(self) -> list[Callable[[], None]]:
        """Return the changes to choose from. A change that is listed several times is chosen more often."""
        return [
            *[self._replace_file] * 6,
            *[self._forge_record] * 3,
            *[self._plant_pointer] * 3,
            *[self._plant_name] * 2,
            *[self._plant_hidden] * 2,
            *[self._change_mode] * 2,
            *[self._swap] * 2,
            *[self._change_owner] * 2,
            self._forge_events,
            self._make_deep,
            self._replace_root,
        ]

    def _note(self, text: str) -> None:
        self._drawn.steps.append(text)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._drawn.base))

    def _a_run(self) -> Path:
        """Choose a run, but neither the good one nor a live one. FileNotFoundError if there are only such runs."""
        found = [
            path
            for place in (self._drawn.runs, self._drawn.elsewhere)
            for path in sorted(place.iterdir())
            if path.is_dir() and not path.is_symlink() and path.name != GOOD and path not in self._drawn.live
        ]
        if not found:
            raise FileNotFoundError("no run")
        return self._random.choice(found)

    def _target(self) -> str:
        """Choose where a planted link leads."""
        drawn, choice = self._drawn, self._random.choice
        # The upper levels: an earlier change may have moved a deep tree there.
        levels = ("*", "*/*", "*/*/*", "*/*/*/*")
        outside = sorted(path for level in levels for path in drawn.outside.glob(level))
        return choice(
            [
                str(choice(outside)),
                str(choice(outside)),
                str(drawn.outside / ".bashrc"),
                str(drawn.outside),
                str(drawn.outside / "new"),
                os.path.relpath(choice(outside), drawn.runs),
                "..",
                "/dev/null",
                str(drawn.runs / choice(IDS)),
            ]
        )

    def _plant(self, path: Path) -> None:
        kind = self._random.choice([*KINDS, "link", "link", "hard link"])
        self._note(f"{kind} at {self._name(path)}")
        plant(path, kind, self._target(), self._drawn.outside / ".bashrc", self._random)
        if os.path.lexists(path) and kind != "hard link":
            change_owner(path, self._owners.victim)

    def _replace_file(self) -> None:
        path = self._a_run() / self._random.choice(PLACES)
        set_aside(path)
        self._plant(path)

    def _forge_record(self) -> None:
        """Change fields of run.json, and sometimes of its copy in events.jsonl."""
        root, choice = self._a_run(), self._random.choice
        pid, ticks = choice([(1, 0), (os.getpid(), 0), (0, 0), *self._owners.processes * 2])
        changes = {
            "supervisor_pid": pid,
            "supervisor_start_ticks": ticks,
            "id": choice(IDS),
            "directory": choice([str(self._drawn.outside), "\u202e\x1b[2J"]),
            "checkpoint_dir": choice([str(self._drawn.outside / "precious"), "../../..", ""]),
            "boot_id": choice(["", "another", boot_id()]),
            "host": choice(["", "elsewhere"]),
            "name": choice(["", "../..", "-rf", "job", "x" * 5000]),
            "schema_version": choice([0, 1, 2, "x"]),
            "spec": choice([{}, {"grace_s": 1e308}, {"grace_s": -1}, []]),
        }
        chosen = self._random.sample(sorted(changes), self._random.randint(1, 3))
        self._note(f"forged {chosen} in {root.name}")
        document = self._drawn.record(IDS[0]).model_dump() | {"id": root.name}
        document |= {name: changes[name] for name in chosen}
        write(root / "run.json", json.dumps(document).encode())
        if self._random.random() < 0.5:
            line = {"type": "run_created", "schema_version": 1, "record": document}
            write(root / "events.jsonl", json.dumps(line).encode() + b"\n")

    def _forge_events(self) -> None:
        """Name tasks, processes and files that lead outside."""
        root = self._a_run()
        task = self._random.choice(
            ["../../../../outside/readable", "worker:0", "/etc/passwd", "\x1b[2J", "w$(x)"]
        )
        self._note(f"forged events with {task!r} in {root.name}")
        pid, ticks = self._random.choice([(1, 1), *self._owners.processes])
        happened = map(event_line, one_task(1.0, str(self._drawn.outside / "readable"), pid, ticks))
        # The model of an event refuses such a name.
        lines = [line.replace(b'"worker:0"', json.dumps(task).encode()) for line in happened]
        first = first_line(self._drawn.record(IDS[0])).replace(IDS[0].encode(), root.name.encode())
        write(root / "events.jsonl", b"".join([first, *lines]))

    def _plant_pointer(self) -> None:
        """Put an entry into the list of runs, or in place of one."""
        drawn = self._drawn
        path = drawn.runs / self._random.choice([*IDS, IDS[0]])
        if path in drawn.live or path.is_symlink():
            return
        set_aside(path)
        match self._random.choice(["any", "outside", "run of another user"]):
            case "outside":
                self._note(f"pointer {path.name} to a directory outside")
                path.symlink_to(drawn.outside / self._random.choice([IDS[0], "precious", "empty"]))
            case "run of another user" if self._owners.others:
                self._note(f"pointer {path.name} to a run of another user")
                root = drawn.elsewhere / f"of-another-user/{path.name}"
                drawn.make_run(root, self._random.choice(["ended", "lost"]), False)
                root.chmod(0o755)
                change_owner(root, self._random.choice(self._owners.others))
                drawn.foreign.append(root)
                path.symlink_to(root)
            case _:
                self._plant(path)
                return
        change_owner(path, self._owners.victim)

    def _plant_name(self) -> None:
        path = (
            self._drawn.state
            / "names"
            / self._random.choice(["job", "good", "other", "-rf", "\x1b[2J", "..x"])
        )
        self._plant_old(path)

    def _plant_hidden(self) -> None:
        """Plant what prune removes: directories of removed runs and of runs that were never published."""
        name = self._random.choice([f".{run_id}{end}" for run_id in IDS for end in (".new", ".gone")])
        self._plant_old(self._random.choice([self._drawn.runs, self._drawn.elsewhere]) / name)

    def _plant_old(self, path: Path) -> None:
        set_aside(path)
        self._plant(path)
        if os.path.lexists(path):
            os.utime(path, (0, 0), follow_symlinks=False)

    def _change_mode(self) -> None:
        path = self._a_run() / self._random.choice(["", *PLACES])
        mode = self._random.choice([0, 0o200, 0o400, 0o500, 0o600, 0o777, 0o1777])
        if path.exists() and not path.is_symlink():
            self._note(f"mode {mode:o} of {self._name(path)}")
            path.chmod(mode)

    def _swap(self) -> None:
        """Rename a run, or move a file from one to another."""
        one, other = self._a_run(), self._a_run()
        if self._random.random() < 0.5:
            self._note(f"{one.name} renamed")
            one.rename(one.with_name(self._random.choice([*IDS, "job", "..job", "x" * 200])))
            return
        name = self._random.choice(PLACES)
        self._note(f"{name} of {one.name} moved to {other.name}")
        (one / name).rename(other / self._random.choice([name, *FILES]))

    def _change_owner(self) -> None:
        """Give a run or a part of it to another user. A whole run of another user must not change."""
        if not self._owners.others:
            return
        uid, root = self._random.choice(self._owners.others), self._a_run()
        path = root if self._random.random() < 0.5 else root / self._random.choice(PLACES)
        self._note(f"{self._name(path)} belongs to {uid}")
        change_owner(path, uid)
        if path == root:
            self._drawn.foreign.append(root)

    def _make_deep(self) -> None:
        if self._random.random() < 0.5:
            return
        place = self._a_run() / self._random.choice(DIRECTORIES[:5])
        self._note(f"deep tree in {self._name(place)}")
        make_deep_tree(place, DEEP)

    def _replace_root(self) -> None:
        """Replace or change a directory that all runs share."""
        drawn, choice = self._drawn, self._random.choice
        path = drawn.base / choice(["state/orch", "state/orch/runs", "state/orch/names", "state"])
        drawn.roots_are_intact = False
        change = choice(["mode", "owner", "anything", "outside"])
        self._note(f"{change} of {self._name(path)}")
        if change == "mode":
            path.chmod(choice([0, 0o500, 0o770, 0o777, 0o1777]))
        elif change == "owner" and self._owners.others:
            os.chown(path, self._owners.others[0], self._owners.others[0])
        else:
            set_aside(path)
            if change == "outside":
                path.symlink_to(drawn.outside)
            else:
                self._plant(path)
