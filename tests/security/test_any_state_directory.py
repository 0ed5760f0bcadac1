"""No verb changes a file outside a hostile state directory, signals another process, hangs, or fails without a reason.

Each draw is one seed. HOSTILE_STATE_SEED repeats it: `HOSTILE_STATE_SEED=17 scripts/test FILE -k ordinary`.
"""

from __future__ import annotations

import codecs
import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import random
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting_as import become
from canaries import Process, processes_of, snapshot
from drawn_runs import GOOD, IDS, Drawn, Owners
from hostile_state import Drawing
from orch_within import run_within
from run_records import make_run
from users import ORDINARY

from orchestrator.client.launch import load_request, make_room
from orchestrator.core.errors import OrchError
from orchestrator.store.runs.locks import lock_name

VICTIM, OTHER = ORDINARY + 20, ORDINARY + 21
# Draws as each of the two users: in the gate always the same, in the longer proof 10 new blocks (10,000 in all).
DRAWS, BLOCK, BLOCKS = 8, 500, 10
# Seconds for all verbs of one draw. Only a verb that hangs exceeds it, also on a busy machine.
HANGS_S = 60
VERBS: list[tuple[str, ...]] = [
    ("ls", "--all", "--json"),
    ("ls",),
    ("status",),
    ("status", "ID", "--json"),
    ("logs", "ID"),
    ("logs", "ID", "--raw"),
    ("wait", "ID", "--timeout", "0.01"),
    ("down", "ID"),
    ("down", "ID", "--force"),
    ("stacks", "ID"),
    ("kill", "ID", "0"),
    ("prune", "--all", "--keep", "0", "--dry-run"),
    ("prune", "--all", "--keep", "0"),
    ("prune", "--all", "--keep", "0", "--checkpoints"),
    ("up", "--dry-run", "--", "true"),
    ("make room",),
    ("make a run",),
    ("make a run elsewhere",),
]
CODES = {0, 1, 2, 3, 4, 124, 125}


def verbs_of(drawn: Drawn) -> list[tuple[str, ...]]:
    chosen = random.Random(drawn.seed).sample(VERBS, 6)
    live = {path.name for path in drawn.live}
    ids = [run_id for run_id in (*IDS, GOOD) if run_id not in live]
    picked = random.Random(drawn.seed + 1).choice(ids)
    return [tuple(picked if word == "ID" else word for word in words) for words in chosen]


def environ_of(drawn: Drawn) -> dict[str, str]:
    return {**os.environ, "HOME": str(drawn.base / "home"), "XDG_STATE_HOME": str(drawn.base / "state")}


def faults_of_verbs(drawn: Drawn, traces: Path) -> list[str]:
    """Run the verbs in this process and return what they did wrong."""
    found = []
    home = drawn.base / "home"
    has_good = drawn.roots_are_intact
    for words in verbs_of(drawn):
        code, out, err = outcome(words, drawn, home, environ_of(drawn), traces)
        what = f"{' '.join(words)} exited with {code}: {err[-800:]}"
        if code not in CODES or "Traceback" in err or "a fault in orch itself" in err:
            found.append(what)
        elif code in (2, 3, 4, 125) and not err.strip():
            found.append(f"{what} (no reason)")
        shown = err if "--raw" in words else out + err
        if {"\x1b", "\x07"} & set(shown):
            found.append(f"{' '.join(words)} printed a control character")
        if words[:2] == ("ls", "--all") and has_good:
            names = [run["id"] for run in json.loads(out or '{"runs": []}')["runs"]]
            if code != 0 or GOOD not in names:
                found.append(f"{what} (without the undamaged run)")
        if words[0] == "prune" and "--dry-run" not in words:
            if (
                has_good
                and (drawn.runs / GOOD).exists()
                and not (drawn.runs / GOOD / "checkpoints/ckpt-1").exists()
            ):
                found.append(f"{what} (left the undamaged run)")
            has_good = False
    return found


