"""Compares the memory and descriptors of a session's supervisor and agent after few and after many runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator import Session

_FIRST_LOOK = 20
# Growth that an allocator can cause, of about 30 MB.
_MAY_GROW_BYTES = 1 << 20
# Quick ends of every kind, by turns.
_ENDS = (
    ("exit 0", "succeeded"),
    ("exit 3", "failed"),
    ("kill -KILL $$", "failed"),
    ("sleep 600", "timed_out"),
)


@dataclass(frozen=True)
class Held:
    """Memory (bytes) and descriptors of one process. PSS depends on which other processes map the same libraries;
    `own`, memory in no file, does not."""

    pid: int
    pss_bytes: int
    own_bytes: int
    descriptors: int


def measure(runs: int, directory: Path) -> int:
    """Prints the two looks; 1 when anything grew."""
    os.environ["XDG_STATE_HOME"] = str(directory / "state")
    looks: list[dict[str, Held]] = []
    with Session() as session:
        for number in range(1, runs + 1):
            words, outcome = _ENDS[number % len(_ENDS)]
            limit = {"timeout": "100ms"} if outcome == "timed_out" else {}
            with session.up(workers=2, command=["sh", "-c", words], directory=directory, **limit) as run:
                ended = run.wait(check=False)
            if ended.outcome != outcome:
                print(f"{run.id}: {ended.outcome}, not {outcome}", file=sys.stderr)
                return 1
            if number in (min(_FIRST_LOOK, runs), runs):
                looks.append(_look(run.view.record.supervisor_pid))
    first, last = looks[0], looks[-1]
    print(f"a session of {runs} runs: what its processes hold after {min(_FIRST_LOOK, runs)} and after all")
    for name in first:
        before, after = first[name], last[name]
        pss = f"PSS {before.pss_bytes / 1e6:.2f} and {after.pss_bytes / 1e6:.2f} MB"
        own = f"its own {before.own_bytes / 1e6:.2f} and {after.own_bytes / 1e6:.2f} MB"
        print(f"  {name:<12}{pss}, {own}, {before.descriptors} and {after.descriptors} descriptors")
    return 1 if any(_grew(first[name], last[name]) for name in first) else 0


def _grew(first: Held, last: Held) -> bool:
    """Or is not the process that it was."""
    grown = last.own_bytes - first.own_bytes
    return last.pid != first.pid or grown > _MAY_GROW_BYTES or last.descriptors > first.descriptors


def _look(supervisor: int) -> dict[str, Held]:
    process = psutil.Process(supervisor)
    (agent,) = process.children()
    return {"supervisor": _held(process), "agent": _held(agent)}


def _held(process: psutil.Process) -> Held:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return Held(process.pid, kb["Pss"] << 10, kb["Anonymous"] << 10, process.num_fds())
