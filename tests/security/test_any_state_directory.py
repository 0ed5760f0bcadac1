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
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting_as import as_user
from canaries import Process, processes_of, snapshot
from hostile_state import GOOD, IDS, Drawing, Owners
from orch_within import run_within, variables
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
VERBS = """
ls --all --json
ls
status
status ID --json
logs ID
logs ID --raw
wait ID --timeout 0.01
down ID
down ID --force
stacks ID
kill ID 0
prune --all --keep 0 --dry-run
prune --all --keep 0
prune --all --keep 0 --checkpoints
up --dry-run -- true
make room
make a run
make a run elsewhere
""".strip().splitlines()
CODES = {0, 1, 2, 3, 4, 124, 125}


def environ_of(drawn: Drawing) -> dict[str, str]:
    return {**os.environ, "HOME": str(drawn.home), "XDG_STATE_HOME": str(drawn.state.parent)}


def outcome(verb: str, drawn: Drawing) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a verb or of a step of `up`."""
    if not verb.startswith("make"):
        traces = drawn.home / "trace"
        code = run_within(verb.split(), drawn.home, environ_of(drawn), traces)
        out, err = (traces.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        return code, out, err
    try:
        with variables(environ_of(drawn)):
            if verb == "make room":
                make_room(load_request(None, ["true"], drawn.home, {}))
            else:
                place = drawn.elsewhere if "elsewhere" in verb else None
                make_run(log_dir=place, name_lock=lock_name("job")).close()
    except (OrchError, OSError) as error:
        return 2, "", str(error)
    return 0, "", ""


def faults_of_verbs(drawn: Drawing) -> list[str]:
    """Run some verbs in this process and return what they did wrong."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True, file=(drawn.home / "stack").open("w"))
    found, has_good = [], drawn.roots_are_intact
    live = {path.name for path in drawn.live}
    draw = random.Random(drawn.seed)
    picked = draw.choice([run_id for run_id in (*IDS, GOOD) if run_id not in live])
    for words in draw.sample(VERBS, 6):
        verb = words.replace("ID", picked)
        code, out, err = outcome(verb, drawn)
        what = f"{verb} exited with {code}: {err[-800:]}"
        if code not in CODES or "Traceback" in err or "a fault in orch itself" in err:
            found.append(what)
        elif code in (2, 3, 4, 125) and not err.strip():
            found.append(f"{what} (no reason)")
        if {"\x1b", "\x07"} & set(err if "--raw" in verb else out + err):
            found.append(f"{verb} printed a control character")
        if verb == "ls --all --json" and has_good:
            names = [run["id"] for run in json.loads(out or '{"runs": []}')["runs"]]
            if code != 0 or GOOD not in names:
                found.append(f"{what} (without the undamaged run)")
        if verb.startswith("prune") and "--dry-run" not in verb:
            good = drawn.runs / GOOD
            if has_good and good.exists() and not (good / "checkpoints/ckpt-1").exists():
                found.append(f"{what} (left the undamaged run)")
            has_good = False
    return found


def try_draw(base: Path, seed: int, owners: Owners, processes: list[Process]) -> list[str]:
    """Draw, run the verbs in a child process as the user, and return all faults."""
    drawn = Drawing(base, seed, owners)
    with variables(environ_of(drawn)):
        drawn.make()
    places = (drawn.outside, *drawn.foreign, *drawn.live)
    before = {place: snapshot(place) for place in places if place.exists()}
    roots = [
        Path(os.path.realpath(root)) for root in (drawn.state.parent, drawn.state, drawn.runs, drawn.names)
    ]
    try:
        found = as_user(owners.victim, lambda: faults_of_verbs(drawn))
    except EOFError:
        found = [f"hangs: {(drawn.home / 'stack').read_text()[:3000]}"]
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
    found += [f"process {n} got {each.signals()}" for n, each in enumerate(processes) if each.signals()]
    drawn.close()
    return [f"seed {seed}: {fault}\n  drawn: {drawn.steps}" for fault in found]


def remove(base: Path) -> None:
    """shutil.rmtree() fails for deep trees and closed directories."""
    subprocess.run(["chmod", "-R", "u+rwX", str(base)], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", str(base)], check=True)


def users_of(kind: str) -> tuple[int, tuple[int, ...]]:
    """The user of orch, and the other users of the draws."""
    if os.geteuid() != 0:
        return os.geteuid(), ()
    return (VICTIM, (OTHER, 0)) if kind == "ordinary" else (0, (VICTIM, OTHER))


def seeds_of(request: pytest.FixtureRequest) -> list[int]:
    if "HOSTILE_STATE_SEED" in os.environ:
        return [int(os.environ["HOSTILE_STATE_SEED"])]
    if request.config.getoption("markexpr") == "not slow":
        return list(range(DRAWS))
    start = random.SystemRandom().randrange(1 << 32)
    return list(range(start, start + BLOCK))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can enter; in memory, where deep trees are made and removed quickly."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="orch-hostile-", dir=where))
    directory.chmod(0o755)
    yield directory
    remove(directory)


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the verbs import: another user may have no access to the Python of the tests."""
    for name in ("cli", "client", "host", "request", "store"):
        package = importlib.import_module(f"orchestrator.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    time.strptime("2026", "%Y")
    for encoding in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
        codecs.lookup(encoding)  # json.loads() may need each of them
    drawn = Drawing(tmp_path_factory.mktemp("imported") / "base", 0, Owners(os.geteuid()))
    with variables(environ_of(drawn)):
        drawn.make_runs().close()
    for verb in VERBS:
        outcome(verb.replace("ID", GOOD), drawn)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["ordinary", "root"])
@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BLOCKS))])
def test_any_state_directory_leaves_everything_else_unchanged(
    place: Path, request: pytest.FixtureRequest, kind: str, block: int
) -> None:
    if kind == "root" and os.geteuid() != 0:
        pytest.skip("needs root to be root, and to give files to other users")
    victim, others = users_of(kind)
    faults: list[str] = []
    with contextlib.ExitStack() as stack:
        processes: list[Process] = []
        for seed in seeds_of(request):
            if not processes or any(process.signals() for process in processes):
                processes = stack.enter_context(processes_of((victim, *others[:1]), IDS[0]))
            owners = Owners(victim, others, tuple(process.identity for process in processes))
            faults += try_draw(base := place / str(seed), seed, owners, processes)
            remove(base)
    assert not faults, "\n".join(faults[:10])