def outcome(
    words: tuple[str, ...], drawn: Drawn, home: Path, environ: dict[str, str], traces: Path
) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a verb or of a step of `up`."""
    if not words[0].startswith("make"):
        code = run_within(words, home, environ, traces)
        out, err = (traces.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        return code, out, err
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = environ["XDG_STATE_HOME"]
    try:
        if words[0] == "make room":
            make_room(load_request(None, ["true"], home, {}))
        else:
            lock = lock_name("job")
            make_run(log_dir=drawn.elsewhere if "elsewhere" in words[0] else None, name_lock=lock).close()
    except (OrchError, OSError) as error:
        return 2, "", str(error)
    finally:
        os.environ["XDG_STATE_HOME"] = before
    return 0, "", ""


def try_draw(base: Path, seed: int, owners: Owners, processes: list[Process]) -> list[str]:
    """Draw, run the verbs in a child process as the user, and return all faults."""
    drawn = Drawing(base, seed, owners).make()
    places = [drawn.outside, *drawn.foreign, *drawn.live]
    before = {place: snapshot(place) for place in places if place.exists()}
    roots = [
        Path(os.path.realpath(root))
        for root in (drawn.state.parent, drawn.state, drawn.runs, drawn.state / "names")
    ]
    traces = base / "home/trace"
    pid = os.fork()
    if not pid:
        _run_and_exit(drawn, owners.victim, traces)
    _, status = os.waitpid(pid, 0)
    for fd in drawn.held:
        os.close(fd)
    found = []
    if os.WIFSIGNALED(status):
        how = "hangs" if os.WTERMSIG(status) == signal.SIGALRM else f"killed by {os.WTERMSIG(status)}"
        found.append(f"{how}: {traces.with_suffix('.stack').read_text()[:3000]}")
    elif traces.with_suffix(".json").exists():
        found += json.loads(traces.with_suffix(".json").read_text())
    else:
        found.append(f"the process of the verbs exited with {status}")
    for place, was in before.items():
        now = snapshot(place) if place.exists() else {}
        names = {*was, *now}
        if place == drawn.outside and not drawn.roots_are_intact:
            # The user's own link may lead the state directory here: new files there are not a fault.
            led_to = {str(root.relative_to(place)) for root in roots if root.is_relative_to(place)}
            names = was.keys() - {".", *led_to}
        different = sorted(name for name in names if was.get(name) != now.get(name))
        if different:
            found.append(f"{place.relative_to(base)} changed: {different[:8]}")
    found += [
        f"process {n} got {process.signals()}" for n, process in enumerate(processes) if process.signals()
    ]
    return [f"{fault}\n  drawn: {drawn.steps}" for fault in found]


def _run_and_exit(drawn: Drawn, uid: int, traces: Path) -> None:
    """The child process of a draw."""
    try:
        if uid != os.geteuid():
            become(uid)
        stack = traces.with_suffix(".stack").open("w")
        faulthandler.dump_traceback_later(HANGS_S - 1, file=stack)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)
        try:
            found = faults_of_verbs(drawn, traces)
        except BaseException as error:
            found = [f"{type(error).__name__}: {error}\n{traceback.format_exc()[-2000:]}"]
        traces.with_suffix(".json").write_text(json.dumps(found))
    finally:
        os._exit(0)


def remove(base: Path) -> None:
    """shutil.rmtree() fails for deep trees and closed directories."""
    subprocess.run(["chmod", "-R", "u+rwX", str(base)], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", str(base)], check=True)


def users_of(kind: str) -> tuple[int, tuple[int, ...]]:
    """The user of orch, and the other users of the draws."""
    if os.geteuid() != 0:
        return os.geteuid(), ()
    return (VICTIM, (OTHER, 0)) if kind == "ordinary" else (0, (VICTIM, OTHER))


def seeds_of(request: pytest.FixtureRequest, block: int) -> list[int]:
    if "HOSTILE_STATE_SEED" in os.environ:
        return [int(os.environ["HOSTILE_STATE_SEED"])]
    if request.config.getoption("markexpr") == "not slow":
        return list(range(DRAWS))
    start = random.SystemRandom().randrange(1 << 32)
    return list(range(start, start + BLOCK))


@pytest.fixture(autouse=True)
def imported(place: Path) -> None:
    import_all(place)


def import_all(place: Path) -> None:
    """Import what the verbs import: another user may have no access to the Python of the tests."""
    for name in ("cli", "client", "host", "request", "store"):
        package = importlib.import_module(f"orchestrator.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    time.strptime("2026", "%Y")
    for encoding in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
        codecs.lookup(encoding)  # json.loads() may need each of them
    base = place / "imported"
    base.mkdir()
    drawn = Drawing(base, 0, Owners(os.geteuid(), (), ())).make_runs()
    for words in VERBS:
        given = tuple(GOOD if word == "ID" else word for word in words)
        outcome(given, drawn, base / "home", environ_of(drawn), base / "home/trace")
    for fd in drawn.held:
        os.close(fd)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can enter; in memory, where deep trees are made and removed quickly."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="orch-hostile-", dir=where))
    directory.chmod(0o755)
    yield directory
    remove(directory)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["ordinary", "root"])
@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BLOCKS))])
def test_any_state_directory_leaves_everything_else_unchanged(
    place: Path, request: pytest.FixtureRequest, kind: str, block: int
) -> None:
    if kind == "root" and os.geteuid() != 0:
        pytest.skip("needs root to be root, and to give files to other users")
    victim, others = users_of(kind)
    faults: dict[int, list[str]] = {}
    with contextlib.ExitStack() as stack:
        processes: list[Process] = []
        for seed in seeds_of(request, block):
            if not processes or any(process.signals() for process in processes):
                processes = stack.enter_context(processes_of((victim, *others[:1]), IDS[0]))
            base = place / str(seed)
            base.mkdir()
            found = try_draw(
                base,
                seed,
                Owners(victim, others, tuple(process.identity for process in processes)),
                processes,
            )
            remove(base)
            if found:
                faults[seed] = found
    assert not faults, "\n".join(
        f"seed {seed}: {fault}" for seed in list(faults)[:10] for fault in faults[seed]
    )
